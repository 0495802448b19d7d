"""Generates all dbt models of a source: parsed, current, stage, vault and timelines."""

from collections.abc import Iterator, Sequence
from typing import Any

from lakehouse.declarations import Declarations, RawTable
from lakehouse.declarations.vault.policy import HubPolicy, VaultPolicy
from scaffold.columns import CODE, DELETED, EVENT, HASH, PARSED, STATUS
from scaffold.entities import Entity, article, as_keys, code_of, declared_hub, entities, owners_of, spoken
from scaffold.links import event_model, junction_key, junction_models, link_models, row_column, together
from scaffold.satellites import child_models, reference_table_models, satellite_models, status_models
from scaffold.text import Column, Model, call
from scaffold.types import has_several_spellings, reader_type


def models_of(declared: Declarations, source: str) -> list[Model]:
    """All models of the source; raises LakehouseError if the source is not declared."""
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
    columns = tuple(Entity(table, table.vault or VaultPolicy()).columns())
    text = table.description or f"Table {table.name}."
    kept = tuple(c for c in PARSED if c[0] not in ("_op", "_is_deleted", "_record_source"))
    alias = table.raw.alias
    times = {alias.get(c.name, c.name) for c in table.columns if reader_type(c.data_type or "text") == "time(6)"}
    yield Model(
        f"parsed/{table.source}", f"parsed_{name}", call("parsed_table", table.source, table.name),
        f"{text} One row per change, typed and complete.", columns + PARSED,
        (("parsed_matches_raw", {"source_name": table.source, "table_name": table.name}),),
    )  # fmt: skip
    yield Model(
        f"current/{table.source}", f"current_{name}", call("current_table", table.source, table.name),
        f"{text} As the source has it at the {'newest cut' if table.is_mirrored else 'last cut that was loaded'}.",
        tuple((n, "time(6)" if n in times and kind == "bigint" else kind, d) for n, kind, d in columns)
        + (() if table.is_mirrored else kept),
    )  # fmt: skip


def _vault(entity: Entity, everything: Sequence[Entity]) -> Iterator[Model]:
    yield _stage(entity, everything)
    if entity.vault.reference_table:
        yield from reference_table_models(entity)
    elif entity.vault.event:
        yield event_model(entity, entity.vault.event)
    elif entity.vault.link:
        yield from junction_models(entity, entity.vault.link)
    elif entity.vault.children_of:
        yield from child_models(entity, entity.vault.children_of)
    else:
        yield from _hub_entity(entity, everything)


def _hub_entity(entity: Entity, everything: Sequence[Entity]) -> Iterator[Model]:
    if not entity.hub.extends:
        yield _hub(entity, everything)
    for name, link in entity.vault.links.items():
        yield from link_models(entity, name, link.to, link.description, link.effectivity)
    for name, satellite in entity.vault.satellites.items():
        text = satellite.description or f"What {article(satellite.link or entity.hub.name)} is."
        parent = f"link_{satellite.link}" if satellite.link else f"hub_{entity.hub.name}"
        yield from satellite_models(entity, parent, name, satellite, text)
    if entity.vault.track_deletes:
        yield from status_models(entity)
    if entity.vault.track_mentions:
        yield _mentions(entity, everything)


def hashed(key: Sequence[Any], hub: HubPolicy, code: str) -> Any:
    """The hash of a hub's key, by the hub's rules; a list within the key is a reference, void if a part is NULL."""
    rules = {name: rule for name, rule in (("normalize", hub.normalize), ("blank", hub.blank)) if rule}
    rules = {name: rule for name, rule in rules.items() if rule != "keep"}
    columns = [*([f"!{code}"] if code else []), *key]
    return {"columns": columns, **rules} if rules else columns


