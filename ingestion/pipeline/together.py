"""Which tables share a consistent point. While it is held, others may wait in the source (in Postgres DDL on them, and
VACUUM of newer dead rows); so it is held for a bounded time, or for one table that takes longer.
"""

from collections.abc import Mapping, Sequence

from lakehouse.declarations import RawTable

HELD_SECONDS = 60.0  # a point older than that is let go before the next tables are begun


def first_together(tables: Sequence[RawTable], weights: Mapping[str, int], most: int) -> list[RawTable]:
    """The first of the tables, with those of the others that fit beside it, in their order."""
    chosen, left = [tables[0]], most - weights[tables[0].name]
    for table in tables[1:]:
        if weights[table.name] <= left:
            chosen.append(table)
            left -= weights[table.name]
    return chosen
