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
from ingestion.mirrors.refresh import MirrorReport
from ingestion.verify import reconcile_raw
from lakehouse.catalog.open import open_catalog, total
from lakehouse.catalog.views.current_views import MARK, view_of
from lakehouse.declarations import Column, Declarations
from lakehouse.declarations.policies import MaintenancePolicy, MirrorPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from maintenance.actions.compact import compact
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

HISTORIES = ((1_000_000, 1), (1_000_000, 10), (100_000, 100))  # rows, versions of each
CHANGES, REFRESHES = 10_000, 3
PUBLISHES, PER_PUBLISH = 60, 1_000  # an interval of the refresh, at 1,000 changes a second
Mirror = MirrorPolicy | Literal["none"]
PACES: dict[str, Mirror] = {"no mirror": "none", "mirror refreshed each 10 s": MirrorPolicy(refresh_seconds=10)}
READ = {"narrow": "count(*), sum(amount), max(name)", "wide": "count(*), sum(n1), max(s1), min(t1), sum(f1)"}
UPDATE = {"narrow": "amount = amount + 1", "wide": "n1 = n1 + 1, s1 = s1 || 'x'"}
NIGHTLY = MaintenancePolicy.model_validate(
    {"schedule_group": "nightly", "compact": {"target_file_size_mb": 128, "min_input_files": 2, "sort_by": ["id"]}}
)


def mirror_reads(bench: Bench) -> Results:
    """A full scan with aggregation, and lookups of one key, in Trino: a plain copy, the mirror, the current view.

    The view over raw alone is what the current view would be without a mirror.
    """
    results: Results = {}
    for rows, versions in HISTORIES:
        table = f"wide_of_{versions}"
        with _mirrored(bench, table, bench.rows(rows)) as (connection, declarations):
            for _ in range(versions - 1):
                connection.execute(f"UPDATE {table} SET {UPDATE['wide']}")
                bench.bring_up(declarations)
            _refreshed(bench, declarations)
            with _copied(bench, table):
                _read(bench, table, versions, results, ("plain copy", "view over raw alone", "mirror, written anew"))
                for number in range(REFRESHES):
                    _change(bench, connection, declarations, _random_keys(bench.rows(rows), number))
                    _refreshed(bench, declarations)
                _read(bench, table, versions, results, ("plain copy", f"mirror, {REFRESHES} refreshes later"))
                with closing(Session(bench.settings)) as session:
                    compact(session, TableName(f"mirror_{SOURCE}", table), NIGHTLY)
                _make_fresh(bench, table, declarations)
                contenders = ("plain copy", "mirror, after maintenance", "fresh view, nothing after the refresh")
                _read(bench, table, versions, results, contenders)
                changes = _follow_on(bench, connection, declarations, bench.rows(rows))
                fresh = f"fresh view, {changes:,} changes in {PUBLISHES} publishes after the refresh"
                _read(bench, table, versions, results, ("plain copy", fresh))
                query(bench.settings, f"DROP VIEW {_view(table)}")
            _verify(bench, declarations)
    return results


def mirror_refreshes(bench: Bench) -> Results:
    """A refresh of a million wide rows with 10,000 updated ones."""
    return _refreshes(bench, "wide_mirrored", bench.rows(1_000_000))


def large_mirror_refreshes(bench: Bench) -> Results:
    """A refresh of ten million narrow rows with 10,000 updated ones."""
    return _refreshes(bench, "narrow_mirrored", bench.rows(10_000_000))


def mirror_publishes(bench: Bench) -> Results:
    """The time from a commit to its cut under a follower: without mirrors, and while it refreshes one all the time."""
    results: Results = {}
    with _mirrored(bench, "wide_published", bench.rows(1_000_000)) as (connection, declarations):
        _refreshed(bench, declarations)
        for _ in range(2):  # in turn, so that neither has the older process
            for name, mirror in PACES.items():
                paced = _paced(declarations, mirror)
                does = f"{PER_PUBLISH:,} updates of random keys of {bench.rows(1_000_000):,}, a second apart; {name}"
                result = results.setdefault(name, Measurement("s", does=does))
                with bench.following(paced):
                    for number in range(max(10, int(PUBLISHES * bench.scale))):
                        _update_each(bench, connection, "wide_published", bench.rows(1_000_000), number)
                        committed = time.monotonic()
                        bench.wait_for_follower(paced)
                        result.add(time.monotonic() - committed)
                        time.sleep(max(0.0, 1.0 - result.runs[-1]))
        _refreshed(bench, declarations)
        _verify(bench, declarations)
    for result in results.values():
        result.notes = {"p95": round(statistics.quantiles(result.runs, n=20)[-1], 3)}
    return results


