"""What each table of a database is in the vault: a thing, a relation of things, an event, a code; pure."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from scaffold.propose.columns import Parts, parts
from scaffold.propose.database import DbTable
from scaffold.propose.names import free, lake_name, role_name, singular, thing_name

Foreign = tuple[tuple[str, ...], int]
Form = Literal["hub", "reference_table", "link", "children_of", "event"]
_CODES = {
    "status", "state", "type", "kind", "priority", "severity", "reason", "method", "currency", "country", "language",
    "locale", "unit", "timezone", "gender", "salutation", "size", "color", "colour", "mode", "code", "waehrung", "land",
    "sprache", "einheit", "anrede", "typ", "art", "groesse", "farbe", "grund",
}  # fmt: skip
_SHORT = re.compile(r"smallint|character(\(\d\))?|character varying\(([1-9]|10)\)|\"char\"")
_OF_THINGS = re.compile(r"date|timestamp|real|double precision|point")
_OF_ROWS = re.compile(r"(created|inserted|added|valid|effective)(_|$)")
_LOGS = {
    "log", "event", "history", "audit", "journal", "ledger", "entry", "movement", "activity", "transaction", "reading",
    "measurement", "usage", "click", "view", "visit", "login", "payment", "refund", "posting",
}  # fmt: skip
_MOMENT = re.compile(r"(timestamp|date)")
_PLANNED = re.compile(r"(^|_)(start|begin|end|due|expir|schedul|valid|plan|effective|birth)")
_STATE = re.compile(r"(\w+_)?(status|state)(_\w+)?|(is_)?(active|deleted|closed|cancel\w+)")


@dataclass(frozen=True)
class Reference:
    """A foreign key to a thing."""

    role: str
    columns: tuple[str, ...]
    target: int
    hub: str


@dataclass(frozen=True)
class Shape:
    """What a table is. `implied`: role → the role that leads to the same row; `together`: one link of all others.

    `by_row`: its rows relate things and have an id of their own, so that it is open whether they are things, too.
    """

    form: Form
    name: str
    parts: Parts
    references: tuple[Reference, ...] = ()
    implied: Mapping[str, str] = field(default_factory=dict)
    together: bool = False
    by_row: bool = False

    @property
    def linked(self) -> tuple[str, ...]:
        """The roles that are linked."""
        return tuple(r.role for r in self.references if r.role not in self.implied)


def shapes(
    tables: Sequence[DbTable], lake: Mapping[int, str], source: str, taken: Collection[str],
    hubs: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, Shape]:  # fmt: skip
    """What each table with a key is; `lake` has their names in the lake, `taken` the names of other sources.

    `hubs` are those of tables that are declared already. A table that must not be published is a thing that no other
    refers to.
    """
    used, names = set(taken), dict(hubs)
    for table in tables:
        if table.key and table.oid not in hubs:
            name = thing_name(lake[table.oid], lake.values())
            names[table.oid] = free(f"{source}_{name}" if name in used else name, used)
    known = {table.oid: table for table in tables if table.key}
    fit = {oid for oid, table in known.items() if not table.unfit}
    may_be_codes = fit - set(hubs) - set(_in_relations(known.values(), fit))
    codes: set[int] = set()
    while more := {oid for oid in may_be_codes - codes if _is_code(known[oid], codes)}:
        codes |= more
    referred = {other for table in tables for _, other in table.foreign}
    return {
        oid: _shape(table, names, known, (fit | {oid}) - codes, oid in codes, oid in referred)
        for oid, table in known.items()
    }


def _shape(
    table: DbTable, names: Mapping[int, str], known: Mapping[int, DbTable], things: Collection[int], is_code: bool,
    is_referred: bool,
) -> Shape:  # fmt: skip
    references = tuple(_references(table, names, known, things))
    referring = {column for reference in references for column in reference.columns} | set(table.key)
    rest = [(column, kind) for column, kind, _ in table.columns if column not in referring]
    found = parts(singular(lake_name(table.name)), rest)
    form: Form = "hub"
    free_to_relate = bool(references) and not (is_referred or table.unfit)
    event = free_to_relate and _is_log(table, found)
    by_row = free_to_relate and not (event or found.personal or found.secret) and _has_own_id(table, references)
    relates = by_row and _relates(table, found, references)
    fixed = event or relates
    implied = {r.role: o.role for r in references for o in references if _implies(table, o, r, known, fixed)}
    linked = [r for r in references if r.role not in implied]
    within = [r.columns for r in linked if set(r.columns) <= set(table.key)]
    inner, alone = _widest(within), not (is_referred or table.unfit or found.personal) and len(within) == len(linked)
    if is_code:
        form = "reference_table"
    elif event:
        form = "event"
    elif relates or (alone and len(inner) > 1):
        form = "link"
    elif alone and len(linked) == 1 and set(linked[0].columns) < set(table.key):
        form = "children_of"
    unique = any(_covers(unique, [r.columns for r in linked]) for unique in table.unique)
    together = len(linked) > 1 and (len(inner) > 1 or unique)
    return Shape(form, names[table.oid], found, references, implied, together, by_row)


def _references(
    table: DbTable, names: Mapping[int, str], known: Mapping[int, DbTable], things: Collection[int]
) -> Iterator[Reference]:
    """Each foreign key that names a thing."""
    fit = [f for f in dict.fromkeys(table.foreign) if f[1] in things and len(f[0]) == len(known[f[1]].key)]
    taken = {names[table.oid]}
    for columns, other in fit:
        shared = {column for more, _ in fit if more != columns for column in more}
        yield Reference(role_name(columns, known[other].key, shared, names[other], taken), columns, other, names[other])


def _is_code(table: DbTable, codes: Collection[int]) -> bool:
    """A small table that refers to nothing, is called like codes or has a short one, and says little about it.

    A moment or a measure is said of a thing: a branch was opened, a station lies somewhere. One that is called like
    codes may refer to other `codes`: a country has a currency.
    """
    if not {other for _, other in table.foreign} <= set(codes) or table.loose or len(table.key) != 1 or not table.small:
        return False
    name, kinds = singular(lake_name(table.name)), {column: kind for column, kind, _ in table.columns}
    rest = parts(name, [(column, kind) for column, kind in kinds.items() if column not in table.key])
    says_little = len(rest.details) in range(1, 5) and not (rest.secret or rest.personal or rest.activity)
    called_so = bool(_CODES & {name, name.rpartition("_")[2]})
    measured = [c for c in rest.details if _OF_THINGS.match(kinds[c]) and not _OF_ROWS.match(lake_name(c))]
    has_code = _SHORT.fullmatch(kinds.get(table.key[0], "")) is not None
    return says_little and (called_so or (has_code and not measured and not table.foreign))


def _in_relations(tables: Collection[DbTable], fit: Collection[int]) -> Iterator[int]:
    """What a table with several foreign keys in its key, or in a unique constraint, relates: things, however small."""
    for table in tables:
        for key in (table.key, *table.unique):
            inner = [f for f in table.foreign if f[1] in fit and set(f[0]) <= set(key)]
            if len(_widest([columns for columns, _ in inner])) > 1:
                yield from (other for _, other in inner)


def _is_log(table: DbTable, found: Parts) -> bool:
    """Called like a log, with moments that are known from the start, and nothing that would change later."""
    words = {singular(word) for word in lake_name(table.name).split("_")}
    moments = [column for column, kind, _ in table.columns if _MOMENT.match(kind) and column not in found.technical]
    changes = found.technical or found.activity or set(moments) & set(table.nullable)
    states = any(_STATE.fullmatch(lake_name(column)) for column, *_ in table.columns)
    planned = any(_PLANNED.search(lake_name(column)) for column in moments)
    return bool(words & _LOGS and moments and not (changes or states or planned))


def _has_own_id(table: DbTable, references: Sequence[Reference]) -> bool:
    """Whether one column of the key tells rows apart, and not their references: each row has two of them at least."""
    referring = {column for reference in references for column in reference.columns}
    always = [r.columns for r in references if not set(r.columns) & set(table.nullable)]
    within = [r.columns for r in references if set(r.columns) <= set(table.key)]
    return len(set(table.key) - referring) == 1 and len(_widest(within)) < 2 <= len(_widest(always))


def _relates(table: DbTable, found: Parts, references: Sequence[Reference]) -> bool:
    """Whether a row with an id of its own only relates things: by a unique constraint, its name or its columns."""
    columns, words = [r.columns for r in references], set(singular(lake_name(table.name)).split("_"))
    if any(_covers(unique, columns) for unique in table.unique):
        return True
    named = [words & set(r.hub.split("_")) for r in references]
    called_so = len(list(filter(None, named))) > 1 and words == set().union(*named)
    moments = {column for column, kind, _ in table.columns if _MOMENT.match(kind)}
    return called_so or not set(found.details) - moments


def _implies(table: DbTable, other: Reference, reference: Reference, known: Mapping[int, DbTable], fixed: bool) -> bool:
    """Whether what `other` names refers to the same, by the same columns, and every row has an `other`."""
    if not set(reference.columns) < set(other.columns):
        return False
    always = set(other.columns) <= set(table.key) or (fixed and not set(other.columns) & set(table.nullable))
    return always and _leads(other.columns, other.target, (reference.columns, reference.target), known)


def _leads(columns: Sequence[str], at: int, to: Foreign, known: Mapping[int, DbTable], depth: int = 8) -> bool:
    there = dict(zip(known[at].key, columns, strict=True))
    for more, other in known[at].foreign if depth else ():
        if set(more) <= set(there) and other in known and len(more) == len(known[other].key):
            here = tuple(there[column] for column in more)
            if (here, other) == to or _leads(here, other, to, known, depth - 1):
                return True
    return False


def _widest(columns: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Those that are no part of others."""
    return {some for some in columns if not any(set(some) < set(more) for more in columns)}


def _covers(unique: Sequence[str], linked: Sequence[tuple[str, ...]]) -> bool:
    """Whether a unique key consists of several references."""
    inner = _widest([columns for columns in linked if set(columns) <= set(unique)])
    return len(inner) > 1 and {column for columns in inner for column in columns} == set(unique)
