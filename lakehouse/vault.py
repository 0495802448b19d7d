"""What a raw table means in the vault: its hub, what it refers to, its links and satellites.

Read from `config.meta.vault` of the table's declaration. `lakehouse scaffold` writes the models from it, and every
mistake in it has a code: V1 hub without key, V2 link with one hub, V3 column twice, V4 column nowhere, V5 unknown
reference, V6 unknown column, V7 name taken, V8 personal data that could not be erased, V9 children without a key of
their own, V10 a table that is two things.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from lakehouse.policies import Policy, RawPolicy

Problem = tuple[tuple[str, ...], str]


class HubPolicy(Policy):
    """The thing a row is about."""

    name: str
    column: str | None = Field(
        None, description="business key's name in the hub; by default the key column's, `id` as <hub>_id"
    )
    description: str = ""
    collision_code: str | None = Field(None, description="tells apart equal keys of different systems in one hub")
    normalize: Literal["upper_trim"] | None = None
    blank: Literal["keep", "unknown", "error"] = "keep"


class ReferencePolicy(Policy):
    """Columns that name a row of another hub."""

    columns: tuple[str, ...]
    hub: str | None = Field(None, description="by default the reference's own name")
    note: str = Field("", description="what it means that the reference is empty")


class LinkPolicy(Policy):
    """The table's hub and what it is linked with, in one combination at a time."""

    to: tuple[str, ...] = Field(description="names of references")
    description: str = ""
    effectivity: bool = True


class SatellitePolicy(Policy):
    """Columns that change together, or that are personal data."""

    columns: tuple[str, ...]
    description: str = ""
    personal: bool = False


class EventPolicy(Policy):
    """Rows that happen once and never change: a non-historized link, with what they say in the same row."""

    name: str
    to: tuple[str, ...] = Field((), description="names of references")
    columns: tuple[str, ...] = Field((), description="what the event says")
    description: str = ""


