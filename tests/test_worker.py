"""The warm worker on a real stack: it loads cuts without a run and survives kills; refused marts stay unseen."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse.catalog.open import open_catalog
from lakehouse.servers.presence import is_served
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from orchestration.runs.subset import failing_checks
from tests.fourth_source import Table
from tests.orchestrated import BIN, Orchestrated, make_orchestrated

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3000)]
LOADED_WITHIN = 120.0


@pytest.fixture
def shop(settings: Settings, tmp_path: Path) -> Orchestrated:
    """A source with two tables, loaded once by its job, and a mart of the first table's hub."""
    o = make_orchestrated(settings, tmp_path, 20261123)
    add_mart(o)
    o.command("lakehouse", "ingest", o.name, "--once")
    o.command("lakehouse", "run", f"load_{o.name}", "build_marts")
    return o


def mart_of(o: Orchestrated) -> str:
    return f"fct_{o.name}"


def add_mart(o: Orchestrated) -> None:
    """One row per key of the first table's hub; a key twice is an error, in the hub and in the mart."""
    hub, key = f"hub_{o.name}_{o.tables[0].name}", hash_key(o)
    folder = Path(o.environment["LAKEHOUSE_PROJECT_DIR"]) / "dbt_project" / "models" / "marts"
    folder.mkdir(exist_ok=True)
    (folder / f"{mart_of(o)}.sql").write_text(f"select {key} from {{{{ ref('{hub}') }}}}\n")
    tested = f"columns: [{{name: {key}, data_tests: [unique, not_null]}}]"
    models = ", ".join(f"{{name: {name}, {tested}}}" for name in (mart_of(o), hub))
    (folder / f"{mart_of(o)}.yml").write_text(f"models: [{models}]\n")


def hash_key(o: Orchestrated) -> str:
    """The hub's first column, as the scaffold names it."""
    return f"hk_{o.name}_{o.tables[0].name}"


@contextmanager
def working(o: Orchestrated, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`lakehouse worker`, once it serves the source's load."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(BIN / "lakehouse"), "worker"], env=o.environment, stdout=output, stderr=output, cwd=log.parent
        )
    try:
        wait_for(lambda: is_served(o.settings, f"load_{o.name}"))
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_for(condition: Callable[[], bool], seconds: float = LOADED_WITHIN) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.5)


def is_loaded(o: Orchestrated) -> bool:
    return all(o.lake_rows(table) == o.source_rows(table) for table in o.tables)


def keys_twice(o: Orchestrated) -> list[Any]:
    hub = f"vault.{ident(f'hub_{o.name}_{o.tables[0].name}')}"
    return query(o.settings, f"SELECT {hash_key(o)} FROM {hub} GROUP BY 1 HAVING count(*) > 1")


def runs(o: Orchestrated) -> int:
    with dg.DagsterInstance.from_config(str(o.settings.dagster_home)) as instance:
        return len(instance.get_runs(dg.RunsFilter(job_name=f"load_{o.name}")))


def tick(o: Orchestrated) -> dict[str, Any]:
    """One tick of the source's sensor, with the run that it asks for."""
    o.command("lakehouse", "ingest", o.name, "--once")
    command = [sys.executable, "-m", "tests.sensor_driver", f"new_data_{o.name}", "0"]
    environment = {**o.environment, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        command, env=environment, cwd=o.environment["LAKEHOUSE_PROJECT_DIR"], capture_output=True, text=True
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert found, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(found[0].removeprefix("OUTCOME ")))


def test_the_worker_loads_what_a_cut_brings_and_no_run_does_it_again(shop: Orchestrated, tmp_path: Path) -> None:
    first, before = shop.tables[0], runs(shop)
    hub = f"hub_{shop.name}_{first.name}"
    with working(shop, tmp_path / "worker.log"):
        shop.world.sql(first.insert(501, 520), f"DELETE FROM {first.name} WHERE {first.key} <= 5")
        shop.command("lakehouse", "ingest", shop.name, "--once")
        wait_for(lambda: is_loaded(shop))
        wait_for(lambda: shop.count("marts", mart_of(shop)) == shop.count("vault", hub) >= 520)
        ticked = tick(shop)
        assert "a worker is alive" in ticked.get("skipped", ""), ticked
    assert runs(shop) == before
    assert "run worker-" in tick(shop)["skipped"], "its load is the last one, although no worker is alive any more"
    with dg.DagsterInstance.from_config(str(shop.settings.dagster_home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["vault", hub]))
        assert event is not None and event.asset_materialization is not None and not event.run_id
        assert event.asset_materialization.metadata["rows_added"].value == 20
    with closing(open_catalog(shop.settings)) as catalog:
        table = catalog.load_table(("vault", hub))
    [loaded] = [text for key, text in table.properties.items() if key.startswith("lakehouse.loaded.stg")]
    assert loaded.endswith(f"|{table.metadata.current_snapshot_id}"), "the next load begins after this one"


