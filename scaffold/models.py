"""The dbt models that a source's declarations mean: parsed, current, stage, vault and timelines."""

from collections.abc import Iterator, Sequence
from typing import Any

from lakehouse.declarations import Declarations, RawTable
from scaffold.entities import Entity, article, entities, owner_of, spoken
from scaffold.text import MOMENT, Column, Model, call
from scaffold.types import reader_type

HASH = "varchar"
EVENT: tuple[Column, ...] = (
    ("load_date", MOMENT, "When it came into the lake."),
    ("applied_date", MOMENT, "When the source committed it."),
    ("source_seq", "varchar", "Position among all changes of the source; sorts like them."),
    ("record_source", "varchar", "Where it comes from: source.schema.table."),
)
VALIDITY: tuple[Column, ...] = (
    ("valid_from", MOMENT, "First moment it was so."),
    ("valid_to", MOMENT, "When the next row took over; null if none has."),
    ("is_current", "boolean", "Whether it is the newest row of its key."),
)
DELETED: Column = ("is_deleted", "boolean", "Whether the source deleted it here.")
STATUS: Column = ("hd_status", HASH, "Fingerprint of whether it exists.")
PARSED: tuple[Column, ...] = (
    ("_op", "varchar", "What happened: r in the snapshot, c inserted, u updated, d deleted, t gone with a truncate."),
    ("_deleted", "boolean", "Whether the row is gone after this change; then only its key is filled."),
    ("_valid_from", MOMENT, "When the source committed it."),
    ("_epoch", "integer", "Incarnation of the source."),
    ("_commit_lsn", "bigint", "Commit LSN of the transaction."),
    ("_seq", "bigint", "Position within the transaction."),
    ("_record_source", "varchar", "Where it comes from: source.schema.table."),
    ("_loaded_at", MOMENT, "When it was published in raw; loads go by it."),
)


def models_of(declared: Declarations, source: str) -> list[Model]:
    """Every model of the source; raises LakehouseError where the source is not declared."""
    everything = list(entities(declared.tables).values())
    found: list[Model] = []
    for table in declared.source(source).tables:
        if table.key:
            found += _parsed(table)
        for entity in everything:
            if entity.table is table:
                found += _vault(entity, everything)
    return found


def _parsed(table: RawTable) -> Iterator[Model]:
    name = f"{table.source}__{table.name}"
    columns = tuple(Entity(table, table.vault).columns() if table.vault else _plain(table))
    text = table.description or f"Table {table.name}."
    kept = tuple(c for c in PARSED if c[0] not in ("_op", "_deleted", "_record_source"))
    times = {c.name: reader_type(c.data_type or "text") for c in table.columns}
    yield Model(
        f"parsed/{table.source}", f"parsed_{name}", call("parsed_table", table.source, table.name),
        f"{text} One row per change, typed and complete.", columns + PARSED,
        (("parsed_matches_raw", {"source_name": table.source, "table_name": table.name}),),
    )  # fmt: skip
    yield Model(
        f"current/{table.source}", f"current_{name}", call("current_table", table.source, table.name),
        f"{text} As the source has it at the last cut that was loaded.",
        tuple((n, "time(6)" if times.get(n) == "time(6)" else kind, d) for n, kind, d in columns) + kept,
    )  # fmt: skip


def _plain(table: RawTable) -> Iterator[Column]:
    from lakehouse.vault import VaultPolicy

    return Entity(table, VaultPolicy()).columns()


def _vault(entity: Entity, everything: Sequence[Entity]) -> Iterator[Model]:
    yield _stage(entity, everything)
    if entity.vault.reference_table:
        yield from _reference_table(entity)
        return
    yield _hub(entity, everything)
    for name, link in entity.vault.links.items():
        yield from _link(entity, name, link.to, link.description, link.effectivity)
    for name, satellite in entity.vault.satellites.items():
        text = satellite.description or f"What {article(entity.hub.name)} is."
        yield from _satellite(entity, f"sat_{name}", f"hd_{name}", entity.in_lake(satellite.columns), text)
    if entity.vault.track_deletes:
        yield from _status(entity)


def hashed(key: Sequence[str], entity: Entity) -> Any:
    """The hash of a hub's key, by the hub's own rules."""
    code = [f"!{entity.hub.collision_code}"] if entity.hub.collision_code else []
    rules = {name: rule for name, rule in (("normalize", entity.hub.normalize), ("blank", entity.hub.blank)) if rule}
    rules = {name: rule for name, rule in rules.items() if rule != "keep"}
    return {"columns": [*code, *key], **rules} if rules else [*code, *key]


