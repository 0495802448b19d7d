"""Rows that were published and that nothing loads: a worker that hung kept the sensors away, and nobody was told."""

import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from held_topics import make_lake

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import ERASURE
from lakehouse.declarations.manifest import load_manifest, manifest_path
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse_watch.probes import limits, loads
from lakehouse_watch.probes.limits import (
    Loaded,
    Misdeclared,
    declared_limits,
    declared_loads,
    declared_still,
    declared_tables,
)
from lakehouse_watch.probes.loads import arrivals_of, is_quiet, judge, passed_over, read_loads, waiting_since
from lakehouse_watch.probes.models import read_models
from lakehouse_watch.probes.reading import Probe
from lakehouse_watch.targets.delivery import Delivery
from lakehouse_watch.watch import Watch

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


def published(catalog: LakeCatalog, name: tuple[str, str], *rows: tuple[float, str], erased: bool = False) -> None:
    """Appends rows of these moments (minutes ago) and operations, as raw or parsed has them."""
    column = "_ingested_at" if name[0].startswith("raw_") else "_loaded_at"
    schema = pa.schema([("_op", pa.string()), (column, pa.timestamp("us", "UTC"))])
    catalog.create_namespace_if_not_exists(name[0])
    table = catalog.create_table_if_not_exists(name, schema)
    data = pa.Table.from_pylist([{"_op": op, column: NOW - timedelta(minutes=ago)} for ago, op in rows], schema=schema)
    table.append(data, snapshot_properties={ERASURE: "true"} if erased else {})


def overlooked(catalog: LakeCatalog) -> list[float]:
    """Minutes since the newest rows were published, where parsed lacks them."""
    return [(NOW - since) / timedelta(minutes=1) for since in passed_over(catalog, [ORDERS]).values()]


def test_rows_that_were_published_while_a_load_ran_wait_though_it_has_ended(postgres_catalog: LakeCatalog) -> None:
    """They were older than its snapshot, and with a worker that hung since and a quiet source nobody was told."""
    published(postgres_catalog, ORDERS.raw, (60, "c"))
    published(postgres_catalog, ORDERS.raw, (40, "c"))
    published(postgres_catalog, ORDERS.parsed, (60, "c"))
    assert overlooked(postgres_catalog) == [40]
    published(postgres_catalog, ORDERS.parsed, (70, "c"), erased=True)
    assert overlooked(postgres_catalog) == [40], "an erasure loads nothing"
    published(postgres_catalog, ORDERS.parsed, (40, "c"))
    assert overlooked(postgres_catalog) == []
    published(postgres_catalog, ORDERS.parsed, (80, "c"))
    assert overlooked(postgres_catalog) == [], "a day that was derived again moves nothing back"
    published(postgres_catalog, ORDERS.raw, (30, "t"))
    assert overlooked(postgres_catalog) == [], "a truncate may leave nothing in parsed"


def test_a_quiet_source_with_such_rows_is_told_until_they_are_loaded(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    for _ in range(2):
        web.broker.send("clicks", 3)
        web.once()
    load = Loaded("web", ("raw_web", "clicks"), ("parsed", "parsed_web__clicks"), True, None)
    monkeypatch.setattr(loads, "declared_loads", lambda settings: (load,))
    first, second = sorted(
        {row["_ingested_at"] for row in postgres_catalog.load_table(load.raw).scan().to_arrow().to_pylist()}
    )

    def told(seconds: float) -> list[str]:
        alerts = web.settings.alerts.model_copy(update={"load_seconds": seconds})
        return [occasion.key for occasion in read_loads(web.settings.model_copy(update={"alerts": alerts})).occasions]

    for moment, waits in ((first, ["freshness/web"]), (second, [])):
        published(postgres_catalog, load.parsed, ((NOW - moment) / timedelta(minutes=1), "c"))
        assert told(0.0) == waits and told(1800.0) == []


def test_the_watch_looks_at_bounds_once_the_source_is_quiet() -> None:
    def quiet(*raw: tuple[int, str, dict[str, str]], parsed: bool = True) -> bool:
        there = {ORDERS.raw: arrivals_of(table(*raw))} | ({ORDERS.parsed: ()} if parsed else {})
        return is_quiet(there, ORDERS, 1800.0, NOW)

    assert quiet((40, "append", rows(1)), (10, "append", rows(0))) and not quiet((20, "append", rows(1)))
    assert quiet((20, "overwrite", rows(1) | {ERASURE: "true"})), "its rows are older"
    assert not quiet((40, "append", rows(1)), (35, "append", rows(1, "t"))), "merged with others, bounds do not tell"
    assert not quiet((40, "append", rows(1)), parsed=False), "a first load is long"


def test_an_erasure_loads_nothing_and_publishes_nothing() -> None:
    erased = rows(1) | {ERASURE: "true"}
    assert waits(table((50, "append", rows(1))), table((60, "append", {}), (5, "overwrite", erased))) == 50
    assert waits(table((70, "append", rows(1)), (50, "overwrite", erased)), table((60, "append", {}))) is None


def test_each_table_has_its_limit_and_the_source_one_alert() -> None:
    scheduled = replace(ORDERS, raw=("raw_shop", "reports"), by_sensor=False)
    prompt = replace(ORDERS, raw=("raw_shop", "prices"), declared=60.0)
    relaxed = replace(ORDERS, raw=("raw_shop", "stores"), declared=86400.0)
    waiting = dict.fromkeys((ORDERS, scheduled, prompt, relaxed), NOW - timedelta(minutes=10))
    [found] = judge(waiting, 1800.0, NOW)
    assert found.key == "freshness/shop" and "rows of prices of shop" in found.summary
    [later] = judge(waiting, 1800.0, NOW + timedelta(minutes=30))
    assert "rows of orders, prices, stores of shop were published 40 minutes ago" in later.summary


def test_a_mistake_in_a_declaration_ends_no_alert_and_is_told(
    home: Path, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that nothing loads were told to be loaded, and limits were the usual ones, for as long as it stood."""
    settings = catalog_settings
    with connect_catalog(settings) as connection:
        ensure_state(connection)
    manifest, path = load_manifest(load_settings(home=home)), manifest_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    readable = declared_limits(settings, "retail"), declared_still(settings), declared_tables(settings)
    assert all(readable) and declared_loads(settings)
    manifest["sources"]["source.lakehouse.retail.stores"]["meta"]["laad"] = {}
    path.write_text(json.dumps(manifest))
    os.utime(path, (1, 1))
    probes = [Probe("loads", partial(read_loads, settings)), Probe("models", partial(read_models, settings))]
    found = Watch(settings, probes, Delivery({}), str)._read(None)
    assert found["loads"] is None and found["models"] is None
    [told] = found["unreadable/loads"] or ()
    assert re.match(r"loads cannot be read: \S+retail\.yml:\d+: .*laad", told.summary) and told.to_do == "correct it"
    assert (declared_limits(settings, "retail"), declared_still(settings), declared_tables(settings)) == readable
    monkeypatch.setattr(limits, "_readable", {})
    with pytest.raises(Misdeclared, match="laad"):
        declared_limits(settings, "retail")
    path.unlink()
    assert declared_limits(settings, "retail") == {} and declared_loads(settings) == (), "none was parsed yet"


def test_the_parsed_tables_of_the_samples_are_watched(home: Path) -> None:
    settings = load_settings(home=home)
    load_manifest(settings)
    found = {load.raw: load for load in declared_loads(settings)}
    assert found["raw_retail", "transactions"].parsed == ("parsed", "parsed_retail__transactions")
    assert {load.source for load in found.values()} == {"retail", "bank", "payroll"}
