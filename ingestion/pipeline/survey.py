"""What the cycle knows of each declared table before it reads: unaltered, altered, or with a problem of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyiceberg.expressions import In

from ingestion.pipeline.session import Session
from ingestion.schema.declared_columns import check_columns, problem_of_former_key
from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.names import check_names
from ingestion.schema.problem import TableProblem
from ingestion.sink.raw_tables import landed_key
from ingestion.sources.base import GoesOn, OpenSource
from ingestion.state import store
from ingestion.state.withheld import check_withheld
from lakehouse.catalog.open import load_table
from lakehouse.declarations import RawTable

Described = dict[str, tuple[str, TableFacts]]
CHANGES = {"kafka": {"c", "d"}, "debezium": {"u", "d"}}  # in kind kafka each event is a version of its row


@dataclass(frozen=True)
class Outlook:
    """One table now: its description, with the columns' names in the lake, or the problem that is in the way.

    `seen` is the description where a problem keeps the lake from following it.
    """

    table: RawTable
    fingerprint: str
    facts: TableFacts | None = None
    problem: str | None = None
    seen: TableFacts | None = None

    @property
    def is_there(self) -> bool:
        """Whether the relation exists."""
        return (self.facts or self.seen) is not None


def survey(session: Session, source: OpenSource, positions: Mapping[str, store.TablePosition]) -> dict[str, Outlook]:
    """Inspects each declared table whose fingerprint is not the stored one.

    A table that resumes is always inspected: its fingerprint may be that of the problem for which it was parked.
    """
    found = source.fingerprints(session.source.tables)
    outlooks = {}
    for table in session.source.tables:
        position = positions.get(table.name)
        fingerprint = declared_fingerprint(table, found[table.name])
        if position and position.versions and position.fingerprint == fingerprint and position.state != "resuming":
            outlooks[table.name] = Outlook(table, fingerprint, position.facts)
        else:
            outlook = inspect(source, table, fingerprint, position, session.described)
            outlooks[table.name] = outlook if source.holds_tables else _of_topic(session, source, outlook, position)
    return outlooks


def _of_topic(session: Session, source: OpenSource, outlook: Outlook, position: store.TablePosition | None) -> Outlook:
    """A topic's outlook, with the problem that what has landed of it may be."""
    outlook = _by_key(session, outlook, position)
    begins = position is None or (position.state == "new" and not position.versions)
    if not (begins and isinstance(source, GoesOn)) or outlook.facts is None or outlook.problem is not None:
        return outlook
    is_there = load_table(session.catalog, *outlook.table.identifier) is not None
    try:
        source.check_beginning(outlook.table, outlook.facts, is_there=is_there)
        return outlook
    except TableProblem as problem:
        return replace(outlook, facts=None, problem=str(problem), seen=outlook.facts)


def _by_key(session: Session, outlook: Outlook, position: store.TablePosition | None) -> Outlook:
    """A topic's outlook, with a problem where changes have landed under another key, and more are about to land."""
    table, facts = outlook.table, outlook.facts
    if facts is None:
        return outlook
    former = _former_key(session, table, position)
    if former is None or not _is_another(table, former):
        return outlook
    if position is None or not position.versions:  # it may have been declared before
        then = f"--once {table.source}"
    elif position.lands or position.state == "resuming":
        then = f"--resume {table.source}.{table.name}"
    else:
        return outlook
    if not _has_changes(session, table):
        return outlook
    problem = problem_of_former_key(table, former, then)
    return replace(outlook, facts=None, problem=outlook.problem or str(problem), seen=facts)


def check_keys(session: Session, positions: Mapping[str, store.TablePosition]) -> None:
    """Raises TableProblem where changes of a topic have landed under another key: the next epoch forgets that one."""
    for table in session.source.tables:
        former = _former_key(session, table, positions.get(table.name))
        if former is not None and _is_another(table, former) and _has_changes(session, table):
            raise problem_of_former_key(table, former, f"--recover {table.source}")


def _is_another(table: RawTable, former: Collection[str]) -> bool:
    """Whether a key is declared, of other columns than the former one, which may have none."""
    return bool(table.key) and set(former) != set(table.key)


def _former_key(session: Session, table: RawTable, position: store.TablePosition | None) -> tuple[str, ...] | None:
    """The columns of the key under which changes have landed, none where they had no key; None where that is not known.
    By the raw table, where the position says nothing, or just which key there was before there was none."""
    told: tuple[str, ...] | None = None
    if position is not None and position.versions:
        followed = position.followed
        if followed.keyed_by is None:
            return None
        told = tuple(followed.told_apart_by)
        if len(told) == len(followed.keyed_by) and (followed.key or not told):
            return told
    raw = load_table(session.catalog, *table.identifier)
    landed = landed_key(raw) if raw is not None else None
    return landed if landed is not None else told or None


