"""The warm worker on a real stack: it loads cuts without a run and survives kills; refused marts stay unseen."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse.catalog.open import open_catalog
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from orchestration.runs.processes.presence import is_served
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
    tested = f"columns: [{{name: {key}, data_tests: [unique]}}]"
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
        assert "a worker is alive" in tick(shop)["skipped"]
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