@pytest.mark.slow
def test_the_views_of_a_table_are_made_when_a_worker_loads_it_first(shop: Orchestrated, tmp_path: Path) -> None:
    """Only those of the tables that changed first were: others kept the columns of a former declaration."""
    first, second = shop.tables
    log, view = tmp_path / "worker.log", ident(f"current_{shop.name}__{second.name}")

    def change(table: Table, keys: range) -> None:
        shop.world.sql(table.insert(keys[0], keys[-1]))
        shop.command("lakehouse", "ingest", shop.name, "--once")

    with working(shop, log):
        change(first, range(501, 511))
        wait_for(lambda: f"load_{shop.name}: " in log.read_text())
    query(shop.settings, f"DROP VIEW parsed.{view}")
    with working(shop, log):
        change(first, range(511, 521))
        wait_for(lambda: shop.lake_rows(first) == shop.source_rows(first))
        change(second, range(501, 511))
        wait_for(lambda: [view.strip('"')] in query(shop.settings, "SHOW TABLES FROM parsed"))
        wait_for(lambda: is_loaded(shop))


def is_in_the_cut(o: Orchestrated, table: Table) -> bool:
    """What the check of the raw table says."""
    key = dg.AssetCheckKey(dg.AssetKey([f"raw_{o.name}", table.name]), "in_the_cut")
    with dg.DagsterInstance.from_config(str(o.settings.dagster_home)) as instance:
        return not failing_checks(instance, [key])


@pytest.mark.slow
def test_a_run_comes_for_rows_that_it_did_not_load_once_their_table_is_in_the_cuts_again(shop: Orchestrated) -> None:
    first = shop.tables[0]
    shop.world.sql(first.insert(501, 520))
    shop.command("lakehouse", "ingest", shop.name, "--once")
    shop.command("lakehouse", "ingest", "--pause", f"{shop.name}.{first.name}")
    shop.command("lakehouse", "run", f"load_{shop.name}")
    assert len(shop.lake_rows(first)) == 500
    assert not is_in_the_cut(shop, first)
    shop.command("lakehouse", "ingest", "--resume", f"{shop.name}.{first.name}")
    ticked = tick(shop)
    assert ticked.get("success"), ticked
    assert is_loaded(shop) and is_in_the_cut(shop, first)


def statements(o: Orchestrated, since: str) -> Counter[str]:
    """How many statements dbt has sent for each model since a moment by Trino's clock."""
    found = query(o.settings, f"SELECT query FROM system.runtime.queries WHERE created > timestamp '{since}'")
    nodes = (re.match(r'/\* .*"node": "model\.lakehouse\.(\w+)"', text) for (text,) in found)
    return Counter(node[1] for node in nodes if node)


def marts_tested(o: Orchestrated, since: str) -> int:
    """How many statements have tested marts before they were published."""
    found = query(o.settings, f"SELECT query FROM system.runtime.queries WHERE created > timestamp '{since}'")
    texts = [re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).strip().lower() for (text,) in found]
    return sum(
        "marts_next" in text and text.startswith("select") and "information_schema" not in text for text in texts
    )


def reads_of_loads(o: Orchestrated, since: str) -> list[int]:
    """How many models each statement asks for that the worker has written; it reads no raw table and no stage."""
    found = query(o.settings, f"SELECT query FROM system.runtime.queries WHERE created > timestamp '{since}'")
    texts = [re.sub(r"--.*", "", text) for (text,) in found if "SELECT 'model." in text]  # a header names stages
    read = [found[0] for text in texts if (found := re.search(rf'.{{0,200}}("raw_{o.name}"|"stg_\w+").{{0,80}}', text))]
    assert not read, f"a load was not handed its rows: {read}"
    return sorted(len(re.findall(r"^SELECT 'model\.", text, re.MULTILINE)) for text in texts)


def remembered(o: Orchestrated, table: str) -> dict[str, list[str]]:
    """By stage, moment, rows and highest position that a vault table remembers of its last load."""
    with closing(open_catalog(o.settings)) as catalog:
        properties = catalog.load_table(("vault", table)).properties
    prefix = "lakehouse.loaded.stg_"
    return {
        key.removeprefix("lakehouse.loaded."): value.split("|")[:3]
        for key, value in properties.items()
        if key.startswith(prefix)
    }