def _hash_keys(entity: Entity, everything: Sequence[Entity]) -> tuple[dict[str, Any], list[Column]]:
    """What a stage hashes to keys of hubs and links, and the columns of the hashes."""
    vault = entity.vault
    hashes: dict[str, Any] = {}
    columns: list[Column] = []
    if vault.hub:
        declaring = declared_hub(vault.hub.name, everything)
        key = as_keys(entity, entity.key, vault.hub.name, everything)
        hashes[f"hk_{vault.hub.name}"] = hashed(key, declaring, vault.hub.collision_code)
        columns.append((f"hk_{vault.hub.name}", HASH, f"Hash key of the {spoken(vault.hub.name)}."))
    for role, reference in vault.references.items():
        target, code = declared_hub(vault.hub_of(role), everything), code_of(entity, role, everything)
        columns_of = as_keys(entity, entity.in_lake(reference.columns), vault.hub_of(role), everything)
        hashes[f"hk_{role}"] = hashed(columns_of if len(columns_of) == 1 else [columns_of], target, code)
        columns.append((f"hk_{role}", HASH, f"Hash key of the {spoken(role)}."))
    for name, link in vault.links.items():
        keys = [f"hk_{entity.hub.name}", *(f"hk_{role}" for role in link.to)]
        has_rules = any(isinstance(hashes[key], dict) for key in keys)  # then a hub may map two spellings to one key
        hashes[f"hk_{name}"] = {"keys": keys} if has_rules else [column for key in keys for column in hashes[key]]
        columns.append((f"hk_{name}", HASH, together(entity, link.to)))
    if vault.event:
        hashes[f"hk_{vault.event.name}"] = list(entity.key)
        columns.append((f"hk_{vault.event.name}", HASH, f"Hash key of the {spoken(vault.event.name)}."))
    if vault.link:
        name = f"hk_{vault.link.name}"
        hashes[name] = junction_key(entity, vault.link, hashes)
        columns.append((name, HASH, f"Hash key of the {spoken(vault.link.name)}."))
        if entity.links_change:
            hashes[f"{name}_row"] = list(entity.key)
            columns.append(row_column(vault.link))
    return hashes, columns


def _stage(entity: Entity, everything: Sequence[Entity]) -> Model:
    vault, own = entity.vault, list(entity.columns())
    kinds = {name: kind for name, kind, _ in own}
    derived = {n: k for n, k in zip(entity.business_key, entity.key, strict=True) if n != k} if vault.hub else {}
    hashes, columns = _hash_keys(entity, everything)
    for name, satellite in vault.satellites.items():
        if not satellite.historized:
            continue
        hashes[f"hd_{name}"] = {"is_hashdiff": True, "columns": list(entity.in_lake(satellite.columns))}
        table = "ref" if vault.reference_table else "ma_sat" if vault.children_of else "sat"
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
        (*own, *more, *columns, DELETED, *EVENT), (*_key_tests(entity, everything), *_code_tests(entity, everything)),
    )  # fmt: skip


