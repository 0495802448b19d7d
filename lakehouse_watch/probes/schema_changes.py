"""What was altered in a source, as `meta.schema_changes` has it: told for a day, or until nothing is left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ingestion.schema.evolve import lake_type, suits
from ingestion.state import store
from ingestion.state.store import TablePosition
from lakehouse.declarations import RawTable
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_tables

Row = Mapping[str, Any]
TOLD_FOR = timedelta(hours=24)  # an older schema change is no news, also to a watch that starts now
NEWS = timedelta(minutes=5)  # so long it is told that a table was read anew, also where that was done at once
SHOWN = 5  # changes of a table in one alert
ANEW = "table made again"


class Standing(NamedTuple):
    """A table now: the epoch of its source, where it stands, and its declaration. None is what cannot be told, or is
    not there any more."""

    epoch: int | None = None
    position: TablePosition | None = None
    declared: RawTable | None = None


Find = Callable[[str], Standing | None]


def standings(settings: Settings, source: str) -> Find:
    """By table of the source; None for one that is declared no longer."""
    epoch, positions, tables = None, dict[str, TablePosition](), declared_tables(settings)
    with connect_catalog(settings) as connection:
        if store.has_state(connection) and (stream := store.read_stream(connection, source)) is not None:
            epoch, positions = stream.epoch, store.read_positions(connection, source)

    def standing(table: str) -> Standing | None:
        if tables is not None and (source, table) not in tables:
            return None
        return Standing(epoch, positions.get(table), (tables or {}).get((source, table)))

    return standing


def altered(rows: Sequence[Row], now: datetime, find: Callable[[str], Find]) -> list[Occasion]:
    """One for all that was noticed of a table at once, as of a transaction with several statements; `find` has the
    standings of a source."""
    noticed: dict[tuple[str, str, datetime], list[Row]] = {}
    for row in rows:
        noticed.setdefault((row["source"], row["table"], row["noticed_at"]), []).append(row)
    by_source = {source: find(source) for source in {source for source, _, _ in noticed}}
    return [
        occasion
        for (source, table, at), group in noticed.items()
        if not is_over(group, by_source[source](table), now - at)
        for occasion in _told(group)
    ]


def is_over(rows: Sequence[Row], standing: Standing | None, age: timedelta) -> bool:
    """Whether nothing is left to do for what was noticed at once of a table so long ago: the table is declared no
    longer, its source was recovered since, or the table streams and is declared as it is now. Pure."""
    if standing is None:
        return True
    epoch, position, declared = standing
    if epoch is not None and epoch > rows[0]["epoch"]:
        return True
    if position is None or declared is None or position.state != "streaming" or not position.versions:
        return False
    is_news = age < NEWS and any(row["kind"] == ANEW or row["after"] == "stale" for row in rows)
    return not is_news and all(_agrees(row, position, declared) for row in rows)


def _agrees(row: Row, position: TablePosition, declared: RawTable) -> bool:
    """Whether the declaration says of what was altered what the source has now."""
    if row["kind"] == "table renamed":
        return declared.relation == position.facts.relation
    named = {row["column"], row["before"] if row["kind"] == "column renamed" else None} - {None}
    return all(_is_as_declared(str(name), position, declared) for name in named)


def _is_as_declared(name: str, position: TablePosition, declared: RawTable) -> bool:
    there = {column.name: column for column in position.facts.columns}
    existing = {*there, *(hidden for _, hidden in position.facts.hidden)}
    types = {column.name: column.data_type for column in declared.columns}
    if (name in existing) != (name in {*types, *declared.raw.exclude}):
        return False
    return name not in there or suits(types.get(name), declared.raw.mask.get(name), lake_type(declared, there[name]))


def _told(rows: Sequence[Row]) -> Iterator[Occasion]:
    """What the source has changed, and where that is nothing, why the lake reads the table anew.

    A table that is parked has an alert of its own, and one that is in the cut again needs none.
    """
    first, moves = rows[0], [row for row in rows if row["kind"] == f"table {row['after']}"]
    changes = [_in_words(row) for row in rows if row not in moves]
    name = f"{first['source']}.{first['table']}"
    key = f"schema/{name}/{first['noticed_at'].isoformat()}"
    if changes:
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        effect = next(row["effect"] for row in rows if row not in moves)
        yield Occasion(
            key, f"the source has changed {name}: {', '.join(changes[:SHOWN])}{more}; in the lake: {effect}",
            "see that declaration and models agree with it", "warning", first["source"], ends=False,
        )  # fmt: skip
    elif anew := [row["effect"] for row in moves if row["after"] == "stale"]:
        yield Occasion(
            key, f"{name} is read anew: {anew[0]}", "see that this was meant", "warning", first["source"], ends=False
        )


def _in_words(row: Row) -> str:
    """`column added: discount (numeric)`, `type changed: price (integer → bigint)`, `table made again`."""
    values = " → ".join(filter(None, (row["before"], row["after"])))
    of = f"{row['column']} ({values})" if row["column"] and values else row["column"] or values
    return f"{row['kind']}: {of}" if of else row["kind"]
