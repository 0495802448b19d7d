"""Statistics of a table: its metadata, its objects on disk, and the time to read it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings

MIB = 2**20


@dataclass(frozen=True)
class TableStats:
    """The statistics of a table; seconds are medians."""

    files: int
    manifests: int
    snapshots: int
    metadata_mib: float
    objects: int
    mib: float
    plan_s: float
    trino_planning_s: float
    count_s: float
    key_s: float
    day_s: float
    all_s: float


def table_stats(settings: Settings, namespace: str, table: str, runs: int) -> TableStats:
    """Measures the table: plans it with PyIceberg and queries it with Trino, `runs` times after a warm-up."""
    name = f"{namespace}.{table}"
    day = f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}"
    everything, planning = _read(settings, f"SELECT sum(amount), max(customer) FROM {name}", runs)
    found = objects(settings, namespace, table)
    with closing(open_catalog(settings)) as catalog:
        loaded = catalog.load_table((namespace, table))
        snapshot = loaded.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        return TableStats(
            files=int(snapshot.summary.additional_properties["total-data-files"]),
            manifests=len(snapshot.manifests(loaded.io)),
            snapshots=len(loaded.metadata.snapshots),
            metadata_mib=round(len(loaded.io.new_input(loaded.metadata_location)) / MIB, 3),
            objects=len(found),
            mib=mib(found.values()),
            plan_s=_median(lambda: _plan(settings, namespace, table), runs),
            trino_planning_s=planning,
            count_s=_read(settings, f"SELECT count(*) FROM {name}", runs)[0],
            key_s=_read(settings, f"SELECT amount FROM {name} WHERE id = 4711", runs)[0],
            day_s=_read(settings, f"SELECT sum(amount) FROM {name} WHERE date(_committed_at) = DATE '{day}'", runs)[0],
            all_s=everything,
        )


def objects(settings: Settings, namespace: str, table: str) -> dict[str, int]:
    """Path → size of the table's files on the disk of the embedded store."""
    folder = folder_of(settings, namespace, table)
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def folder_of(settings: Settings, namespace: str, table: str) -> Path:
    """The folder of a table's objects in the embedded store."""
    return settings.home / "data" / "s3" / "warehouse" / namespace / table


def mib(sizes: Iterable[int]) -> float:
    """Bytes in MiB."""
    return round(sum(sizes) / MIB, 2)


def _plan(settings: Settings, namespace: str, table: str) -> None:
    with closing(open_catalog(settings)) as catalog:  # a catalog caches metadata files
        loaded = load_table(catalog, namespace, table)
        assert loaded is not None
        list(loaded.scan().plan_files())


def _median(work: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs + 1):
        started = time.monotonic()
        work()
        seconds.append(time.monotonic() - started)
    return round(statistics.median(seconds[1:]), 3)


def _read(settings: Settings, statement: str, runs: int) -> tuple[float, float]:
    """Seconds of the statement, and of Trino's planning."""
    planning: list[float] = []

    def read() -> None:
        cursor = connect(settings).cursor()
        cursor.execute(statement)
        cursor.fetchall()
        assert cursor.stats is not None
        planning.append(cursor.stats["planningTimeMillis"] / 1000)

    return _median(read, runs), round(statistics.median(planning[1:]), 3)