def _key_tests(entity: Entity, everything: Sequence[Entity]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to count of keys that are not given: where they can be text that is blank, by the hub's rule for it."""
    vault = entity.vault
    wrong = [f"hk_{role}" for role in vault.references if declared_hub(vault.hub_of(role), everything).blank == "error"]
    test: dict[str, Any] = {"references": wrong} if wrong else {}
    if vault.hub:
        may_be_blank = set(entity.kinds(entity.key)) == {"varchar"}
        keeps_blank = declared_hub(vault.hub.name, everything).blank == "keep"
        blank = {"src_nk": list(entity.key)} if may_be_blank and keeps_blank else {}
        test = {"src_pk": f"hk_{vault.hub.name}", **blank, **test}
    if test:
        yield "keys_are_given", test


def _code_tests(entity: Entity, everything: Sequence[Entity]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the codes stand that the table has, compared as texts where the types differ."""
    found = []
    for code, policy in entity.vault.codes.items():
        name, columns = entity.vault.reference_table_of(code), list(entity.in_lake(policy.columns))
        table = next(other for other in everything if other.vault.reference_table == name)
        is_alike = entity.kinds(columns) == table.kinds(table.key)
        found.append(
            {"columns": columns, "model": f"ref_{next(iter(table.vault.satellites))}", "src_pk": list(table.key)}
            | ({} if is_alike else {"as_text": True})
        )
    if found:
        yield "codes_are_known", {"codes": found}


def _hub(entity: Entity, everything: Sequence[Entity]) -> Model:
    hub = entity.hub
    key, hk = list(entity.business_key), f"hk_{hub.name}"
    owners = owners_of(hub.name, everything)
    has_codes = len({owner.hub.collision_code for owner in owners}) > 1
    kinds = entity.kinds(entity.key)
    mentions = [
        *((owner, hk, list(owner.key), owner.hub.collision_code) for owner in owners[1:]),
        *((other, f"hk_{role}", columns, code_of(other, role, everything) if has_codes else "")
          for other, role, columns in _mentioned_by(hub.name, everything)),
    ]  # fmt: skip
    inputs = [_input(entity.stage, {"code": hub.collision_code} if has_codes else {})]
    for other, pk, columns, code in mentions:
        names = {} if (pk, columns) == (hk, key) else {"src_pk": pk, "src_nk": columns}
        casts = {} if _cast_alike(kinds, other.kinds(columns)) else {"src_types": kinds}
        inputs.append(_input(other.stage, names | casts | ({"code": code} if has_codes else {})))
    parts = [(n, kind, "Business key.") for n, kind in zip(key, kinds, strict=True)]
    name = hub.description or spoken(hub.name).capitalize() + "s"
    test: dict[str, Any] = {"src_pk": hk, "src_nk": key if len(key) > 1 else key[0], "stage": entity.stage}
    test |= {"normalize": hub.normalize} if hub.normalize else {}
    spelled_by = [(entity, entity.key), *((other, columns) for other, _, columns, _ in mentions)]
    test |= {"types": types} if (types := _several_spellings(key, kinds, spelled_by)) else {}
    code_column = {"src_code": CODE[0]} if has_codes else {}
    return Model(
        f"vault/{entity.table.source}", f"hub_{hub.name}",
        call("hub", src_pk=hk, src_nk=key if len(key) > 1 else key[0], source_model=inputs, **code_column),
        f"{name} the lake has ever heard of, once each, from every table that mentions them.",
        ((hk, HASH, f"Hash key of the {spoken(hub.name)}."), *parts, *([CODE] if has_codes else []), *EVENT),
        (("hub_is_sound", test | code_column),),
    )  # fmt: skip


def _several_spellings(
    key: Sequence[str], kinds: Sequence[str], spelled_by: Sequence[tuple[Entity, Sequence[str]]]
) -> dict[str, str]:
    """Columns of a hub's key that hold different texts of equal values, with the type in Postgres that allows it."""
    found: dict[str, str] = {}
    for entity, columns in spelled_by:
        for name, kind, declared in zip(key, kinds, map(entity.declared_type, columns), strict=True):
            if kind == "varchar" and has_several_spellings(declared):
                found.setdefault(name, declared)
    return found


def _cast_alike(kinds: Sequence[str], others: Sequence[str]) -> bool:
    return all((a == "varchar") == (b == "varchar") for a, b in zip(kinds, others, strict=True))


def _input(stage: str, given: dict[str, Any]) -> Any:
    """A stage that mentions keys of a hub; its name alone where it calls them as the hub does."""
    return {"model": stage, **given} if given else stage


def _mentioned_by(hub: str, everything: Sequence[Entity]) -> Iterator[tuple[Entity, str, list[str]]]:
    """The entities that refer to a hub, with role and columns."""
    for other in everything:
        for role, reference in other.vault.references.items():
            if other.vault.hub_of(role) == hub:
                yield other, role, list(other.in_lake(reference.columns))


def _mentions(entity: Entity, everything: Sequence[Entity]) -> Model:
    hub, pk = entity.hub.name, f"hk_{entity.hub.name}"
    inputs: list[Any] = [owner.stage for owner in owners_of(hub, everything)]
    for other, role, _ in _mentioned_by(hub, everything):
        inputs.append(other.stage if role == hub else {"model": other.stage, "src_pk": f"hk_{role}"})
    return Model(
        f"vault/{entity.table.source}", f"rts_{hub}", call("rec_track_sat", src_pk=pk, source_model=inputs),
        f"In which loads a table mentioned {article(hub)}, changed or not.",
        ((pk, HASH, f"Hash key of the {spoken(hub)}."), *(c for c in EVENT if c[0] in ("load_date", "record_source"))),
        (("rec_track_sat_is_sound", {"src_pk": pk, "parent": f"hub_{hub}"}),),
    )  # fmt: skip
