"""The names that a table's columns bear in the lake: no two of them one name, as Trino compares them."""

from collections.abc import Collection, Iterator

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from lakehouse.declarations import RESERVED_BY_ICEBERG, RawTable
from lakehouse.declarations.metadata_columns import OF_KINDS

OWN = "_lh_"  # what queries of views and loads call columns of their own
HIDDEN_IN_TRINO = ("$path", "$partition", "$file_modified_time")  # a table with such a column cannot be read there


def check_names(table: RawTable, facts: TableFacts, landed: Collection[str] = ()) -> None:
    """Raises TableProblem for the first of `colliding_names`."""
    for problem in colliding_names(table, facts, landed):
        raise problem


def colliding_names(table: RawTable, facts: TableFacts, landed: Collection[str] = ()) -> Iterator[TableProblem]:
    """One for each column that would bear the name of an earlier one in Trino, or one that is reserved.

    A reserved name that is `landed`, in the raw table since an earlier release, may stay: the table is not compacted.
    """
    taken = {*OF_KINDS[table.kind], *HIDDEN_IN_TRINO}
    for name in (column.lake for column in facts.columns):
        says = None
        if name.lower() in taken:
            says = "collides (names are compared in lower case, metadata columns included)"
        elif name.lower() in RESERVED_BY_ICEBERG and name not in landed:
            says = "has a name that Iceberg reserves"
        elif name.lower().startswith(OWN) and name not in landed:
            says = f"is called as columns that loads and views add ({OWN}…)"
        if says is not None:
            yield TableProblem(
                table.source,
                table.name,
                f"column {name!r} {says}: declare meta.raw.alias: {{{name}: another_name}}",
            )
        taken.add(name.lower())
