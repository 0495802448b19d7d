"""Reading mirrors and fresh views in Trino, beside a plain copy of the same rows: CREATE TABLE AS in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import load_average, measured
from benchmarks.scenarios.mirrors import (
    PUBLISHES,
    change,
    copied,
    mirrored,
    random_keys,
    refreshed,
    update_each,
    verify,
)
from benchmarks.workloads import SOURCE, columns_of
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views.current_views import MARK, view_of
from lakehouse.catalog.views.view_versions import LONG, current_version
from lakehouse.declarations import Declarations
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect, query
from lakehouse_stack.control.start_stop import running
from maintenance.actions.compact import compact
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

HISTORIES = ((1_000_000, 1), (1_000_000, 10), (100_000, 100))  # rows, versions of each
LARGE = ((10_000_000, 1), (10_000_000, 10))
REFRESHES, WARM_UPS = 3, 10  # a server that has compiled nothing yet takes three times as long
READ = {"narrow": "count(*), sum(amount), max(name)", "wide": "count(*), sum(n1), max(s1), min(t1), sum(f1)"}
UPDATED = {"narrow": "amount = amount + 1", "wide": "n1 = n1 + 1, s1 = s1 || 'x'"}
NIGHTLY = MaintenancePolicy.model_validate(
    {"schedule_group": "nightly", "compact": {"target_file_size_mb": 128, "min_input_files": 2, "sort_by": ["id"]}}
)
COPY, ALONE = "plain copy", "view over raw alone"
FRESH, LONG_TEXT = "fresh view", "long text of the fresh view"  # which it has where updates leave values out
Grow = Callable[[psycopg.Connection, Declarations, str], None]


@dataclass
class _Read:
    """The seconds of reads, the CPU seconds of Trino's process, and the splits that Trino made."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    splits: int = 0


def mirror_reads(bench: Bench) -> Results:
    """A full scan with aggregation, and lookups of one key, in Trino: a plain copy, the mirror, the current view.

    The view over raw alone is what the current view would be without a mirror.
    """
    results: Results = {}
    for rows, versions in HISTORIES:

        def grow(connection: psycopg.Connection, declarations: Declarations, table: str, count: int = versions) -> None:
            for _ in range(count - 1):
                connection.execute(f"UPDATE {table} SET {UPDATED['wide']}")
                bench.bring_up(declarations)

        _reads(bench, f"wide_of_{versions}", bench.rows(rows), versions, results, grow, alone=True)
    return results


def large_mirror_reads(bench: Bench) -> Results:
    """The same of ten million narrow rows. Trino writes their earlier versions: the source would take an hour."""
    results: Results = {}
    for rows, versions in LARGE:

        def grow(connection: psycopg.Connection, declarations: Declarations, table: str, count: int = versions) -> None:
            if count > 1:
                _earlier_versions(bench, table, count - 1)

        _reads(bench, f"narrow_of_{versions}", bench.rows(rows), versions, results, grow, alone=False)
    return results


def _reads(bench: Bench, table: str, rows: int, versions: int, results: Results, grow: Grow, *, alone: bool) -> None:
    with mirrored(bench, table, rows) as (connection, declarations):
        grow(connection, declarations, table)
        refreshed(bench, declarations)
        with copied(bench, table):
            before = (COPY, *([ALONE] if alone else []), "mirror, written anew")
            _read(bench, table, versions, results, before)
            for number in range(REFRESHES):
                change(bench, connection, declarations, random_keys(rows, number))
                refreshed(bench, declarations)
            _read(bench, table, versions, results, (COPY, f"mirror, {REFRESHES} refreshes later"))
            with closing(Session(bench.settings)) as session:
                compact(session, TableName(f"mirror_{SOURCE}", table), NIGHTLY)
            with _fresh_view(bench, table, declarations):
                tail = "nothing after the refresh"
                after = (COPY, "mirror, after maintenance", f"{FRESH}, {tail}", f"{LONG_TEXT}, {tail}")
                _read(bench, table, versions, results, after)
                changes = _follow_on(bench, connection, declarations, rows)
                tail = f"{changes:,} changes in {PUBLISHES} publishes after the refresh"
                _read(bench, table, versions, results, (COPY, f"{FRESH}, {tail}", f"{LONG_TEXT}, {tail}"))
        verify(bench, declarations)


def _earlier_versions(bench: Bench, table: str, count: int) -> None:
    """Gives each row of raw so many versions from before it was read: what stands for the row stays the newest."""
    raw = f"raw_{SOURCE}.{table}"
    names = [name for name, *_ in query(bench.settings, f"DESCRIBE {raw}")]
    shown = ", ".join(f"{name} - n AS {name}" if name == "_commit_lsn" else name for name in names)
    query(
        bench.settings, f"INSERT INTO {raw} SELECT {shown} FROM {raw} CROSS JOIN UNNEST(sequence(1, {count})) AS v (n)"
    )


