"""What a schema change means for the lake. Pure: descriptions before and now in, decisions out.

Postgres does not decode DDL: a change shows only in the description that precedes the next rows. A renamed column
keeps its number (attnum). Where another column takes a name, the raw table's column of that name continues with it.
For what neither the stream nor the catalog shows (that, a rewrite, an attached partition's rows) the table is resynced.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

from ingestion.schema.declared_columns import keyed_by
from ingestion.schema.facts import TOPIC, ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.schema.renumbered import renumbered
from ingestion.schema.types import SourceType, target_type
from ingestion.schema.types.declared import declared_type
from lakehouse.declarations import RawTable

Versions = tuple[TableFacts, ...]
_PLAIN = {"pg_catalog.textout", "pg_catalog.varcharout"}  # output functions that print alike


@dataclass(frozen=True)
class Change:
    """One alteration, as `meta.schema_changes` records it."""

    kind: str
    column: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Truncates:
    """The transactions (32 bits) that truncated a table in the stream, and those of them that inserted afterwards."""

    by: frozenset[int] = frozenset()
    refilled_by: frozenset[int] = frozenset()


NO_TRUNCATES = Truncates()


@dataclass(frozen=True)
class Step:
    """What is done to the raw table's columns: `rename` to another name, `add` or `widen` to a type, or `set aside`:
    renamed, so that a column of another type can begin under its name."""

    action: Literal["rename", "set aside", "add", "widen"]
    column: str
    to: str = ""
    type: IcebergType | None = None
    doc: str = ""

    @property
    def renames(self) -> bool:
        """Whether the column goes on under the name `to`."""
        return self.action in ("rename", "set aside")


def source_type(column: ColumnFacts) -> SourceType:
    """The column's type as the conversion table knows it."""
    return SourceType(oid=column.type_oid, name=column.type_name, typmod=column.typmod, kind=column.type_kind)


def lake_type(table: RawTable, column: ColumnFacts) -> IcebergType:
    """The type that a column lands in, by the mask with which it was described."""
    mask = table.raw.mask.get(column.name) if column.mask is None else column.mask
    return target_type(SourceType(25, "text") if mask == "sha256" else source_type(column)).iceberg


def name_columns(table: RawTable, before: TableFacts | None, now: TableFacts) -> TableFacts:
    """`now` with each column's name in the lake, those that nobody has any more, and the declared key and masks.

    A renamed column keeps its name in the lake while the declaration goes on naming it so, and no other column of the
    source has taken it; otherwise the lake follows.
    """
    same = before is not None and before.oid == now.oid
    kept = {c.number: c for c in before.columns} if before and same else {}
    declared = {table.raw.alias.get(name, name) for name in {c.name for c in table.columns} | set(table.key)}
    followed = {column.number: table.raw.alias.get(column.name, column.name) for column in now.columns}
    taken = {lake.lower() for lake in followed.values()}
    named = []
    for column in now.columns:
        old, lake = kept.get(column.number), followed[column.number]
        if old is not None and old.lake in declared and lake not in declared and old.lake.lower() not in taken:
            lake = old.lake
        named.append(replace(column, lake=lake, mask=table.raw.mask.get(column.name, "")))
    now = replace(now, columns=tuple(named))
    now = replace(now, keyed_by=keyed_by(table, before if same else None, now))
    return replace(now, gone=_gone(before, now)) if before else now


def _gone(before: TableFacts, now: TableFacts) -> tuple[str, ...]:
    """Names of the raw table's columns that no column of the source has any more."""
    go_on = {was.lake for was in continued(before, now).values() if was is not None}
    there = {column.lake.lower() for column in now.columns}
    left = {*before.gone, *(column.lake for column in before.columns)} - go_on
    return tuple(sorted(name for name in left if name.lower() not in there))