def _stage(entity: Entity, everything: Sequence[Entity]) -> Model:
    vault, own = entity.vault, list(entity.columns())
    kinds = {name: kind for name, kind, _ in own}
    hashes: dict[str, Any] = {}
    columns: list[Column] = []
    derived = {}
    if vault.hub:
        derived = {n: k for n, k in zip(entity.business_key, entity.key, strict=True) if n != k}
        hashes[f"hk_{vault.hub.name}"] = hashed(entity.key, entity)
        columns.append((f"hk_{vault.hub.name}", HASH, f"Hash key of the {spoken(vault.hub.name)}."))
    for role, reference in vault.references.items():
        target = owner_of(vault.hub_of(role), everything)
        hashes[f"hk_{role}"] = hashed(entity.in_lake(reference.columns), target)
        columns.append((f"hk_{role}", HASH, f"Hash key of the {spoken(role)}."))
    for name, link in vault.links.items():
        parts = [hashes[f"hk_{entity.hub.name}"], *(hashes[f"hk_{role}"] for role in link.to)]
        hashes[f"hk_{name}"] = [c for part in parts for c in (part["columns"] if isinstance(part, dict) else part)]
        columns.append((f"hk_{name}", HASH, _together(entity, link.to)))
    for name, satellite in vault.satellites.items():
        hashes[f"hd_{name}"] = {"is_hashdiff": True, "columns": list(entity.in_lake(satellite.columns))}
        table = "ref" if vault.reference_table else "sat"
        columns.append((f"hd_{name}", HASH, f"Fingerprint of what {table}_{name} says."))
    if vault.hub and vault.track_deletes:
        hashes["hd_status"] = {"is_hashdiff": True, "columns": []}
        columns.append(STATUS)
    name = f"{entity.table.source}__{entity.table.name}"
    arguments: dict[str, Any] = {"source_model": f"parsed_{name}"}
    arguments |= {"derived_columns": derived} if derived else {}
    more = [(n, kinds[k], f"Business key; {k} under the name all tables use.") for n, k in derived.items()]
    return Model(
        f"stage/{entity.table.source}", entity.stage, call("stage", **arguments, hashed_columns=hashes),
        f"Changes of {entity.table.source}.{entity.table.name}, with hash keys and hashdiffs.",
        (*own, *more, *columns, DELETED, *EVENT),
        (("keys_are_given", {"src_pk": f"hk_{vault.hub.name}"}),) if vault.hub else (),
    )  # fmt: skip


def _together(entity: Entity, roles: Sequence[str]) -> str:
    others = [f"its {spoken(role)}" for role in roles]
    names = [f"the {spoken(entity.hub.name)}", *others]
    return f"Hash key of {', '.join(names[:-1])} and {names[-1]} together."


def _hub(entity: Entity, everything: Sequence[Entity]) -> Model:
    hub = entity.hub
    key, hk = list(entity.business_key), f"hk_{hub.name}"
    inputs: list[Any] = [entity.stage]
    for other in everything:
        for role, reference in other.vault.references.items():
            if other.vault.hub_of(role) == hub.name:
                columns = list(other.in_lake(reference.columns))
                same = role == hub.name and columns == key
                inputs.append(
                    other.stage if same else {"model": other.stage, "src_pk": f"hk_{role}", "src_nk": columns}
                )
    kinds = {name: kind for name, kind, _ in entity.columns()}
    parts = [(n, kinds[k], "Business key.") for n, k in zip(key, entity.key, strict=True)]
    name = hub.description or spoken(hub.name).capitalize() + "s"
    return Model(
        f"vault/{entity.table.source}", f"hub_{hub.name}",
        call("hub", src_pk=hk, src_nk=key if len(key) > 1 else key[0], source_model=inputs),
        f"{name} the lake has ever heard of, once each, from every table that mentions them.",
        ((hk, HASH, f"Hash key of the {spoken(hub.name)}."), *parts, *EVENT),
        (("hub_is_sound", {"src_pk": hk, "src_nk": key if len(key) > 1 else key[0]}),),
    )  # fmt: skip


