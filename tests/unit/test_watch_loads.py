"""Rows that were published and that nothing loads: a worker that hung kept the sensors away, and nobody was told."""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
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
from lakehouse.declarations.dbt import manifest
from lakehouse.declarations.dbt.manifest import load_manifest, manifest_path
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse_watch import parsing
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes import limits, loads, worker
from lakehouse_watch.probes.limits import (
    Loaded,
    Misdeclared,
    declared_limits,
    declared_loads,
    declared_still,
    declared_tables,
)
from lakehouse_watch.probes.loads import (
    FIRST_SECONDS,
    arrivals_of,
    is_quiet,
    judge,
    never_loaded,
    passed_over,
    read_loads,
    waiting_since,
)
from lakehouse_watch.probes.models import read_models
from lakehouse_watch.probes.project import read_project
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


def test_a_first_load_that_never_begins_is_told(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sensor was off: the table was in the cut for weeks, and nobody was told that parsed has none."""
    web = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    web.broker.send("clicks", 3)
    web.once()
    load = Loaded("web", ("raw_web", "clicks"), ("parsed", "parsed_web__clicks"), True, None)

    def told() -> list[tuple[str, float]]:
        return [(occasion.key, occasion.patience) for occasion in read_loads(web.settings).occasions]

    monkeypatch.setattr(loads, "declared_loads", lambda settings: (load,))
    web.settings = web.settings.model_copy(
        update={"alerts": web.settings.alerts.model_copy(update={"load_seconds": 0.0})}
    )
    assert told() == [("freshness/web", FIRST_SECONDS)]
    monkeypatch.setattr(loads, "declared_loads", lambda settings: (replace(load, by_sensor=False),))
    assert told() == [], "a schedule loads it, in a week maybe"
    monkeypatch.setattr(loads, "declared_loads", lambda settings: (load,))
    [landed] = {row["_ingested_at"] for row in postgres_catalog.load_table(load.raw).scan().to_arrow().to_pylist()}
    published(postgres_catalog, load.parsed, ((NOW - landed) / timedelta(minutes=1), "c"), erased=True)
    assert told() == [], "it was loaded, and an erasure's snapshot is the only one that is kept"


def test_a_first_load_is_told_after_hours_in_which_it_was_seen_to_lack_and_holds_up_no_other() -> None:
    """A model that was declared a minute ago was told to be late by the weeks for which raw had rows."""
    stores = replace(ORDERS, raw=("raw_shop", "stores"))
    since = {ORDERS: NOW - timedelta(weeks=3), stores: NOW - timedelta(minutes=40)}
    [first] = judge(since, 1800.0, NOW, since.keys())
    [both] = judge(since, 1800.0, NOW, [ORDERS])
    assert first.patience == FIRST_SECONDS and "orders, stores of shop" in first.summary
    assert both.patience == 0.0 and "rows of stores of shop were published 40 minutes ago" in both.summary


def test_the_oldest_rows_of_a_table_that_was_never_loaded_count(postgres_catalog: LakeCatalog) -> None:
    published(postgres_catalog, ORDERS.raw, (5000, "t"))
    published(postgres_catalog, ORDERS.raw, (900, "r"), (890, "r"))
    published(postgres_catalog, ORDERS.raw, (1, "c"))
    [since] = never_loaded(postgres_catalog, [ORDERS]).values()
    assert (NOW - since) / timedelta(minutes=1) == 900


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
    parsed, path = load_manifest(load_settings(home=home)), manifest_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(parsed))
    readable = declared_limits(settings, "retail"), declared_still(settings), declared_tables(settings)
    assert all(readable) and declared_loads(settings)
    parsed["sources"]["source.lakehouse.retail.stores"]["meta"]["laad"] = {}
    path.write_text(json.dumps(parsed))
    os.utime(path, (1, 1))
    found = look_at_project(settings)
    assert found["loads"] is None and found["models"] is None and not found["unreadable/loads"]
    [told] = found["project"] or ()
    assert re.match(r"the project cannot be read: \S+retail\.yml:\d+: .*laad", told.summary)
    assert told.key == "unreadable/project" and told.to_do.startswith("correct it")
    assert (declared_limits(settings, "retail"), declared_still(settings), declared_tables(settings)) == readable
    monkeypatch.setattr(limits, "_readable", {})
    with pytest.raises(Misdeclared, match="laad"):
        declared_limits(settings, "retail")


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def look_at_project(settings: Settings) -> dict[str, Sequence[Occasion] | None]:
    """What the looks find that need nothing but the project."""
    reads = {"loads": read_loads, "models": read_models, "project": read_project}
    probes = [Probe(name, partial(read, settings)) for name, read in reads.items()]
    return Watch(settings, probes, Delivery({}), str)._read(None)


def test_a_project_that_nobody_has_parsed_is_told_and_parsed_by_the_watch(
    home: Path, catalog_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod of its own, the watch knew no table, and told for ever that nothing needed attention."""
    settings = catalog_settings.model_copy(update={"home": tmp_path})
    with connect_catalog(settings) as connection:
        ensure_state(connection)
    found = look_at_project(settings)
    assert found["loads"] is None and found["models"] is None, "what was open stays open"
    assert [told.summary for told in found["project"] or ()] == [
        f"the project cannot be read: nobody has parsed it in {settings.home} yet"
    ]
    assert declared_limits(settings, "retail") == {}, "a source is looked at all the same"
    stop, asked = threading.Event(), []
    parsed = manifest.ensure_manifest(load_settings(home=home))

    def parse(settings: Settings, target: Path) -> Path:
        asked.append(settings)
        if len(asked) == 1:
            raise RecursionError("whatever a file makes of it")
        if len(asked) == 2:
            raise LakehouseError("the dbt project does not parse: no such macro")
        target.mkdir(exist_ok=True)
        return Path(shutil.copy(parsed, target))

    monkeypatch.setattr(manifest, "_parse", parse)
    monkeypatch.setattr(parsing, "AGAIN_SECONDS", 2.0)
    thread = threading.Thread(target=parsing.keep_parsed, args=(settings, stop))
    thread.start()
    try:
        until(lambda: "no such macro" in str(look_at_project(settings)["project"]))
        until(lambda: not look_at_project(settings)["project"])
    finally:
        stop.set()
        thread.join()
    assert declared_limits(settings, "retail") and declared_loads(settings) and len(asked) == 3


def test_a_worker_that_cannot_parse_the_project_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood in the worker's log alone."""
    settings = load_settings(home=tmp_path)
    monkeypatch.setattr(worker, "state_of", lambda settings: "killed")
    monkeypatch.setattr(worker, "restarts_of", lambda settings: 0)
    assert "it was killed, lost its machine, or" in worker.read_worker(settings).occasions[0].summary

    def fails(*_: object) -> Path:
        raise LakehouseError("the dbt project does not parse: no such macro")

    monkeypatch.setattr(manifest, "_parse", fails)
    with pytest.raises(LakehouseError):
        manifest.ensure_manifest(settings)
    [told] = worker.read_worker(settings).occasions
    assert "no worker is at work: it cannot read the project (the dbt project does not parse: no such" in told.summary
    monkeypatch.setattr(manifest, "project_fingerprint", lambda settings: "another")
    assert "it was killed" in worker.read_worker(settings).occasions[0].summary, "it was changed since"


def test_the_parsed_tables_of_the_samples_are_watched(home: Path) -> None:
    settings = load_settings(home=home)
    load_manifest(settings)
    found = {load.raw: load for load in declared_loads(settings)}
    assert found["raw_retail", "transactions"].parsed == ("parsed", "parsed_retail__transactions")
    assert {load.source for load in found.values()} == {"retail", "bank", "payroll"}
