"""Reading and refreshing mirrors, beside a plain copy of the same rows: CREATE TABLE AS in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Literal

import psycopg
from pyiceberg.table.snapshots import Snapshot

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.workloads import SOURCE, columns_of, insert
from ingestion import refresh_mirrors
from ingestion.mirrors.build import MirrorReport
from ingestion.verify import reconcile_raw
from lakehouse.catalog.open import open_catalog, total
from lakehouse.declarations import Column, Declarations
from lakehouse.declarations.policies import MirrorPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query

CHANGES, REFRESHES = 10_000, 3
PUBLISHES, PER_PUBLISH = 60, 1_000  # an interval of the refresh, at 1,000 changes a second
Mirror = MirrorPolicy | Literal["none"]
PACES: dict[str, Mirror] = {
    "no mirror": "none",
    **{f"mirror refreshed each {seconds} s": MirrorPolicy(refresh_seconds=seconds) for seconds in (60, 10)},
}
UPDATE = {"narrow": "amount = amount + 1", "wide": "n1 = n1 + 1, s1 = s1 || 'x'"}


def mirror_refreshes(bench: Bench) -> Results:
    """A refresh of a million wide rows with 10,000 updated ones."""
    return _refreshes(bench, "wide_mirrored", bench.rows(1_000_000))


def large_mirror_refreshes(bench: Bench) -> Results:
    """A refresh of ten million narrow rows with 10,000 updated ones."""
    return _refreshes(bench, "narrow_mirrored", bench.rows(10_000_000))


def mirror_publishes(bench: Bench) -> Results:
    """The time from a commit to its cut under a follower: without mirrors, and while it refreshes one all the time."""
    results: Results = {}
    with mirrored(bench, "wide_published", bench.rows(1_000_000)) as (connection, declarations):
        refreshed(bench, declarations)
        for _ in range(2):  # in turn, so that neither has the older process
            for name, mirror in PACES.items():
                turn = paced(declarations, mirror)
                does = f"{PER_PUBLISH:,} updates of random keys of {bench.rows(1_000_000):,}, a second apart; {name}"
                result = results.setdefault(name, Measurement("s", does=does))
                with bench.following(turn):
                    for number in range(max(10, int(PUBLISHES * bench.scale))):
                        update_each(bench, connection, "wide_published", bench.rows(1_000_000), number)
                        committed = time.monotonic()
                        bench.wait_for_follower(turn)
                        result.add(time.monotonic() - committed)
                        time.sleep(max(0.0, 1.0 - result.runs[-1]))
        refreshed(bench, declarations)
        verify(bench, declarations)
    for result in results.values():
        result.notes = {"p95": round(statistics.quantiles(result.runs, n=20)[-1], 3)}
    return results


def paced(declarations: Declarations, mirror: Mirror) -> Declarations:
    """The same tables, whose mirrors are refreshed on this pace."""
    (source,) = declarations.sources
    tables = (table.model_copy(update={"mirror": mirror}) for table in source.tables)
    return Declarations(sources=(source.model_copy(update={"tables": tuple(tables)}),))


def _refreshes(bench: Bench, table: str, rows: int) -> Results:
    """Refreshes after updates of the newest keys, and of random ones, beside making a plain copy anew."""
    results: Results = {}
    with mirrored(bench, table, rows) as (connection, declarations):
        refreshed(bench, declarations)
        results["plain copy, made anew"] = _copies(bench, table)
        for which, keys in (("newest", _newest_keys), ("random", random_keys)):
            result = Measurement("s", does=f"a refresh with {CHANGES:,} updates of {which} keys of {rows:,} rows")
            anew = 0
            for run in range(bench.runs):
                change(bench, connection, declarations, keys(rows, run))
                before = _snapshots(bench, table)
                with bench.cost() as cost:
                    refreshed(bench, declarations)
                result.add(cost.seconds, cost)
                size, deletes = _written(bench, table, before)
                result.notes.setdefault("bytes written", []).append(size)
                anew += not deletes
            result.notes["written anew"] = anew
            results[f"{which} keys"] = result
        verify(bench, declarations)
    return results


@contextmanager
def mirrored(bench: Bench, table: str, rows: int) -> Iterator[tuple[psycopg.Connection, Declarations]]:
    """A table whose columns are all declared, in the lake."""
    with bench.tables(table, first_rows=(insert(table, 1, rows),)) as (connection, declarations):
        named = declaring_columns(declarations)
        bench.bring_up(named)
        yield connection, named


def declaring_columns(declarations: Declarations) -> Declarations:
    """The same tables with all of their columns declared, as mirrors need them."""
    (source,) = declarations.sources
    tables = (table.model_copy(update={"columns": _columns(table.name)}) for table in source.tables)
    return Declarations(sources=(source.model_copy(update={"tables": tuple(tables)}),))


def _columns(table: str) -> tuple[Column, ...]:
    return tuple(Column(name=column.name, data_type=None, description="") for column in columns_of(table))


def change(bench: Bench, connection: psycopg.Connection, declarations: Declarations, keys: str) -> None:
    """Updates the rows that meet a condition, and ingests that."""
    (table,) = (table.name for table in declarations.sources[0].tables)
    connection.execute(f"UPDATE {table} SET {UPDATE[table.split('_')[0]]} WHERE {keys}")
    bench.bring_up(declarations)


def update_each(bench: Bench, connection: psycopg.Connection, table: str, rows: int, number: int) -> int:
    """As many updates as a second has, of keys all over the table; how many."""
    step = rows // min(rows, bench.rows(PER_PUBLISH))
    keys = f"id IN (SELECT g FROM generate_series({number % step + 1}::bigint, {rows}, {step}) g)"
    return connection.execute(f"UPDATE {table} SET {UPDATE[table.split('_')[0]]} WHERE {keys}").rowcount


def _newest_keys(rows: int, run: int) -> str:
    return f"id > {rows - CHANGES}"


def random_keys(rows: int, run: int) -> str:
    """A condition that as many random keys meet as a refresh has changes."""
    step = max(1, rows // CHANGES)
    return f"id IN (SELECT g FROM generate_series({run % step + 1}::bigint, {rows}, {step}) g)"


def refreshed(bench: Bench, declarations: Declarations) -> tuple[MirrorReport, ...]:
    """Refreshes the mirrors; returns what was written."""
    return refresh_mirrors(bench.settings, declarations, SOURCE, bench.session).written


@contextmanager
def copied(bench: Bench, table: str) -> Iterator[None]:
    """Has a plain copy of the mirror, `marts.copy_of_<table>`, within the block."""
    _copy(bench, table)
    try:
        yield
    finally:
        query(bench.settings, f"DROP TABLE marts.copy_of_{table}")


def _copy(bench: Bench, table: str) -> None:
    query(bench.settings, "CREATE SCHEMA IF NOT EXISTS marts")
    query(bench.settings, f"CREATE TABLE marts.copy_of_{table} AS SELECT * FROM mirror_{SOURCE}.{table}")


def _copies(bench: Bench, table: str) -> Measurement:
    result = Measurement("s", does="CREATE TABLE AS of the same rows in Trino")
    for _ in range(bench.runs):
        begun = time.monotonic()
        with copied(bench, table):
            result.add(time.monotonic() - begun)
    return result


def _snapshots(bench: Bench, table: str) -> list[Snapshot]:
    with closing(open_catalog(bench.settings)) as catalog:
        return catalog.load_table((f"mirror_{SOURCE}", table)).snapshots()


def _written(bench: Bench, table: str, before: list[Snapshot]) -> tuple[int, int]:
    """Bytes, of rows and of deletes, and the rows deleted by position, since there were these snapshots."""
    known = {snapshot.snapshot_id for snapshot in before}
    new = [snapshot for snapshot in _snapshots(bench, table) if snapshot.snapshot_id not in known]
    return sum(total(s, "added-files-size") for s in new), sum(total(s, "added-position-deletes") for s in new)


def verify(bench: Bench, declarations: Declarations) -> None:
    """Raises LakehouseError unless every column of every row of the mirror is the source's."""
    for result in reconcile_raw(bench.settings, declarations, mirrors=True, spark=bench.session):
        if not result.equal:
            raise LakehouseError(f"the mirror of {result.table} differs from the source: {result.as_dict()}")
