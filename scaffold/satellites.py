"""Satellite models, and the views that add intervals of validity."""

from collections.abc import Iterator, Sequence
from typing import Any

from lakehouse.declarations.vault.policy import SatellitePolicy
from scaffold.columns import DELETED, EVENT, HASH, STATUS, VALIDITY
from scaffold.entities import Entity, article, spoken
from scaffold.text import Column, Model, call


def satellite_models(entity: Entity, parent: str, name: str, satellite: SatellitePolicy, text: str) -> Iterator[Model]:
    """A satellite of the table's hub or of a link, and its view; one that is not historized has none."""
    of = parent.partition("_")[2]
    pk, diff, columns = f"hk_{of}", f"hd_{name}", list(entity.in_lake(satellite.columns))
    described = {column[0]: column for column in entity.columns()}
    payload = [described[column] for column in columns]
    own: Column = (pk, HASH, f"Hash key of the {spoken(of)}.")
    if not satellite.historized:
        yield _unchanging_model(entity, parent, name, (own, *payload), text)
        return
    fingerprint: Column = (diff, HASH, f"Fingerprint of what sat_{name} says.")
    beside = {"is_key": False} if satellite.link or entity.links_change else {}
    yield Model(
        f"vault/{entity.table.source}", f"sat_{name}",
        call("sat", src_pk=pk, src_hashdiff=diff, src_payload=columns, source_model=entity.stage,
             **entity.natural_key, **beside),
        f"{text} One row per change{'' if beside else ', deletes included'}.",
        (own, fingerprint, *payload, DELETED, *EVENT), (("sat_is_sound", {"src_pk": pk, "parent": parent}),),
    )  # fmt: skip
    yield timeline_model(entity, f"sat_{name}", pk, diff, columns, (own, *payload, fingerprint, DELETED), diff)


def _unchanging_model(entity: Entity, parent: str, name: str, columns: Sequence[Column], text: str) -> Model:
    (pk, *_), *payload = columns
    names = [column[0] for column in payload]
    test = {"src_pk": pk, "columns": names, "stage": entity.stage, "parent": parent}
    return Model(
        f"vault/{entity.table.source}", f"nh_sat_{name}",
        call("nh_sat", src_pk=pk, src_payload=names, source_model=entity.stage),
        f"{text} It never changes: one row per key.", (*columns, *EVENT), (("nh_sat_is_sound", test),),
    )  # fmt: skip


def status_models(entity: Entity) -> Iterator[Model]:
    """The status tracking satellite of the table's hub, and its view."""
    hub, pk, name = entity.hub.name, f"hk_{entity.hub.name}", f"sts_{entity.status}"
    own: Column = (pk, HASH, f"Hash key of the {spoken(hub)}.")
    where = f"{entity.table.source}.{entity.table.name}" if entity.hub.extends else "the source"
    yield Model(
        f"vault/{entity.table.source}", name,
        call("sts_sat", src_pk=pk, source_model=entity.stage, **entity.natural_key),
        f"Whether {article(hub)} exists in {where}: every delete and revival.", (own, STATUS, DELETED, *EVENT),
        (("sat_is_sound", {"src_pk": pk, "parent": f"hub_{hub}"}),),
    )  # fmt: skip
    yield timeline_model(entity, name, pk, "hd_status", [], (own, STATUS, DELETED), "hd_status")


def reference_table_models(entity: Entity) -> Iterator[Model]:
    """The reference tables with their natural keys, and their views."""
    described = {column[0]: column for column in entity.columns()}
    keys = [described[column] for column in entity.key]
    for name, satellite in entity.vault.satellites.items():
        columns, diff = entity.in_lake(satellite.columns), f"hd_{name}"
        payload = [described[column] for column in columns]
        fingerprint: Column = (diff, HASH, f"Fingerprint of what ref_{name} says.")
        yield Model(
            f"vault/{entity.table.source}", f"ref_{name}",
            call("ref_table", src_pk=list(entity.key), src_hashdiff=diff, src_payload=list(columns),
                 source_model=entity.stage),
            f"{satellite.description or entity.table.description} One row per change of a code, deletes included.",
            (*keys, fingerprint, *payload, DELETED, *EVENT), (("ref_is_sound", {"src_pk": list(entity.key)}),),
        )  # fmt: skip
        pk = list(entity.key) if len(entity.key) > 1 else entity.key[0]
        yield timeline_model(entity, f"ref_{name}", pk, diff, columns, (*keys, *payload, fingerprint, DELETED), diff)


def timeline_model(
    entity: Entity, name: str, pk: Any, diff: str, payload: Sequence[str], columns: Sequence[Column], state: str,
    *tests: tuple[str, dict[str, Any]],
) -> Model:  # fmt: skip
    """The `_v1` view of a satellite."""
    more = {"src_payload": list(payload)} if payload else {}
    return Model(
        f"timelines/{entity.table.source}", f"{name}_v1",
        call("timeline", source_model=name, src_pk=pk, src_hashdiff=diff, **more),
        f"{name} with intervals of validity.", (*columns, *EVENT, *VALIDITY),
        (("timeline_is_sound", {"src_pk": pk, "state": state}), *tests),
    )  # fmt: skip


def child_models(entity: Entity, role: str) -> Iterator[Model]:
    """Multi-active satellites: several rows per hub key at a time."""
    target, pk = entity.vault.hub_of(role), f"hk_{role}"
    parent = set(entity.in_lake(entity.vault.references[role].columns))
    described = {column[0]: column for column in entity.columns()}
    own: Column = (pk, HASH, f"Hash key of the {spoken(role)}.")
    child = [column for column in entity.key if column not in parent]
    for name, satellite in entity.vault.satellites.items():
        columns, diff, table = entity.in_lake(satellite.columns), f"hd_{name}", f"ma_sat_{name}"
        keys = [own, *(described[column] for column in child)]
        payload = [described[column] for column in columns]
        fingerprint: Column = (diff, HASH, f"Fingerprint of what {table} says.")
        test = {"src_pk": pk, "src_cdk": child, "parent": f"hub_{target}"}
        test |= {} if target == role else {"parent_pk": f"hk_{target}"}
        yield Model(
            f"vault/{entity.table.source}", table,
            call("ma_sat", src_pk=pk, src_cdk=child, src_hashdiff=diff, src_payload=list(columns),
                 source_model=entity.stage, **entity.natural_key),
            f"{satellite.description or entity.table.description} Several rows at a time; one row per change of each.",
            (*keys, fingerprint, *payload, DELETED, *EVENT), (("sat_is_sound", test),),
        )  # fmt: skip
        yield timeline_model(
            entity, table, [pk, *child], diff, columns, (*keys, *payload, fingerprint, DELETED), diff,
        )  # fmt: skip
