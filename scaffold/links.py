"""Link models: links with effectivity satellites, junction tables, and non-historized links for events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lakehouse.declarations.vault.policy import EventPolicy, JunctionPolicy
from scaffold.columns import EVENT, HASH
from scaffold.entities import Entity, article, spoken
from scaffold.satellites import satellite_models, timeline_model
from scaffold.text import Column, Model, call


def together(entity: Entity, roles: Sequence[str]) -> str:
    """The description of a link's hash key."""
    others = [f"its {spoken(role)}" for role in roles]
    names = [f"the {spoken(entity.hub.name)}", *others]
    return f"Hash key of {', '.join(names[:-1])} and {names[-1]} together."


def _role_columns(entity: Entity, roles: Sequence[str]) -> list[Column]:
    """The hash keys of references."""
    notes = {role: entity.vault.references[role].note for role in roles}
    return [(f"hk_{role}", HASH, f"Hash key of the {spoken(role)}. {note}".strip()) for role, note in notes.items()]


def link_models(entity: Entity, name: str, roles: Sequence[str], text: str, effectivity: bool) -> Iterator[Model]:
    """The link and, with effectivity, its effectivity satellite."""
    hub, pk = entity.hub.name, f"hk_{name}"
    own: Column = (f"hk_{hub}", HASH, f"Hash key of the {spoken(hub)}.")
    keys = [own, *_role_columns(entity, roles)]
    hubs = {f"hk_{hub}": f"hub_{hub}", **hubs_of(entity, roles)}
    says = text or f"Which {' and '.join(map(spoken, roles))} {article(hub)} belongs to."
    combination: Column = (pk, HASH, together(entity, roles))
    yield Model(
        f"vault/{entity.table.source}", f"link_{name}",
        call("link", src_pk=pk, src_fk=[key[0] for key in keys], source_model=entity.stage),
        f"{says} Every combination ever seen.", (combination, *keys, *EVENT),
        (("link_is_sound", {"src_pk": pk, "hubs": hubs}),),
    )  # fmt: skip
    if effectivity:
        driving: Column = (own[0], HASH, f"{own[2]} The driving key: it has one link at a time.")
        yield from _effectivity_models(entity, name, says, (combination, driving))


def _effectivity_models(entity: Entity, name: str, says: str, keys: Sequence[Column]) -> Iterator[Model]:
    """The effectivity satellite of a link and its view; `keys` are the link's key and the driving key, if any."""
    active: Column = ("is_active", "boolean", "Whether the link begins here, or ends.")
    pk, driving = keys[0][0], [key[0] for key in keys[1:]]
    yield Model(
        f"vault/{entity.table.source}", f"eff_sat_{name}",
        call("eff_sat", src_pk=pk, src_dfk=keys[-1][0], source_model=entity.stage, **entity.natural_key),
        f"{says} When it began and ended.", (*keys, active, *EVENT),
        (("sat_is_sound", {"src_pk": pk, "parent": f"link_{name}"}),),
    )  # fmt: skip
    yield timeline_model(
        entity, f"eff_sat_{name}", pk, "is_active", driving, (*keys, active), "is_active",
        *[("one_active_link", {"src_dfk": key}) for key in driving],
    )  # fmt: skip


def junction_key(entity: Entity, link: JunctionPolicy, hashes: Mapping[str, Any]) -> Any:
    """The input of the link's hash key: the references, by the rules of their hubs, and the rest of the table's key."""
    keys, rest = [hashes[f"hk_{role}"] for role in link.to], dependent_key(entity, link)
    if any(isinstance(key, dict) for key in keys):
        return {"keys": [f"hk_{role}" for role in link.to], "columns": rest}
    return [*(column for key in keys for column in key), *rest]


def dependent_key(entity: Entity, link: JunctionPolicy) -> list[str]:
    """The dependent child key: columns of the table's key that are in no reference of the link."""
    linked = {c for role in link.to for c in entity.in_lake(entity.vault.references[role].columns)}
    return [column for column in entity.key if column not in linked]


def row_column(link: JunctionPolicy) -> Column:
    """The hash of a row's own key, where a row may link others later."""
    return (f"hk_{link.name}_row", HASH, "Hash key of the row. The driving key: it has one link at a time.")


def junction_models(entity: Entity, link: JunctionPolicy) -> Iterator[Model]:
    """The link of a junction table, its effectivity satellite, and its satellites."""
    vault, pk, described = entity.vault, f"hk_{link.name}", {column[0]: column for column in entity.columns()}
    own: Column = (pk, HASH, f"Hash key of the {spoken(link.name)}.")
    keys = _role_columns(entity, link.to)
    rest = dependent_key(entity, link)
    test = {"src_pk": pk, "hubs": hubs_of(entity, link.to)} | ({"dependent": rest} if rest else {})
    says = link.description or entity.table.description
    yield Model(
        f"vault/{entity.table.source}", f"link_{link.name}",
        call("link", src_pk=pk, src_fk=[*(key[0] for key in keys), *rest], source_model=entity.stage,
             **({} if entity.links_change else {"is_key": True})),
        f"{says} Every combination ever seen.", (own, *keys, *(described[column] for column in rest), *EVENT),
        (("link_is_sound", test),),
    )  # fmt: skip
    if vault.track_deletes:
        driving = [row_column(link)] if entity.links_change else []
        yield from _effectivity_models(entity, link.name, says, (own, *driving))
    for name, satellite in vault.satellites.items():
        yield from satellite_models(entity, f"link_{link.name}", name, satellite, satellite.description or says)


def hubs_of(entity: Entity, roles: Sequence[str]) -> dict[str, Any]:
    """The hub that contains the key of each reference: column → hub."""
    found: dict[str, Any] = {}
    for role in roles:
        target = entity.vault.hub_of(role)
        found[f"hk_{role}"] = (
            f"hub_{target}" if target == role else {"model": f"hub_{target}", "src_pk": f"hk_{target}"}
        )
    return found


def event_model(entity: Entity, event: EventPolicy) -> Model:
    """The non-historized link of an event: its own key, its references and its payload."""
    pk, described = f"hk_{event.name}", {column[0]: column for column in entity.columns()}
    keys = _role_columns(entity, event.to)
    payload = list(dict.fromkeys([*entity.key, *entity.in_lake(event.columns)]))
    own: Column = (pk, HASH, f"Hash key of the {spoken(event.name)}.")
    test = {"src_pk": pk, "columns": payload, "stage": entity.stage, "hubs": hubs_of(entity, event.to)}
    return Model(
        f"vault/{entity.table.source}", f"nh_link_{event.name}",
        call("nh_link", src_pk=pk, src_fk=[key[0] for key in keys], src_payload=payload, source_model=entity.stage),
        f"{event.description or entity.table.description} An event happens once and never changes.",
        (own, *keys, *(described[column] for column in payload), *EVENT),
        (("nh_link_is_sound", test),),
    )  # fmt: skip
