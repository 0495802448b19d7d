"""Columns that came or went between two inspections, while names moved from one to another.

The stream names columns, and a name says which column is meant only while it belonged to one. Postgres never uses a
column's number again, and an altered column has a newer row in the catalog: by both it shows that a name may have had
another column for a while, and that rows of that time landed in the wrong one.
"""

from ingestion.schema.facts import TableFacts
from ingestion.schema.match import names_by_number


def renumbered(before: TableFacts, now: TableFacts) -> str | None:
    """Why a column's name may have belonged to another one between two inspections; None when it cannot have."""
    if before.attribute_rows is None or now.attribute_rows is None:
        return None
    were, are = dict(before.attribute_rows), dict(now.attribute_rows)
    had, has = names_by_number(before).keys(), names_by_number(now).keys()
    if are.keys() - were.keys() - has:
        return "a column was added and dropped again"
    added, dropped = has - had, had - has
    altered = {number for number in had & has if were.get(number) != are.get(number)}
    if (added and dropped) or ((added or dropped) and altered):
        return "columns were added or dropped while others were altered, so that a name may have been another one's"
    return None
