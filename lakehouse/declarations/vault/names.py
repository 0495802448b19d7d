"""All names that a table's declaration creates in the vault: its relations, and the columns of its stage.

Two objects with one name would overwrite each other: a satellite called `status` and the status satellite would share
the column `hd_status`. All columns of the vault's tables come from a stage; timelines add `VALIDITY`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lakehouse.declarations.policies import RawPolicy
from lakehouse.declarations.vault.policy import HubPolicy, VaultPolicy

CODE = "collision_code"  # the column of a hub that has keys of several systems
EVENT = ("load_date", "applied_date", "source_seq", "record_source")
VALIDITY = ("source_seq_to", "valid_from", "valid_to", "is_current")
ALIAS = "give the column another name in the lake with meta.raw.alias"


class Vaulted(Protocol):
    """A raw table, as far as the vault goes by it."""

    @property
    def source(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def raw(self) -> RawPolicy: ...
    @property
    def vault(self) -> VaultPolicy | None: ...
    @property
    def landed(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Named:
    """A name, the object it belongs to, the key below `meta` that creates it, and the remedy (empty: it is fixed)."""

    name: str
    what: str
    path: tuple[str, ...] = ("vault",)
    remedy: str = ""


def in_lake(raw: RawPolicy, columns: Iterable[str]) -> tuple[str, ...]:
    """These columns of the source under their names in the lake."""
    return tuple(raw.alias.get(column, column) for column in columns)


def business_key(raw: RawPolicy, vault: VaultPolicy) -> tuple[str, ...]:
    """The key's columns as the hub that the table declares names them: `id` alone becomes `<hub>_id`."""
    key = in_lake(raw, raw.key)
    if vault.hub is None or vault.hub.extends or len(key) != 1:
        return key
    return (vault.hub.column or (f"{vault.hub.name}_id" if key == ("id",) else key[0]),)


def linked_columns(vault: VaultPolicy) -> set[str]:
    """The columns by which a table that is a link refers to others."""
    roles = vault.link.to if vault.link is not None else ()
    return {column for role in roles if role in vault.references for column in vault.references[role].columns}


def links_change(raw: RawPolicy, vault: VaultPolicy) -> bool:
    """Whether a row of a table that is a link may be linked with others later: its key does not name them all."""
    return not linked_columns(vault) <= set(raw.key)


def stage_columns(table: Vaulted, vault: VaultPolicy) -> Iterator[Named]:
    """All columns of the table's stage; a duplicate is a mistake."""
    for name in ("is_deleted", *EVENT):
        yield Named(name, "a column that each stage has")
    yield from _landed(table, table.landed)
    if vault.hub is not None:
        yield from _hub_columns(table, vault, vault.hub.name)
    parts = [("reference", "references", name) for name in vault.references]
    parts += [("link", "links", name) for name in vault.links]
    for kind, key, name in parts:
        yield Named(f"hk_{name}", f"the key of {kind} {name!r}", ("vault", key, name), f"rename the {kind}")
    if vault.event is not None:
        event = vault.event.name
        yield Named(f"hk_{event}", f"the key of event {event!r}", ("vault", "event"), "rename the event")
    if vault.link is not None:
        link = vault.link.name
        yield Named(f"hk_{link}", f"the key of link {link!r}", ("vault", "link"), "rename the link")
        if links_change(table.raw, vault):
            yield Named(f"hk_{link}_row", f"the driving key of link {link!r}", ("vault", "link"), "rename the link")
    for name in (name for name, satellite in vault.satellites.items() if satellite.historized):
        what = f"the fingerprint of satellite {name!r}"
        yield Named(f"hd_{name}", what, ("vault", "satellites", name), "rename the satellite")


def _hub_columns(table: Vaulted, vault: VaultPolicy, hub: str) -> Iterator[Named]:
    at = ("vault", "hub")
    for name, column in zip(business_key(table.raw, vault), in_lake(table.raw, table.raw.key), strict=True):
        if name != column:
            what = f"the key {column!r} under its name in hub {hub!r}"
            yield Named(name, what, at, f"name it otherwise with `hub: {{name: {hub}, column: …}}`")
    yield Named(f"hk_{hub}", f"the key of hub {hub!r}", at, "rename the hub")
    if vault.track_deletes:
        yield Named("hd_status", f"the fingerprint of the status satellite of hub {hub!r}")


def timeline_columns(table: Vaulted, vault: VaultPolicy) -> Iterator[Named]:
    """The columns of the table that stand in a timeline, and those that each timeline adds."""
    for name in VALIDITY:
        yield Named(name, "a column that each timeline has")
    held = [column for satellite in vault.satellites.values() if satellite.historized for column in satellite.columns]
    if vault.hub is None:
        held += table.raw.key
    yield from _landed(table, dict.fromkeys(column for column in held if column in table.landed))


def _landed(table: Vaulted, columns: Iterable[str]) -> Iterator[Named]:
    for column in columns:
        name = in_lake(table.raw, [column])[0]
        yield Named(name.lower(), f"column {column!r} of the table", ("vault",), ALIAS)


def relations(table: Vaulted, vault: VaultPolicy) -> Iterator[Named]:
    """All models of the vault that the declaration creates; no other table may create one of the same name."""
    yield Named(f"stg_{table.source}__{table.name}", "the stage")
    if vault.hub is not None:
        yield from _hub_relations(table, vault, vault.hub)
    for name, link in vault.links.items():
        yield from _link_relations(name, ("vault", "links", name), link.effectivity)
    if vault.event is not None:
        yield from _made("nh_link", vault.event.name, "event", ("vault", "event"), timeline=False)
    if vault.link is not None:
        yield from _link_relations(vault.link.name, ("vault", "link"), effectivity=vault.track_deletes)
    kind = "ref" if vault.reference_table else "ma_sat" if vault.children_of else "sat"
    for name, satellite in vault.satellites.items():
        made = kind if satellite.historized else f"nh_{kind}"
        yield from _made(made, name, "satellite", ("vault", "satellites", name), timeline=satellite.historized)


def status_name(source: str, table: str, hub: HubPolicy) -> str:
    """Whose existence the status satellite of a table is about: the hub's, or that of the table that extends it."""
    return f"{hub.name}_{source}_{table}" if hub.extends else hub.name


def _hub_relations(table: Vaulted, vault: VaultPolicy, hub: HubPolicy) -> Iterator[Named]:
    at = ("vault", "hub")
    if not hub.extends:
        yield from _made("hub", hub.name, "hub", at, timeline=False)
    if vault.track_deletes:
        yield from _made("sts", status_name(table.source, table.name, hub), "the status satellite of hub", at)
    if vault.track_mentions:
        yield from _made("rts", hub.name, "the mentions of hub", at, timeline=False)


def _link_relations(link: str, at: tuple[str, ...], effectivity: bool) -> Iterator[Named]:
    yield from _made("link", link, "link", at, timeline=False)
    if effectivity:
        yield from _made("eff_sat", link, "the effectivity of link", at)


def _made(kind: str, name: str, what: str, path: tuple[str, ...], timeline: bool = True) -> Iterator[Named]:
    yield Named(f"{kind}_{name}", f"{what} {name!r}", path)
    if timeline:
        yield Named(f"{kind}_{name}_v1", f"the timeline of {what} {name!r}", path)


def clashes(named: Iterable[Named]) -> Iterator[tuple[Named, Named]]:
    """Pairs with one name, the one that can be changed last."""
    first: dict[str, Named] = {}
    for one in named:
        other = first.setdefault(one.name, one)
        if other is not one:
            yield (other, one) if one.remedy else (one, other)