def continued(before: TableFacts, now: TableFacts) -> dict[int, ColumnFacts | None]:
    """By number of each column of `now`, the one of `before` whose column of the raw table it goes on in.

    The name decides: who reads the table by it saw the one's values, and sees the other's from now on. Only a name
    that the raw table has not yet moves a column of it, and only when its former name is free.
    """
    held: dict[str, ColumnFacts | None] = dict.fromkeys(map(str.lower, before.gone))
    held |= {c.lake.lower(): c for c in before.columns}
    names = {c.lake.lower() for c in now.columns}
    free = {c.number: c for c in before.columns if c.lake.lower() not in names and before.oid == now.oid}
    return {c.number: held.get(c.lake.lower(), free.get(c.number)) for c in now.columns}


def changes(before: TableFacts, now: TableFacts) -> tuple[Change, ...]:
    """What was altered, in words."""
    found = []
    if before.relation != now.relation:
        found.append(Change("table renamed", None, ".".join(before.relation), ".".join(now.relation)))
    if before.oid != now.oid:
        return (*found, Change("table made again", None, None, None))
    if before.replica_identity != now.replica_identity:
        found.append(Change("replica identity", None, before.replica_identity, now.replica_identity))
    if before.keyed_by not in (None, now.keyed_by):
        found.append(Change("key declared", None, *(", ".join(facts.told_apart_by) or None for facts in (before, now))))
    old, new = ({c.number: c for c in facts.columns} for facts in (before, now))
    for number in sorted(old.keys() | new.keys()):
        was, now_is = old.get(number), new.get(number)
        if was is None and now_is is not None:
            found.append(Change("column added", now_is.name, None, now_is.declared_type))
        elif now_is is None and was is not None:
            found.append(Change("column dropped", was.name, was.declared_type, None))
        elif was is not None and now_is is not None:
            if was.name != now_is.name:
                found.append(Change("column renamed", now_is.name, was.name, now_is.name))
            if was.declared_type != now_is.declared_type:
                found.append(Change("type changed", now_is.name, was.declared_type, now_is.declared_type))
            if was.mask not in (None, now_is.mask):
                found.append(Change("mask declared", now_is.name, was.mask or None, now_is.mask or None))
    return tuple(found)


def resync_reason(before: TableFacts, now: TableFacts, truncates: Truncates = NO_TRUNCATES) -> str | None:
    """Why the stream alone cannot have told what the table holds now; None when it has.

    `truncates` are those of the stream: a TRUNCATE also moves the table to a new file.
    """
    if before.oid != now.oid:
        return "the relation was dropped and made again"
    if before.member != now.member:
        return "it had left the publication for a while"
    if before.publishes and before.publishes != now.publishes:
        return "its publication was altered, and may have left changes out"
    if before.filenode != now.filenode and not _only_truncated(before, now, truncates):
        return "its rows are in a new file (ALTER TYPE, a volatile default, VACUUM FULL, CLUSTER, TRUNCATE or the like)"
    if reason := _partition_resync_reason(before, now, truncates):
        return reason
    old = {c.number for c in before.columns}
    hidden = dict(before.hidden)
    went_on, gone = continued(before, now), {name.lower() for name in before.gone}
    for column in now.columns:
        was = went_on[column.number]
        if column.number in hidden:
            return f"column {column.name} had been left out"
        if column.number not in old and column.has_default_for_earlier_rows:
            return f"column {column.name} was added with a default, which earlier rows now have"
        if was.number != column.number if was else column.lake.lower() in gone:
            return f"column {column.name} is another one than it was, by the same name"
        if was is not None and _prints_otherwise(was, column):
            return f"the type of column {column.name} was altered, and with it how values are printed"
    return renumbered(before, now) or _declared_otherwise(before, now)


def _declared_otherwise(before: TableFacts, now: TableFacts) -> str | None:
    """Why rows that have landed are not as they are declared now. Those of a topic stay: nothing could restate them."""
    if now.relkind == TOPIC:
        return None
    if before.keyed_by not in (None, now.keyed_by):
        return "its key is declared otherwise"
    went_on = continued(before, now)
    for column in now.columns:
        was = went_on[column.number]
        if was is not None and was.mask not in (None, column.mask):
            return f"the mask of column {column.name} is declared otherwise"
    return None