@contextmanager
def _fresh_view(bench: Bench, table: str, declarations: Declarations) -> Iterator[None]:
    """The current view as dbt marks it; then the refresh finds it."""
    query(bench.settings, "CREATE SCHEMA IF NOT EXISTS parsed")
    shown, raw = ", ".join(column.name for column in columns_of(table)), f"raw_{SOURCE}.{table}"
    query(
        bench.settings,
        f"CREATE OR REPLACE VIEW {_view(table)} COMMENT 'Measured. {MARK}none]' SECURITY DEFINER AS"
        f" SELECT {shown} FROM {raw} WHERE false",
    )
    try:
        refreshed(bench, declarations)
        yield
    finally:
        query(bench.settings, f"DROP VIEW {_view(table)}")


def _long_text(bench: Bench, table: str) -> str:
    """The one that the view would get back with an irregular publish. Raises LakehouseError if it has no short one."""
    view = view_of(SOURCE, table)
    with closing(open_catalog(bench.settings)) as catalog:
        metadata = read_metadata(catalog.file_io, list_views(catalog, [view])[view])
    assert metadata is not None
    number = current_version(metadata)["summary"].get(LONG)
    long = [v["representations"] for v in metadata["versions"] if str(v["version-id"]) == number]
    if not long:
        raise LakehouseError(f"{'.'.join(view)} has no short text, so there is none to compare the long one with")
    return next(str(r["sql"]) for r in long[0] if r["dialect"] == "trino")


def _view(table: str) -> str:
    return ".".join(view_of(SOURCE, table))


def _follow_on(bench: Bench, connection: psycopg.Connection, declarations: Declarations, rows: int) -> int:
    """Updates of random keys for as long as an interval, with a publish each second; how many."""
    changes = 0
    (table,) = (table.name for table in declarations.sources[0].tables)
    for number in range(PUBLISHES):
        changes += update_each(bench, connection, table, rows, number)
        bench.bring_up(declarations)
    return changes


def _read(bench: Bench, table: str, versions: int, results: Results, contenders: tuple[str, ...]) -> None:
    """Measures all contenders in turn; how many times the plain copy's cost each one takes is in its notes."""
    scans, lookups = ({name: _Read() for name in contenders} for _ in range(2))
    rows = query(bench.settings, f"SELECT max(id) FROM mirror_{SOURCE}.{table}")[0][0]
    for run in range(WARM_UPS + bench.runs):
        for name in contenders:
            relation = _relation(bench, name, table)
            shown = READ[table.split("_")[0]]
            _measure(bench, f"SELECT {shown} FROM {relation}", scans[name], run >= WARM_UPS)
            key = 1 + run * 7919 % rows
            _measure(bench, f"SELECT * FROM {relation} WHERE id = {key}", lookups[name], run >= WARM_UPS)
    for name in contenders:
        scan, lookup = scans[name], lookups[name]
        result = Measurement("s", scan.seconds, does=f"scan with aggregation, {versions} versions per key: {name}")
        result.notes = {"rows": rows, "load": load_average(), "lookup s": round(statistics.median(lookup.seconds), 3)}
        for what, found, plain in (("scan", scan, scans[COPY]), ("lookup", lookup, lookups[COPY])):
            result.notes |= {
                f"{what}, times a plain copy": _times(found.seconds, plain.seconds),
                f"{what}, CPU s of Trino": round(statistics.median(found.cpu), 2),
                f"{what}, CPU times a plain copy": _times(found.cpu, plain.cpu),
                f"{what}, splits": found.splits,
            }
        results.setdefault(f"{versions} versions: {name}", result)
        print(f"{versions} versions: {name}: {result.notes}", flush=True)


def _times(found: list[float], plain: list[float]) -> float:
    return round(statistics.median(found) / max(statistics.median(plain), 0.001), 2)


def _measure(bench: Bench, sql: str, read: _Read, counts: bool) -> None:
    server = running(bench.settings, "trino")
    assert server is not None
    with connect(bench.settings) as connection:
        cursor = connection.cursor()
        with measured({"trino": (server,)}) as cost:
            cursor.execute(sql)
            cursor.fetchall()
    if counts:
        read.seconds.append(cost.seconds)
        read.cpu.append(cost.cpu["trino"])
        read.splits = cursor.stats["totalSplits"]


def _relation(bench: Bench, contender: str, table: str) -> str:
    if contender == COPY:
        return f"marts.copy_of_{table}"
    if contender.startswith("mirror"):
        return f"mirror_{SOURCE}.{table}"
    if contender.startswith(FRESH):
        return _view(table)
    if contender.startswith(LONG_TEXT):
        return f"({_long_text(bench, table)})"
    columns = ", ".join(column.name for column in columns_of(table))
    order = "PARTITION BY id ORDER BY _epoch DESC, _commit_lsn DESC, _seq DESC"
    versions = f"SELECT *, row_number() OVER ({order}) AS nth FROM raw_{SOURCE}.{table}"
    return f"(SELECT {columns} FROM ({versions}) WHERE nth = 1 AND _op <> 'd')"