def _has_changes(session: Session, table: RawTable) -> bool:
    """Whether an event has landed that says of another row that it is not any more what it was."""
    raw = load_table(session.catalog, *table.identifier)
    if raw is None:
        return False
    return raw.scan(In(term="_op", literals=CHANGES[table.kind]), ("_op",), limit=1).to_arrow().num_rows > 0


def unaltered(source: OpenSource, outlooks: Mapping[str, Outlook]) -> bool:
    """Whether no table was altered since the survey."""
    if not outlooks:
        return True
    found = source.fingerprints([outlook.table for outlook in outlooks.values()])
    return all(declared_fingerprint(o.table, found[name]) == o.fingerprint for name, o in outlooks.items())


def withholding(outlooks: Mapping[str, Outlook]) -> dict[str, Outlook]:
    """The tables with columns that are left out or masked."""
    return {name: outlook for name, outlook in outlooks.items() if outlook.table.raw.exclude or outlook.table.raw.mask}


def declared_fingerprint(table: RawTable, found: str) -> str:
    """The source's digest with what of the declaration decides about columns, and about what has to arrive.

    An earlier release wrote other parts: so each table is described once, with its key and masks.
    """
    raw = table.raw
    declared = (table.key, sorted(raw.mask.items()), raw.exclude, sorted(raw.alias.items()), raw.changes)
    return f"{found}/{declared}/{sorted(c.name for c in table.columns)}"


def inspect(
    source: OpenSource, table: RawTable, fingerprint: str, position: store.TablePosition | None, known: Described
) -> Outlook:
    """Describes one table."""
    before = position.facts if position and position.versions else None
    described, problem = _described(source, table, fingerprint, before, known)
    if described is None:
        return Outlook(table, fingerprint, problem=_where_it_went(source, table, before) or str(problem))
    try:
        check_withheld(table, position, described)
        facts = name_columns(table, _going_on(source, position), described)
        check_names(table, facts, position.landed if position else ())
        check_columns(table, facts)
    except TableProblem as other:
        return Outlook(table, fingerprint, problem=str(problem or other), seen=described)
    if problem is not None:
        renamed = _where_it_went(source, table, before) if described.relation != table.relation else None
        return Outlook(table, fingerprint, facts, renamed or str(problem))
    return Outlook(table, fingerprint, facts)


def _going_on(source: OpenSource, position: store.TablePosition | None) -> TableFacts | None:
    """The description that the table goes on from: of a topic's, no event is of one that was not followed."""
    if position is None or not position.versions:
        return None
    return position.facts if source.holds_tables else position.followed


def _described(
    source: OpenSource, table: RawTable, fingerprint: str, before: TableFacts | None, known: Described
) -> tuple[TableFacts | None, TableProblem | None]:
    """What the source says of a table; of a new one, what it last said while the fingerprint stays.

    Each group of tables that is loaded is preceded by surveys of all: a thousand new ones were inspected a thousand
    times. Whether a partition has rows is no part of the fingerprint; what a topic holds is none, either.
    """
    if before is None and known.get(table.name, ("", None))[0] == fingerprint:
        return known[table.name][1], None
    described, problem = source.inspect(table, before.oid if before else None)
    is_whole = source.holds_tables and described is not None and problem is None and not described.leaves
    if before is None and described is not None and is_whole:
        known[table.name] = fingerprint, described
    return described, problem


def _where_it_went(source: OpenSource, table: RawTable, before: TableFacts | None) -> str | None:
    """What became of a relation that is not called as declared; None when it was never known."""
    if before is None:
        return None
    where = f"source {table.source!r}, table {table.name!r}: "
    name = source.name_of(before.oid)
    if table.raw.topic and name is not None:
        return None
    if table.raw.topic:
        return (
            f"{where}topic {table.raw.topic} was deleted: remove its declaration, or create it again, then `lakehouse "
            f"ingest --recover {table.source}` and `lakehouse ingest --resume {table.source}.{table.name}`"
        )
    where += f"relation {table.raw.relation}"
    if name is None:
        return f"{where} was dropped: remove its declaration, or make it again and resume the table"
    return f"{where} is called {'.'.join(name)} now: correct meta.raw.relation, then resume the table"
