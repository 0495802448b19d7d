"""Rows that were published and that nothing loads: a worker that hung kept the sensors away, and nobody was told."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lakehouse.declarations.manifest import load_manifest
from lakehouse.settings import load_settings
from lakehouse_watch.probes.limits import Loaded, declared_loads
from lakehouse_watch.probes.loads import arrivals_of, judge, waiting_since

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
ORDERS = Loaded("shop", ("raw_shop", "orders"), ("parsed", "parsed_shop__orders"), True, None)


def table(*snapshots: tuple[int, str, dict[str, str]]) -> Any:
    """A table with these snapshots: minutes ago, operation, and what else the summary says; oldest first."""
    made = [
        SimpleNamespace(
            snapshot_id=number,
            parent_snapshot_id=number - 1,
            timestamp_ms=int((NOW - timedelta(minutes=ago)).timestamp() * 1000),
            summary=SimpleNamespace(operation=SimpleNamespace(value=operation), additional_properties=said),
        )
        for number, (ago, operation, said) in enumerate(snapshots, start=1)
    ]
    return SimpleNamespace(metadata=SimpleNamespace(snapshots=made, current_snapshot_id=len(made)))


def rows(count: int, op: str = "c") -> dict[str, str]:
    return {"added-records": str(count), f"lakehouse.rows.{op}": str(count)}


def waits(raw: Any, parsed: Any) -> float | None:
    """Minutes that the oldest rows have waited."""
    there = {name: arrivals_of(table) for name, table in ((ORDERS.raw, raw), (ORDERS.parsed, parsed)) if table}
    since = waiting_since(there, ORDERS)
    return None if since is None else (NOW - since).total_seconds() / 60


def test_the_oldest_rows_count_however_often_new_ones_come() -> None:
    published = [(ago, "append", rows(1)) for ago in (50, 40, 30, 20, 10, 0)]
    assert waits(table(*published), table((45, "append", {}))) == 40


def test_what_is_loaded_does_not_wait() -> None:
    assert waits(table((50, "append", rows(1))), table((49, "append", {}))) is None
    assert waits(table((50, "append", rows(1))), None) is None, "a first load is long, and a run that can fail"


def test_a_compaction_loads_nothing_and_publishes_nothing() -> None:
    raw, parsed = (50, "append", rows(1)), (60, "append", {})
    assert waits(table(raw), table(parsed, (5, "replace", {}))) == 50
    assert waits(table((70, "append", rows(1)), (50, "replace", {})), table(parsed)) is None


def test_a_truncate_of_an_empty_table_leaves_nothing_to_load() -> None:
    assert waits(table((50, "append", rows(1, "t"))), table((60, "append", {}))) is None


def test_each_table_has_its_limit_and_the_source_one_alert() -> None:
    scheduled = replace(ORDERS, raw=("raw_shop", "reports"), by_sensor=False)
    prompt = replace(ORDERS, raw=("raw_shop", "prices"), declared=60.0)
    relaxed = replace(ORDERS, raw=("raw_shop", "stores"), declared=86400.0)
    waiting = dict.fromkeys((ORDERS, scheduled, prompt, relaxed), NOW - timedelta(minutes=10))
    [found] = judge(waiting, 1800.0, NOW)
    assert found.key == "freshness/shop" and "rows of prices of shop" in found.summary
    [later] = judge(waiting, 1800.0, NOW + timedelta(minutes=30))
    assert "rows of orders, prices, stores of shop were published 40 minutes ago" in later.summary


def test_the_parsed_tables_of_the_samples_are_watched(home: Path) -> None:
    settings = load_settings(home=home)
    load_manifest(settings)
    found = {load.raw: load for load in declared_loads(settings)}
    assert found["raw_retail", "transactions"].parsed == ("parsed", "parsed_retail__transactions")
    assert {load.source for load in found.values()} == {"retail", "bank", "payroll"}