class VaultPolicy(Policy):
    """The whole of `config.meta.vault`. Short forms: a hub by its name, a reference by its column, a link by its
    references, a satellite by its columns."""

    hub: HubPolicy | None = None
    reference_table: str | None = Field(None, description="codes without a hub: ref_<name>, under the natural key")
    children_of: str | None = Field(
        None, description="reference to the thing that has several rows here at a time: its satellites are multi-active"
    )
    event: EventPolicy | None = None
    references: dict[str, ReferencePolicy] = Field(default_factory=dict)
    links: dict[str, LinkPolicy] = Field(default_factory=dict)
    satellites: dict[str, SatellitePolicy] = Field(default_factory=dict)
    ignored: tuple[str, ...] = Field((), description="columns without business meaning")
    track_deletes: bool = True
    track_mentions: bool = Field(False, description="rts_<hub>: in which loads each table mentioned a key of the hub")

    @field_validator("hub", mode="before")
    @classmethod
    def _hub(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("references", "links", "satellites", mode="before")
    @classmethod
    def _short(cls, value: Any, info: Any) -> Any:
        part = "to" if info.field_name == "links" else "columns"
        return {name: _expanded(short, part) for name, short in (value or {}).items()}

    @property
    def is_modelled(self) -> bool:
        """Whether the table has a place in the vault at all."""
        return bool(self.forms)

    @property
    def forms(self) -> tuple[str, ...]:
        """What the table is: one of these, when the declaration is right."""
        forms = ("hub", "reference_table", "children_of", "event")
        return tuple(form for form in forms if getattr(self, form) is not None)

    def hub_of(self, role: str) -> str:
        """The hub that a reference names."""
        return self.references[role].hub or role


class Vaulted(Protocol):
    """What is checked: a raw table."""

    @property
    def name(self) -> str: ...
    @property
    def raw(self) -> RawPolicy: ...
    @property
    def vault(self) -> VaultPolicy | None: ...
    @property
    def landed(self) -> tuple[str, ...]: ...


def problems_of(table: Vaulted) -> Iterator[Problem]:
    """Mistakes within one table's declaration, each with the path of the key below `meta` that is wrong."""
    vault = table.vault
    yield from _personal_problems(table, vault)
    if vault is None or not vault.is_modelled:
        return
    if not table.raw.key:
        yield ("vault", vault.forms[0]), "V1: a hub needs a key: declare meta.raw.key"
    yield from _form_problems(table, vault)
    for name, link in vault.links.items():
        at = ("vault", "links", name)
        if unknown := [role for role in link.to if role not in vault.references]:
            yield at, f"V5: link {name!r} leads to {', '.join(unknown)}, which meta.vault.references does not have"
        if vault.hub is None or not link.to:
            yield at, f"V2: link {name!r} has one hub; it needs the table's own and at least one reference in `to`"
    if vault.hub is not None and vault.hub.name in vault.references:
        yield (
            ("vault", "references", vault.hub.name),
            f"V7: a reference needs a name other than the hub's, {vault.hub.name!r}",
        )
    yield from _column_problems(table, vault)


def _form_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    if len(vault.forms) > 1:
        yield ("vault", vault.forms[1]), f"V10: a table is one thing, not {' and '.join(vault.forms)}"
    if vault.track_mentions and vault.hub is None:
        yield ("vault", "track_mentions"), "V1: mentions are tracked for a hub, and the table declares none"
    if vault.event is not None:
        at = ("vault", "event")
        if unknown := [role for role in vault.event.to if role not in vault.references]:
            yield at, f"V5: the event names {', '.join(unknown)}, which meta.vault.references does not have"
        if not vault.event.to:
            yield at, "V2: an event is a link, it needs at least one reference in `to`"
        if vault.event.name in vault.references:
            yield at, f"V7: the event needs a name other than the reference's, {vault.event.name!r}"
        if vault.satellites:
            yield ("vault", "satellites"), "V10: an event never changes: what it says stands in `event.columns`"
    if vault.children_of is not None:
        at, parent = ("vault", "children_of"), vault.references.get(vault.children_of)
        if parent is None:
            yield at, f"V5: children_of names {vault.children_of!r}, which meta.vault.references does not have"
        elif not set(parent.columns) < set(table.raw.key):
            yield (
                at,
                f"V9: the key has to be {', '.join(parent.columns)} and at least one column that tells the rows"
                f" of one {vault.children_of} apart; it is {', '.join(table.raw.key) or 'empty'}",
            )
        for name, satellite in vault.satellites.items():
            if satellite.personal:
                yield (
                    ("vault", "satellites", name),
                    "V8: personal data of children could not be erased: give them a hub of their own",
                )


def _personal_problems(table: Vaulted, vault: VaultPolicy | None) -> Iterator[Problem]:
    """Keys stay when a data subject is erased, and so does what is told apart by them or fingerprinted with others."""
    satellites = vault.satellites if vault else {}
    references = vault.references.values() if vault else ()
    named = set(table.raw.personal).union(*(s.columns for s in satellites.values() if s.personal))
    if keys := sorted(named & set(table.raw.key)):
        yield ("raw", "key"), f"V8: key column {', '.join(keys)} is personal data, and a key cannot be erased"
    if linked := sorted(named & {column for reference in references for column in reference.columns}):
        yield ("vault", "references"), f"V8: {', '.join(linked)} is personal data, and a reference cannot be erased"
    for name, satellite in satellites.items():
        if not satellite.personal and (mixed := sorted(named & set(satellite.columns))):
            yield (
                ("vault", "satellites", name),
                f"V8: {', '.join(mixed)} is personal data: put it into a satellite with `personal: true`",
            )


def _column_problems(table: Vaulted, vault: VaultPolicy) -> Iterator[Problem]:
    places = dict(_places(vault))
    landed = set(table.landed)
    for path, columns in places.items():
        if unknown := sorted(set(columns) - landed):
            yield path, f"V6: {', '.join(unknown)} is not among the columns that land"
    counts = Counter(column for columns in places.values() for column in columns)
    if twice := sorted(column for column, count in counts.items() if count > 1):
        yield (
            ("vault",),
            f"V3: {', '.join(twice)} is in two places: a column is a reference, in one satellite or ignored",
        )
    if nowhere := sorted(landed - set(counts) - set(table.raw.key)):
        yield ("vault",), f"V4: {', '.join(nowhere)} is nowhere: put it into a satellite, a reference or `ignored`"


def _places(vault: VaultPolicy) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    for name, reference in vault.references.items():
        yield ("vault", "references", name), reference.columns
    for name, satellite in vault.satellites.items():
        yield ("vault", "satellites", name), satellite.columns
    if vault.event is not None:
        yield ("vault", "event"), vault.event.columns
    yield ("vault", "ignored"), vault.ignored


def problems_among(tables: Iterable[Vaulted]) -> Iterator[tuple[Vaulted, Problem]]:
    """Mistakes that only show when all tables are seen."""
    modelled = [(table, table.vault) for table in tables if table.vault and table.vault.is_modelled]
    owners: dict[str, Vaulted] = {}
    for table, vault in modelled:
        names = [f"hub {vault.hub.name}"] if vault.hub else []
        names += [f"ref {vault.reference_table}"] if vault.reference_table else []
        names += [f"event {vault.event.name}"] if vault.event else []
        names += [f"link {name}" for name in vault.links] + [f"satellite {name}" for name in vault.satellites]
        for name in names:
            if name in owners:
                yield table, (("vault",), f"V7: {name} is declared by table {owners[name].name} already")
            owners.setdefault(name, table)
    for table, vault in modelled:
        for role in vault.references:
            if f"hub {vault.hub_of(role)}" not in owners:
                yield table, (("vault", "references", role), f"V5: no table declares a hub {vault.hub_of(role)!r}")


def _expanded(short: Any, part: str) -> Any:
    if isinstance(short, str):
        return {part: (short,)}
    return {part: tuple(short)} if isinstance(short, list) else short
