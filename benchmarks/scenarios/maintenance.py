"""A table after 5,000 small commits: what reading it costs, and what each way of maintaining it costs and gains.

Every contender gets a table of its own, made by the same commits with the same orphans beside it, and the same
retention: Spark's defaults. All rows are checked after each action.
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
from benchmarks.look import folder_of, look, mib, objects
from benchmarks.past import Past
from benchmarks.peers.procedures import Actions, spark_procedures, trino_procedures
from benchmarks.probe import measured, this_process
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse_stack.config import SERVERS
from lakehouse_stack.control import running
from maintenance.actions.purge import purge
from maintenance.inventory import removed
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import run_action

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog

COMMITS, ROWS, DAYS = 5_000, 200, 14
WARM_UP_COMMITS = 700  # enough for the JVMs to have compiled what the first contender would else wait for
NAMESPACE = "bench_maintenance"
SNAPSHOT_DAYS, ORPHAN_DAYS = 5, 3  # Spark's defaults
KEEP_HOURS = 72  # what our actions take out of use is deleted only then
COMMITS_PER_ORPHAN, ORPHAN_BYTES = 50, 6_000
SPREAD = 1_000_003  # a prime: the keys of each commit lie all over the range, as those of updates do
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
Contender = Callable[[Bench, str], Actions]  # what it does to a table, in order


def maintenance(bench: Bench) -> Results:
    """Seconds of all actions by contender, what each action did, and the table before and after; warmed up first."""
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
    """A commit every few minutes for two weeks, and orphans that are as old as the first."""
    location = f"{bench.settings.warehouse.rstrip('/')}/{NAMESPACE}/{table}"
    past, total, now = Past(catalog, location, SCHEMA, BY_DAY), commits * ROWS, datetime.now(UTC)
    for number in range(commits):
        at = now - timedelta(days=DAYS) * (1 - number / commits)
        past.commit(_rows([(row * SPREAD) % total for row in range(number * ROWS, (number + 1) * ROWS)], at), at)
    past.register((NAMESPACE, table))
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
    before = look(bench.settings, NAMESPACE, table, bench.runs)
    done = [_act(bench, table, commits, name, act) for name, act in contender(bench, table)]
    after = look(bench.settings, NAMESPACE, table, bench.runs)
    again = {name: _seconds(act) for name, act in contender(bench, table)}
    _verify(bench, table, commits)
    result = Measurement("s", runs=[sum(float(action["seconds"]) for action in done)])
    result.cpu = [{"ingestion": sum(float(action["CPU s"]) for action in done)}]
    looks = [{"table": when, **asdict(seen)} for when, seen in (("before", before), ("after", after))]
    result.notes = {"seconds when called again": again, "actions": done, "looks": looks}
    return result


def _seconds(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return round(time.monotonic() - begun, 2)


def _act(bench: Bench, table: str, commits: int, name: str, act: Callable[[], object]) -> dict[str, str | float]:
    """Does it; what it took, and what came and went on the store's disk."""
    before = objects(bench.settings, NAMESPACE, table)
    servers = (running(bench.settings, name) for name in SERVERS if name != "trino")
    with measured({"client": _processes(bench)}, apart=tuple(server for server in servers if server)) as cost:
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
    """This one with Spark's JVM, and Trino: whoever does the work."""
    trino = running(bench.settings, "trino")
    assert trino is not None
    return this_process(), psutil.Process(trino.pid)


def _verify(bench: Bench, table: str, commits: int) -> None:
    """Every row once, with the values that it was made with."""
    total = commits * ROWS
    found = query(
        bench.settings,
        "SELECT count(*), count(DISTINCT id), sum(id), count(DISTINCT _committed_at), count_if("
        "customer = 'customer ' || CAST(id % 1000 AS varchar) AND amount = id % 100000)"
        f" FROM {NAMESPACE}.{table}",
    )[0]
    if found != [total, total, total * (total - 1) // 2, commits, total]:
        raise LakehouseError(f"{NAMESPACE}.{table} has not the rows it was made with: {found}")


def _lakehouse(bench: Bench, table: str) -> Actions:
    def act(action: str) -> None:
        with closing(Session(bench.settings, start_spark=lambda: bench.session)) as session:
            [outcome] = run_action(session, action, [MaintainedTable(TableName(NAMESPACE, table), POLICY)])
        if outcome.status == "failed":
            raise LakehouseError(f"{action} of {outcome.table} failed: {outcome.error}")

    def delete_what_is_due() -> None:
        with removed.catalog_database(bench.settings) as connection:
            connection.execute(AGE_REMOVED, (KEEP_HOURS, NAMESPACE, table))
        with closing(Session(bench.settings)) as session:
            purge(session, TableName(NAMESPACE, table), KEEP_HOURS)

    for action in ("compact", "expire_snapshots", "remove_orphan_files"):
        yield action, partial(act, action)
    yield "deletion, when it is due", delete_what_is_due


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