def _paced(declarations: Declarations, mirror: Mirror) -> Declarations:
    (source,) = declarations.sources
    tables = (table.model_copy(update={"mirror": mirror}) for table in source.tables)
    return Declarations(sources=(source.model_copy(update={"tables": tuple(tables)}),))


def _refreshes(bench: Bench, table: str, rows: int) -> Results:
    """Refreshes after updates of the newest keys, and of random ones, beside making a plain copy anew."""
    results: Results = {}
    with _mirrored(bench, table, rows) as (connection, declarations):
        _refreshed(bench, declarations)
        results["plain copy, made anew"] = _copies(bench, table)
        for which, keys in (("newest", _newest_keys), ("random", _random_keys)):
            result = Measurement("s", does=f"a refresh with {CHANGES:,} updates of {which} keys of {rows:,} rows")
            anew = 0
            for run in range(bench.runs):
                _change(bench, connection, declarations, keys(rows, run))
                before = _snapshots(bench, table)
                with bench.cost() as cost:
                    _refreshed(bench, declarations)
                result.add(cost.seconds, cost)
                size, deletes = _written(bench, table, before)
                result.notes.setdefault("bytes written", []).append(size)
                anew += not deletes
            result.notes["written anew"] = anew
            results[f"{which} keys"] = result
        _verify(bench, declarations)
    return results


@contextmanager
def _mirrored(bench: Bench, table: str, rows: int) -> Iterator[tuple[psycopg.Connection, Declarations]]:
    """A table whose columns are all declared, in the lake."""
    with bench.tables(table, first_rows=(insert(table, 1, rows),)) as (connection, declarations):
        named = _declaring_columns(declarations)
        bench.bring_up(named)
        yield connection, named


def _declaring_columns(declarations: Declarations) -> Declarations:
    (source,) = declarations.sources
    tables = (table.model_copy(update={"columns": _columns(table.name)}) for table in source.tables)
    return Declarations(sources=(source.model_copy(update={"tables": tuple(tables)}),))


def _columns(table: str) -> tuple[Column, ...]:
    return tuple(Column(name=column.name, data_type=None, description="") for column in columns_of(table))


def _change(bench: Bench, connection: psycopg.Connection, declarations: Declarations, keys: str) -> None:
    (table,) = (table.name for table in declarations.sources[0].tables)
    connection.execute(f"UPDATE {table} SET {UPDATE[table.split('_')[0]]} WHERE {keys}")
    bench.bring_up(declarations)


def _make_fresh(bench: Bench, table: str, declarations: Declarations) -> None:
    """The current view as dbt marks it; then the refresh finds it."""
    query(bench.settings, "CREATE SCHEMA IF NOT EXISTS parsed")
    shown, raw = ", ".join(column.name for column in columns_of(table)), f"raw_{SOURCE}.{table}"
    query(
        bench.settings,
        f"CREATE OR REPLACE VIEW {_view(table)} COMMENT 'Measured. {MARK}none]' SECURITY DEFINER AS"
        f" SELECT {shown} FROM {raw} WHERE false",
    )
    _refreshed(bench, declarations)


def _view(table: str) -> str:
    return ".".join(view_of(SOURCE, table))


def _follow_on(bench: Bench, connection: psycopg.Connection, declarations: Declarations, rows: int) -> int:
    """Updates of random keys for as long as an interval, with a publish each second; how many."""
    changes = 0
    (table,) = (table.name for table in declarations.sources[0].tables)
    for number in range(PUBLISHES):
        changes += _update_each(bench, connection, table, rows, number)
        bench.bring_up(declarations)
    return changes


