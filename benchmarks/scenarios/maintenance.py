"""A table after 5,000 small commits: the cost of reading it, and the cost and gain of each maintenance tool.

Each contender maintains its own copy with the same commits, orphans and retention (Spark's defaults). All rows are
checked after each action.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.commit_history import CommitHistory
from benchmarks.peers.procedures import Actions, spark_procedures, trino_procedures
from benchmarks.probe import measured, this_process
from benchmarks.table_stats import folder_of, mib, objects, table_stats
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse_stack.control.start_stop import running
from lakehouse_stack.home.config import SERVERS
from maintenance.actions.purge import purge
from maintenance.inventory import removed
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import run_action

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog

COMMITS, ROWS, DAYS = 5_000, 200, 14
WARM_UP_COMMITS = 700  # enough for the JVMs' JIT compilers
NAMESPACE = "bench_maintenance"
SNAPSHOT_DAYS, ORPHAN_DAYS = 5, 3  # Spark's defaults
KEEP_HOURS = 72  # our actions delete unused files only after this time
COMMITS_PER_ORPHAN, ORPHAN_BYTES = 50, 6_000
SPREAD = 1_000_003  # a prime: spreads the keys of each commit over the whole range, like updates
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "customer", StringType(), required=False),
    NestedField(3, "amount", DecimalType(12, 2), required=False),
    NestedField(4, "_committed_at", TimestamptzType(), required=False),
)
BY_DAY = PartitionSpec(PartitionField(4, 1000, DayTransform(), "_committed_at_day"))
POLICY = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "compact": {"target_file_size_mb": 128, "min_input_files": 5},
        "expire_snapshots": {"older_than_hours": 24 * SNAPSHOT_DAYS, "retain_last": 1, "keep_metadata_files": 20},
        "remove_orphan_files": {"older_than_hours": 24 * ORPHAN_DAYS},
        "keep_removed_hours": KEEP_HOURS,
    }
)
AGE_REMOVED = (
    "UPDATE lakehouse.removed_files SET removed_at = removed_at - %s * interval '1 hour'"
    ' WHERE namespace = %s AND "table" = %s'
)
Contender = Callable[[Bench, str], Actions]  # the actions of a tool on a table, in order


def maintenance(bench: Bench) -> Results:
    """Total seconds by contender, figures of each action, and the table before and after; with a warm-up."""
    commits = max(60, int(COMMITS * bench.scale))
    results = {}
    with closing(open_catalog(bench.settings)) as catalog:
        for name, (contender, does) in CONTENDERS.items():
            table = name.split()[0].lower()
            _make(bench, catalog, f"warm_{table}", WARM_UP_COMMITS)
            for _, act in contender(bench, f"warm_{table}"):
                act()
            _make(bench, catalog, f"for_{table}", commits)
            results[name] = _measure(bench, f"for_{table}", commits, contender)
            results[name].does = does
    return results


def _make(bench: Bench, catalog: LakeCatalog, table: str, commits: int) -> None:
    """Creates a table with a commit every few minutes for two weeks, and orphans as old as the first commit."""
    location = f"{bench.settings.warehouse.rstrip('/')}/{NAMESPACE}/{table}"
    history, total, now = CommitHistory(catalog, location, SCHEMA, BY_DAY), commits * ROWS, datetime.now(UTC)
    for number in range(commits):
        at = now - timedelta(days=DAYS) * (1 - number / commits)
        history.commit(_rows([(row * SPREAD) % total for row in range(number * ROWS, (number + 1) * ROWS)], at), at)
    history.register((NAMESPACE, table))
    first = (now - timedelta(days=DAYS)).timestamp()
    for number in range(commits // COMMITS_PER_ORPHAN):
        with catalog.file_io.new_output(f"{location}/data/orphan-{number}.parquet").create() as stream:
            stream.write(os.urandom(ORPHAN_BYTES))
        os.utime(folder_of(bench.settings, NAMESPACE, table) / "data" / f"orphan-{number}.parquet", (first, first))


def _rows(ids: list[int], at: datetime) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": [f"customer {number % 1000}" for number in ids],
            "amount": pa.array([number % 100_000 for number in ids], pa.decimal128(12, 2)),
            "_committed_at": pa.array([at] * len(ids), pa.timestamp("us", tz="UTC")),
        }
    )


def _measure(bench: Bench, table: str, commits: int, contender: Contender) -> Measurement:
    _verify(bench, table, commits)
    before = table_stats(bench.settings, NAMESPACE, table, bench.runs)
    done = [_act(bench, table, commits, name, act) for name, act in contender(bench, table)]
    after = table_stats(bench.settings, NAMESPACE, table, bench.runs)
    again = {name: _seconds(act) for name, act in contender(bench, table)}
    _verify(bench, table, commits)
    result = Measurement("s", runs=[sum(float(action["seconds"]) for action in done)])
    result.cpu = [{"ingestion": sum(float(action["CPU s"]) for action in done)}]
    stats = [{"table": when, **asdict(found)} for when, found in (("before", before), ("after", after))]
    result.notes = {"seconds when called again": again, "actions": done, "stats": stats}
    return result


def _seconds(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return round(time.monotonic() - started, 2)


def _act(bench: Bench, table: str, commits: int, name: str, act: Callable[[], object]) -> dict[str, str | float]:
    """Runs the action; returns its cost and the objects written and deleted."""
    before = objects(bench.settings, NAMESPACE, table)
    servers = (running(bench.settings, name) for name in SERVERS if name != "trino")
    with measured({"client": _processes(bench)}, excluded=tuple(server for server in servers if server)) as cost:
        act()
    after = objects(bench.settings, NAMESPACE, table)
    _verify(bench, table, commits)
    return {
        "action": name,
        "seconds": round(cost.seconds, 2),
        "CPU s": round(cost.cpu["client"], 2),
        "MiB written": mib(after[path] for path in after.keys() - before.keys()),
        "MiB deleted": mib(before[path] for path in before.keys() - after.keys()),
        "objects deleted": len(before.keys() - after.keys()),
    }


def _processes(bench: Bench) -> tuple[psutil.Process, ...]:
    """The processes that may do the work: this one with Spark's JVM, and Trino."""
    trino = running(bench.settings, "trino")
    assert trino is not None
    return this_process(), psutil.Process(trino.pid)


