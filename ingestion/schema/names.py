"""The names that a table's columns bear in the lake: no two of them one name, as Trino compares them."""

from collections.abc import Iterator

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from lakehouse.declarations import METADATA_COLUMNS, RawTable

HIDDEN_IN_TRINO = ("$path", "$partition", "$file_modified_time")  # a table with such a column cannot be read there


def check_names(table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when two columns would bear one name in Trino."""
    for problem in colliding_names(table, facts):
        raise problem


def colliding_names(table: RawTable, facts: TableFacts) -> Iterator[TableProblem]:
    """One for each column that would bear the name of an earlier one in Trino."""
    taken = {*METADATA_COLUMNS, *HIDDEN_IN_TRINO}
    for name in (column.lake for column in facts.columns):
        if name.lower() in taken:
            yield TableProblem(
                table.source,
                table.name,
                f"column {name!r} collides (names are compared in lower "
                f"case, metadata columns included): declare meta.raw.alias: {{{name}: another_name}}",
            )
        taken.add(name.lower())