def _update_each(bench: Bench, connection: psycopg.Connection, table: str, rows: int, number: int) -> int:
    """As many updates as a second has, of keys all over the table; how many."""
    step = rows // min(rows, bench.rows(PER_PUBLISH))
    keys = f"id % {step} = {number % step}"
    return connection.execute(f"UPDATE {table} SET {UPDATE[table.split('_')[0]]} WHERE {keys}").rowcount


def _newest_keys(rows: int, run: int) -> str:
    return f"id > {rows - CHANGES}"


def _random_keys(rows: int, run: int) -> str:
    step = max(1, rows // CHANGES)
    return f"id % {step} = {run % step}"


def _refreshed(bench: Bench, declarations: Declarations) -> tuple[MirrorReport, ...]:
    return refresh_mirrors(bench.settings, declarations, SOURCE, bench.session).written


@contextmanager
def _copied(bench: Bench, table: str) -> Iterator[None]:
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
        with _copied(bench, table):
            result.add(time.monotonic() - begun)
    return result


def _read(bench: Bench, table: str, versions: int, results: Results, contenders: tuple[str, ...]) -> None:
    """Measures all contenders in turn; how many times the plain copy's seconds each one takes is in its notes."""
    scans: dict[str, list[float]] = {name: [] for name in contenders}
    lookups: dict[str, list[float]] = {name: [] for name in contenders}
    rows = query(bench.settings, f"SELECT max(id) FROM mirror_{SOURCE}.{table}")[0][0]
    for run in range(bench.runs + 1):  # the first run is a warm-up
        for name in contenders:
            relation = _relation(name, table)
            scan = _seconds(bench, f"SELECT {READ[table.split('_')[0]]} FROM {relation}")
            lookup = _seconds(bench, f"SELECT * FROM {relation} WHERE id = {1 + run * 7919 % rows}")
            if run:
                scans[name].append(scan)
                lookups[name].append(lookup)
    scanned, looked_up = (statistics.median(found["plain copy"]) for found in (scans, lookups))
    for name in contenders:
        result = Measurement("s", runs=scans[name], does=f"scan with aggregation, {versions} versions per key: {name}")
        result.notes = {
            "rows": rows,
            "scan, times a plain copy": round(statistics.median(scans[name]) / scanned, 2),
            "lookup s": round(statistics.median(lookups[name]), 3),
            "lookup, times a plain copy": round(statistics.median(lookups[name]) / looked_up, 2),
        }
        results.setdefault(f"{versions} versions: {name}", result)


def _relation(contender: str, table: str) -> str:
    if contender == "plain copy":
        return f"marts.copy_of_{table}"
    if contender.startswith("mirror"):
        return f"mirror_{SOURCE}.{table}"
    if contender.startswith("fresh"):
        return _view(table)
    columns = ", ".join(column.name for column in columns_of(table))
    order = "PARTITION BY id ORDER BY _epoch DESC, _commit_lsn DESC, _seq DESC"
    versions = f"SELECT *, row_number() OVER ({order}) AS nth FROM raw_{SOURCE}.{table}"
    return f"(SELECT {columns} FROM ({versions}) WHERE nth = 1 AND _op <> 'd')"


def _seconds(bench: Bench, sql: str) -> float:
    begun = time.monotonic()
    query(bench.settings, sql)
    return time.monotonic() - begun


def _snapshots(bench: Bench, table: str) -> list[Snapshot]:
    with closing(open_catalog(bench.settings)) as catalog:
        return catalog.load_table((f"mirror_{SOURCE}", table)).snapshots()


def _written(bench: Bench, table: str, before: list[Snapshot]) -> tuple[int, int]:
    """Bytes, of rows and of deletes, and the rows deleted by position, since there were these snapshots."""
    known = {snapshot.snapshot_id for snapshot in before}
    new = [snapshot for snapshot in _snapshots(bench, table) if snapshot.snapshot_id not in known]
    return sum(total(s, "added-files-size") for s in new), sum(total(s, "added-position-deletes") for s in new)


def _verify(bench: Bench, declarations: Declarations) -> None:
    """Raises LakehouseError unless every column of every row of the mirror is the source's."""
    for result in reconcile_raw(bench.settings, declarations, mirrors=True, spark=bench.session):
        if not result.equal:
            raise LakehouseError(f"the mirror of {result.table} differs from the source: {result.as_dict()}")