def _verify(bench: Bench, table: str, commits: int) -> None:
    """Raises LakehouseError unless each row exists once with its original values."""
    total = commits * ROWS
    found = query(
        bench.settings,
        "SELECT count(*), count(DISTINCT id), sum(id), count(DISTINCT _committed_at), count_if("
        "customer = 'customer ' || CAST(id % 1000 AS varchar) AND amount = id % 100000)"
        f" FROM {NAMESPACE}.{table}",
    )[0]
    if found != [total, total, total * (total - 1) // 2, commits, total]:
        raise LakehouseError(f"{NAMESPACE}.{table} does not have its original rows: {found}")


def _lakehouse(bench: Bench, table: str) -> Actions:
    def act(action: str) -> None:
        with closing(Session(bench.settings, start_spark=lambda: bench.session)) as session:
            [outcome] = run_action(session, action, [MaintainedTable(TableName(NAMESPACE, table), POLICY)])
        if outcome.status == "failed":
            raise LakehouseError(f"{action} of {outcome.table} failed: {outcome.error}")

    def delete_due_files() -> None:
        with removed.catalog_database(bench.settings) as connection:
            connection.execute(AGE_REMOVED, (KEEP_HOURS, NAMESPACE, table))
        with closing(Session(bench.settings)) as session:
            purge(session, TableName(NAMESPACE, table), KEEP_HOURS)

    for action in ("compact", "expire_snapshots", "remove_orphan_files"):
        yield action, partial(act, action)
    yield "deletion, when it is due", delete_due_files


def _spark(bench: Bench, table: str) -> Actions:
    return spark_procedures(bench.session, bench.settings.catalog_name, f"{NAMESPACE}.{table}")


def _trino(bench: Bench, table: str) -> Actions:
    return trino_procedures(bench.settings, f"{NAMESPACE}.{table}", SNAPSHOT_DAYS, ORPHAN_DAYS)


CONTENDERS: dict[str, tuple[Contender, str]] = {
    "lakehouse": (
        _lakehouse,
        "its actions with the same retention; what they take out of use is deleted when it is due",
    ),
    "Spark procedures": (_spark, "called one after the other with their defaults"),
    "Trino": (_trino, "ALTER TABLE … EXECUTE, with the same retention"),
}