def _prints_otherwise(was: ColumnFacts, now: ColumnFacts) -> bool:
    """Whether a stored value may read otherwise although nothing was rewritten."""
    functions = {was.output_function, now.output_function}
    if was.type_oid != now.type_oid and len(functions) > 1 and not functions <= _PLAIN:
        return True
    said = dict(was.prints or ())
    return any(said.get(part, says) != says for part, says in now.prints or ())


def _only_truncated(before: TableFacts, now: TableFacts, truncates: Truncates) -> bool:
    """Whether a TRUNCATE in the stream gave the table its new file, and nothing that the stream does not tell.

    What changes values (ALTER TYPE, a volatile default), or attaches and detaches the table, writes a column's row of
    the catalog too; VACUUM FULL and CLUSTER change no value. Rows may come unseen while a table is UNLOGGED, which
    Postgres refuses only where the table itself is a member of a publication.
    """
    unaltered = before.attribute_rows is not None and before.attribute_rows == now.attribute_rows
    return unaltered and now.member != 0 and _may_have_truncated(now, truncates)


def _may_have_truncated(now: TableFacts, truncates: Truncates) -> bool:
    """Whether the transaction that last wrote the table's pg_class row is one of the stream's truncates, or came later.

    In a savepoint it is a subtransaction: that has a later id, which the stream does not tell. A partition may have
    been truncated later as one of a root that was published for a while, and the stream would not tell that either.
    """
    if now.is_partition:
        return now.changed_by in truncates.by
    return any((now.changed_by - xid) % (1 << 32) < 1 << 31 for xid in truncates.by)


def _partition_resync_reason(before: TableFacts, now: TableFacts, truncates: Truncates) -> str | None:
    old, new = ({leaf.oid: leaf for leaf in facts.leaves} for facts in (before, now))
    if gone := [leaf.name for oid, leaf in old.items() if oid not in new]:
        return f"partition {', '.join(gone)} was detached or dropped"
    for oid, leaf in new.items():
        if oid not in old and leaf.has_rows:
            return f"partition {leaf.name} is new and has rows"
        emptied = leaf.changed_by in truncates.by - truncates.refilled_by and not leaf.has_rows
        if oid in old and old[oid].filenode != leaf.filenode and not emptied:
            return f"partition {leaf.name} was truncated or rewritten by itself, or in a savepoint"
    were, are = dict(before.edges or ()), dict(now.edges or ())
    if again := [oid for oid, attached_by in were.items() if are.get(oid, attached_by) != attached_by]:
        names = ", ".join(new[oid].name if oid in new else "with partitions of its own" for oid in again)
        return f"partition {names} was detached for a while"
    return None


def steps(
    table: RawTable, before: TableFacts, now: TableFacts, *, consent: bool, earlier: Versions = ()
) -> tuple[Step, ...]:
    """How the raw table follows, columns as they are called in the lake.

    A type that Iceberg cannot widen to raises TableProblem, unless the user has given `consent`: then the old values
    are set aside under a name of their own and the column begins anew. So are those of a column that was dropped
    earlier; `earlier` are the descriptions before `before` that rows may still be of.
    """
    known = [column for facts in (before, *reversed(earlier)) for column in facts.columns]
    taken = {c.lake.lower() for c in (*known, *now.columns)}
    asides: dict[str, str] = {}
    renames: list[Step] = []
    found: list[Step] = []
    for column, was in zip(now.columns, continued(before, now).values(), strict=True):
        type_ = lake_type(table, column)
        step = Step("widen", column.lake, type=type_, doc=column.declared_type)
        if was is None:
            found.append(replace(step, action="add"))
            same = [other for other in known if other.lake.lower() == column.lake.lower()]
            for other in same:
                if not fits(lake_type(table, other), type_):
                    name = set_aside_name(other.lake, lake_type(table, other), {*taken, *asides.values()})
                    asides.setdefault(other.lake, name)
            spelled = {*(other.lake for other in same), *before.gone} - {column.lake, *asides}
            renames += [Step("rename", n, to=column.lake) for n in spelled if n.lower() == column.lake.lower()]
            continue
        had = lake_type(table, was)
        if fits(had, type_):
            if widens(had, type_):
                found.append(step)
            if was.lake != column.lake:
                renames.append(Step("rename", was.lake, to=column.lake))
            continue
        aside = set_aside_name(was.lake, had, {*taken, *asides.values()})
        if not consent:
            raise _cannot_widen(table, was, column, aside)
        asides[was.lake] = aside
        found.append(replace(step, action="add"))
    return (*(Step("set aside", name, to=aside) for name, aside in asides.items()), *renames, *found)


