"""What the run-time role may read of a declared table: all of it, or all columns but those that must not land. Pure."""

from collections.abc import Iterator, Sequence

from ingestion.sources.postgres.setup.owner import Statement
from ingestion.sources.postgres.setup.relations import Stored
from lakehouse.declarations import RawTable
from lakehouse.text.sql import typed_ident as ident
from lakehouse.text.sql import typed_relation

Rights = tuple[str, list[str]]  # a quoted relation, and the columns of it that the role may SELECT
RANGES = "ctid"  # a snapshot reads ranges of the heap by it; a right on the table covers it


def relations_of(table: RawTable, stored: Sequence[Stored]) -> list[Rights]:
    """The table and its partitions, which a snapshot reads one by one."""
    mine = [item for item in stored if item.table == table.name]
    own = [(typed_relation(*table.relation), mine[0].root_reads)] if mine and mine[0].exists else []
    return own + [(item.quoted, item.reads) for item in mine if item.root_kind == "p" and item.name is not None]


def needed(table: RawTable, stored: Sequence[Stored]) -> list[str]:
    """The columns that the role has to read."""
    existing = next((item.columns for item in stored if item.table == table.name), [])
    return [*(name for name in existing if name not in table.raw.exclude), *([RANGES] if table.raw.exclude else [])]


def granting(table: RawTable, stored: Sequence[Stored], role: str) -> Iterator[Statement]:
    """What gives the role what it lacks; a column that it has already stays as it is in the catalog."""
    if not table.raw.exclude:
        own = typed_relation(*table.relation)
        for quoted in dict.fromkeys([own, *(quoted for quoted, _ in relations_of(table, stored))]):
            yield Statement(f"GRANT SELECT ON {quoted} TO {ident(role)}", ((table.name, quoted),))
        return
    for quoted, reads in relations_of(table, stored):
        if missing := [name for name in needed(table, stored) if name not in reads]:
            listed = ", ".join(map(ident, missing))
            yield Statement(f"GRANT SELECT ({listed}) ON {quoted} TO {ident(role)}", ((table.name, quoted),))


def tightening(table: RawTable, stored: Sequence[Stored], role: str) -> Iterator[Statement]:
    """What takes excluded columns from the role: all rights on the relation, as a right on it covers every column."""
    columns = ", ".join(map(ident, needed(table, stored)))
    for quoted, reads in relations_of(table, stored):
        if set(reads) & set(table.raw.exclude):
            yield Statement(f"REVOKE SELECT ON {quoted} FROM {ident(role)}", ((table.name, quoted),))
            yield Statement(f"GRANT SELECT ({columns}) ON {quoted} TO {ident(role)}", ((table.name, quoted),))