def _link(entity: Entity, name: str, roles: Sequence[str], text: str, effectivity: bool) -> Iterator[Model]:
    vault, hub, pk = entity.vault, entity.hub.name, f"hk_{name}"
    own: Column = (f"hk_{hub}", HASH, f"Hash key of the {spoken(hub)}.")
    keys = [own] + [
        (f"hk_{role}", HASH, f"Hash key of the {spoken(role)}. {vault.references[role].note}".strip()) for role in roles
    ]
    hubs: dict[str, Any] = {f"hk_{hub}": f"hub_{hub}"}
    for role in roles:
        target = vault.hub_of(role)
        hubs[f"hk_{role}"] = f"hub_{target}" if target == role else {"model": f"hub_{target}", "src_pk": f"hk_{target}"}
    says = text or f"Which {' and '.join(map(spoken, roles))} {article(hub)} belongs to."
    combination: Column = (pk, HASH, _together(entity, roles))
    yield Model(
        f"vault/{entity.table.source}", f"link_{name}",
        call("link", src_pk=pk, src_fk=[key[0] for key in keys], source_model=entity.stage),
        f"{says} Every combination ever seen.", (combination, *keys, *EVENT),
        (("link_is_sound", {"src_pk": pk, "hubs": hubs}),),
    )  # fmt: skip
    if effectivity:
        driving: Column = (own[0], HASH, f"{own[2]} The driving key: it has one link at a time.")
        active: Column = ("is_active", "boolean", "Whether the link begins here, or ends.")
        yield Model(
            f"vault/{entity.table.source}", f"eff_sat_{name}",
            call("eff_sat", src_pk=pk, src_dfk=own[0], source_model=entity.stage),
            f"{says} When it began and ended.", (combination, driving, active, *EVENT),
            (("sat_is_sound", {"src_pk": pk, "parent": f"link_{name}"}),),
        )  # fmt: skip
        yield _timeline(
            entity, f"eff_sat_{name}", pk, "is_active", [own[0]], (combination, driving, active), "is_active",
            ("one_active_link", {"src_dfk": own[0]}),
        )  # fmt: skip


def _satellite(entity: Entity, name: str, diff: str, columns: Sequence[str], text: str) -> Iterator[Model]:
    hub, pk = entity.hub.name, f"hk_{entity.hub.name}"
    described = {column[0]: column for column in entity.columns()}
    payload = [described[column] for column in columns]
    fingerprint: Column = (diff, HASH, f"Fingerprint of what {name} says.")
    own: Column = (pk, HASH, f"Hash key of the {spoken(hub)}.")
    yield Model(
        f"vault/{entity.table.source}", name,
        call("sat", src_pk=pk, src_hashdiff=diff, src_payload=list(columns), source_model=entity.stage),
        f"{text} One row per change, deletes included.", (own, fingerprint, *payload, DELETED, *EVENT),
        (("sat_is_sound", {"src_pk": pk, "parent": f"hub_{hub}"}),),
    )  # fmt: skip
    yield _timeline(entity, name, pk, diff, columns, (own, *payload, fingerprint, DELETED), diff)


def _status(entity: Entity) -> Iterator[Model]:
    hub, pk, name = entity.hub.name, f"hk_{entity.hub.name}", f"sts_{entity.hub.name}"
    own: Column = (pk, HASH, f"Hash key of the {spoken(hub)}.")
    yield Model(
        f"vault/{entity.table.source}", name, call("sts_sat", src_pk=pk, source_model=entity.stage),
        f"Whether {article(hub)} exists in the source: every delete and revival.", (own, STATUS, DELETED, *EVENT),
        (("sat_is_sound", {"src_pk": pk, "parent": f"hub_{hub}"}),),
    )  # fmt: skip
    yield _timeline(entity, name, pk, "hd_status", [], (own, STATUS, DELETED), "hd_status")


def _reference_table(entity: Entity) -> Iterator[Model]:
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
        yield _timeline(entity, f"ref_{name}", pk, diff, columns, (*keys, *payload, fingerprint, DELETED), diff)


def _timeline(
    entity: Entity, name: str, pk: Any, diff: str, payload: Sequence[str], columns: Sequence[Column], state: str,
    *tests: tuple[str, dict[str, Any]],
) -> Model:  # fmt: skip
    more = {"src_payload": list(payload)} if payload else {}
    return Model(
        f"timelines/{entity.table.source}", f"{name}_v1",
        call("timeline", source_model=name, src_pk=pk, src_hashdiff=diff, **more),
        f"{name} with intervals of validity.", (*columns, *EVENT, *VALIDITY),
        (("timeline_is_sound", {"src_pk": pk, "state": state}), *tests),
    )  # fmt: skip