def _cannot_widen(table: RawTable, was: ColumnFacts, column: ColumnFacts, aside: str) -> TableProblem:
    if was.mask not in (None, column.mask):
        had, lands = lake_type(table, was), lake_type(table, column)
        says = f"the mask of column {column.name} is declared otherwise, so in the lake it was {had} and is {lands}: "
    else:
        says = (
            f"column {column.name} was {was.declared_type} and is {column.declared_type}, which the lake's type cannot "
            "become: correct data_type in the declaration, "
        )
    remedy = (
        f"run `lakehouse scaffold`, then `lakehouse ingest --resume {table.source}.{table.name}` "
        f"(the values so far stay under the name {aside})"
    )
    return TableProblem(table.source, table.name, says + remedy)


def set_aside_name(name: str, type_: IcebergType, taken: Collection[str]) -> str:
    """Under which name the values of a former type, or of a column that is gone, stay: it tells their type in the lake.

    `taken` are in lower case, as Trino compares.
    """
    return unused(f"{name}__{re.sub(r'[^a-z0-9]+', '_', str(type_))}".rstrip("_"), taken)


def unused(name: str, taken: Collection[str]) -> str:
    """The name, longer where it is taken; `taken` are in lower case, as Trino compares."""
    while name.lower() in taken:
        name += "_"
    return name


def rename_in(versions: Versions, steps: Iterable[Step]) -> Versions:
    """Earlier descriptions with the names that their columns have in the lake once the steps are taken."""
    renames = [(step.column, step.to) for step in steps if step.renames]

    def by_now(name: str) -> str:
        for column, to in renames:
            name = to if name == column else name
        return name

    return tuple(
        replace(facts, columns=tuple(replace(c, lake=by_now(c.lake)) for c in facts.columns)) for facts in versions
    )


def fits(had: IcebergType, wanted: IcebergType) -> bool:
    """Whether a column of the one type can go on with the other: it is as wide, or becomes so."""
    return had == wanted or widens(had, wanted) or widens(wanted, had)


def suits(data_type: str | None, mask: str | None, landed: IcebergType) -> bool:
    """Whether a column of the lake is of the type that it is declared with and masked, or of one that widens to that;
    without a declared type any suits."""
    if data_type is None:
        return True
    wanted = declared_type("text" if mask == "sha256" else data_type)
    return landed == wanted or widens(landed, wanted)


def widens(had: IcebergType, to: IcebergType) -> bool:
    """Whether Iceberg can promote one type to the other (Iceberg specification, "Schema Evolution")."""
    if isinstance(had, IntegerType):
        return isinstance(to, LongType)
    if isinstance(had, FloatType):
        return isinstance(to, DoubleType)
    if isinstance(had, DecimalType) and isinstance(to, DecimalType):
        return had.scale == to.scale and had.precision <= to.precision
    return False


def prune(versions: Versions, position: int) -> Versions:
    """Leaves out the descriptions that nothing from `position` on can be of."""
    surely = [index for index, facts in enumerate(versions) if facts.lsn <= position]
    return versions[surely[-1] :] if surely else versions
