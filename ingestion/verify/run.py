"""Reconciles the `current_` views of declared tables, one snapshot of the source per table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ingestion.schema.compared import stand_ins
from ingestion.sources.base import OpenSource
from ingestion.sources.kinds import source_of
from ingestion.verify.canonical import order_key
from ingestion.verify.compare import Layout, TableComparison, compare
from ingestion.verify.differences import is_stand_in
from ingestion.verify.streams import Pair, lake_rows, lake_session, pair_columns, source_rows
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from trino.dbapi import Connection

Chosen = list[tuple[Source, list[RawTable]]]
EVENTS = "read from topics of events, which come once: there is no table to compare with"
BEHIND = (
    "read from topics, which have no point in common with the database: `--views` compares it as it was last loaded"
)


def reconcile(settings: Settings, declarations: Declarations, wanted: Sequence[str] = ()) -> Iterator[TableComparison]:
    """Compares the wanted tables (`source`, `source.table`; all when empty), yielding each as it is done; one without a
    key has no view.

    Raises LakehouseError for an unknown name, a server that does not answer, or a view that is not built.
    """
    chosen, logs = without_logs(settings, select(declarations, wanted), views=True)
    yield from logs
    for source, tables in chosen:
        of_source = source_of(settings.behind(source.name), source.name)
        with lake_session(settings) as lake:
            for table in tables:
                if not table.key:
                    yield TableComparison(
                        table.source, table.name, (), aside="without a key, so it has no current view"
                    )
                    continue
                # held for no longer than this table takes
                with of_source.open() as opened, opened.at_one_moment():
                    result = _compare_table(opened, lake, table)
                yield result


def select(declarations: Declarations, wanted: Sequence[str]) -> Chosen:
    """The tables that names such as `retail` and `bank.users` stand for, grouped by source."""
    if not wanted:
        return [(source, list(source.tables)) for source in declarations.sources]
    chosen: dict[str, list[RawTable]] = {}
    for name in wanted:
        tables = [declarations.named(name)] if "." in name else declarations.source(name).tables
        known = chosen.setdefault(name.partition(".")[0], [])
        known.extend(table for table in tables if table not in known)
    return [(declarations.source(name), tables) for name, tables in chosen.items()]


def without_logs(
    settings: Settings, chosen: Chosen, *, views: bool = False
) -> tuple[Chosen, list[TableComparison]]:  # fmt: skip
    """The tables that can be compared, and what is said of those whose source holds no tables. Where `views` are
    compared, the database behind topics holds them."""
    compared, said = [], []
    for source, tables in chosen:
        is_behind = getattr(settings.connection(source.name), "url", None) is not None
        if source_of(settings, source.name).holds_tables or (views and is_behind):
            compared.append((source, tables))
        else:
            says = BEHIND if is_behind else EVENTS
            said += [TableComparison(table.source, table.name, (), aside=says) for table in tables]
    return compared, said


def _compare_table(source: OpenSource, lake: Connection, table: RawTable) -> TableComparison:
    started = time.monotonic()
    pairs, absent = pair_columns(lake, source, table)
    if not pairs:
        raise LakehouseError(f"source {table.source!r}, table {table.name!r}: the lake has none of its columns")
    key = [pair for name in table.key for pair in pairs if pair.source.name == name]
    result = TableComparison(table.source, table.name, tuple(pair.source.name for pair in pairs), absent_columns=absent)
    compare(
        result,
        _layout(table, pairs, key),
        source_rows(source, table, pairs, key),
        lake_rows(lake, table, pairs, key),
    )
    result.seconds = time.monotonic() - started
    return result


def _layout(table: RawTable, pairs: list[Pair], key: list[Pair]) -> Layout:
    return Layout(
        columns=tuple(pair.source.name for pair in pairs),
        key=tuple(pairs.index(pair) for pair in key),
        order=tuple(order_key(pair.lake_type) for pair in key),
        replaced=_replaced(table, pairs),
    )


def _replaced(table: RawTable, pairs: list[Pair]) -> Callable[[int, str, str | None], bool]:
    """Which differences the table's `on_unrepresentable` policy explains."""
    known = [stand_ins(table.raw.on_unrepresentable, pair.lake_type) for pair in pairs]
    return lambda index, ours, theirs: is_stand_in(known[index], ours, theirs)
