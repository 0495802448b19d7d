"""Checks by their numbers that excluded and masked columns still are, also under new names."""

from dataclasses import replace

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.state import store
from lakehouse.declarations import RawTable


def check_withheld(table: RawTable, position: store.TablePosition | None, described: TableFacts) -> None:
    """Raises TableProblem where a column would show more than by the last description of the table."""
    if position and position.versions:
        check_still_withheld(table, position.facts, described)
    elif position and position.former:
        check_still_withheld(table, _as_declared(table, position.former), described)


def _as_declared(table: RawTable, former: TableFacts) -> TableFacts:
    """A table snapshotted again after an exclusion was withdrawn gets the column, also under a new name."""
    return replace(former, hidden=tuple(pair for pair in former.hidden if pair[1] in table.raw.exclude))


def check_still_withheld(table: RawTable, before: TableFacts, now: TableFacts) -> None:
    """Raises TableProblem where a column that was left out or masked would land under another name, or as a digest
    where it did not land at all."""
    hidden, kept = dict(before.hidden), {c.number: c.name for c in before.columns}
    for column in now.columns if before.oid == now.oid else ():
        was = hidden.get(column.number) or kept.get(column.number, column.name)
        formerly = "null" if column.number in hidden else table.raw.mask.get(was)
        if was != column.name and _shows(table.raw.mask.get(column.name)) > _shows(formerly):
            raise TableProblem(
                table.source,
                table.name,
                f"column {was} is called {column.name} now, and was "
                f"left out or masked: name {column.name} in meta.raw.exclude or mask, to show no more of it, then "
                f"`lakehouse ingest --resume {table.source}.{table.name}`",
            )


def _shows(mask: str | None) -> int:
    """How much of a value lands: nothing, its digest, all of it."""
    return ("null", "sha256", None).index(mask)