def in_stage(o: Orchestrated, stage: str) -> list[str]:
    """The same, asked of the stage itself."""
    asked = "cast(max(load_date) as varchar), cast(max_by(n, load_date) as varchar), max(highest)"
    by_moment = f"SELECT load_date, count(*) AS n, max(source_seq) AS highest FROM vault.{ident(stage)} GROUP BY 1"
    return list(query(o.settings, f"SELECT {asked} FROM ({by_moment})")[0])


@pytest.mark.slow
def test_once_it_is_warm_the_worker_asks_two_statements_for_all_models_of_a_step(
    shop: Orchestrated, tmp_path: Path
) -> None:
    """Each model asked two things before it wrote, and planning them cost more than the load. So did each test."""
    first = shop.tables[0]
    with working(shop, tmp_path / "worker.log"):
        for keys, lot in {
            520: [first.insert(501, 520)],
            530: [first.insert(521, 530), f"DELETE FROM {first.name} WHERE {first.key} <= 5"],
            531: [f"UPDATE {first.name} SET {first.key} = 900 WHERE {first.key} = 6"],
        }.items():
            since = query(shop.settings, "SELECT cast(current_timestamp AS varchar)")[0][0]
            shop.world.sql(*lot)
            shop.command("lakehouse", "ingest", shop.name, "--once")
            wait_for(lambda: is_loaded(shop))
            wait_for(lambda n=keys: shop.count("marts", mart_of(shop)) == n)  # type: ignore[misc]
            sent = {name: n for name, n in statements(shop, since).items() if name != mart_of(shop)}
            for name in (f"hub_{shop.name}_{first.name}", f"sat_{shop.name}_{first.name}"):
                for stage, mark in remembered(shop, name).items():
                    assert mark == in_stage(shop, stage), f"{name} remembers of {stage} what Trino would say"
        tested, read = marts_tested(shop, since), reads_of_loads(shop, since)  # of the last lot: before, it was cold
    assert not sent, "a model has a statement of its own"
    assert read == [1, 1, 2], "one for parsed and its stage, then two for a hub and a satellite"
    assert tested == 1, "both tests of the mart in one"
    assert not keys_twice(shop)


def plant_a_key_twice(o: Orchestrated) -> None:
    hub = f"vault.{ident(f'hub_{o.name}_{o.tables[0].name}')}"
    query(o.settings, f"INSERT INTO {hub} SELECT * FROM {hub} ORDER BY {hash_key(o)} DESC LIMIT 1")


@pytest.mark.slow
@pytest.mark.parametrize("by", ["a run", "the worker"])
def test_readers_never_see_a_mart_that_its_tests_refuse(shop: Orchestrated, tmp_path: Path, by: str) -> None:
    """A key that a hub had twice was in the marts for fourteen minutes: 6,021 facts of 5,011 sales."""
    before = shop.count("marts", mart_of(shop))
    plant_a_key_twice(shop)
    if by == "a run":
        with pytest.raises(AssertionError, match="unique"):
            shop.command("lakehouse", "run", "build_marts")
    else:
        log = tmp_path / "worker.log"
        with working(shop, log):
            wait_for(lambda: "build_marts is left to Dagster" in log.read_text())
    assert shop.count("marts", mart_of(shop)) == before
    assert not query(shop.settings, "SELECT 1 FROM information_schema.tables WHERE table_schema = 'marts_next'")


@pytest.mark.slow
def test_a_mart_waits_while_a_check_of_its_vault_fails(shop: Orchestrated) -> None:
    plant_a_key_twice(shop)
    with pytest.raises(AssertionError, match=r"test unique of vault"):
        shop.command("lakehouse", "run", f"load_{shop.name}")
    with pytest.raises(AssertionError, match=r"left out|fails|has failed"):
        shop.command("lakehouse", "run", "build_marts")


@pytest.mark.slow
def test_a_worker_that_is_killed_anywhere_leaves_nothing_wrong_and_nothing_out(
    shop: Orchestrated, tmp_path: Path
) -> None:
    dice, first, last = random.Random(20), shop.tables[0], 500
    for _ in range(5):
        with working(shop, tmp_path / "worker.log") as process:
            shop.world.sql(first.insert(last + 1, last + 40))
            shop.command("lakehouse", "ingest", shop.name, "--once")
            last += 40
            time.sleep(dice.uniform(0.0, 4.0))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        assert not is_served(shop.settings, f"load_{shop.name}"), "a dead worker serves nothing"
    with working(shop, tmp_path / "worker.log"):
        wait_for(lambda: is_loaded(shop))
        wait_for(lambda: shop.count("marts", mart_of(shop)) == last)
    assert not keys_twice(shop)
    shop.command("lakehouse", "reconcile", shop.name, "--views")
