"""What is kept aside of a source in the tables of `meta`, beside its raw tables, and how it goes with these.

It has the values of the source's rows, and once the table that they are of is gone, nothing lands or erases them.
"""

from contextlib import closing

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo
from pyiceberg.table import Table

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.catalog.writing.commit import retried
from lakehouse.settings import Settings

KEPT_IN = ("spool", "quarantine", "unrepresentable")


def of_table(source: str, table: str | None = None) -> BooleanExpression:
    """The rows of a table of a source, or of all its tables."""
    mine = EqualTo(term="source", value=source)
    return mine if table is None else And(mine, EqualTo(term="table", value=table))


def kept_aside(settings: Settings, source: str, table: str | None = None) -> dict[str, int]:
    """How many rows each of the tables of `meta` has of it; those that have none are left out."""
    with closing(open_catalog(settings)) as catalog:
        found = {name: load_table(catalog, "meta", name) for name in KEPT_IN}
        mine = of_table(source, table)
        counts = {name: kept.scan(row_filter=mine).count() for name, kept in found.items() if kept is not None}
    return {name: count for name, count in counts.items() if count}


def forget_aside(settings: Settings, source: str, table: str | None = None) -> None:
    """Deletes them, for whoever keeps the source from being ingested; what snapshots of before have goes with these."""
    with closing(open_catalog(settings)) as catalog:
        for name in kept_aside(settings, source, table):
            _delete(catalog, name, of_table(source, table))


def _delete(catalog: SqlCatalog, name: str, mine: BooleanExpression) -> None:
    def delete(kept: Table) -> None:
        kept.delete(mine)

    retried(catalog, ("meta", name), delete)
