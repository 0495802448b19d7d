"""`/ready` of a follower and a worker whose load hangs: both said that they were ready."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ingestion.run import at_work as module
from ingestion.run.at_work import at_work, stuck
from ingestion.state import progress, store
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import load_settings
from orchestration.worker.plan import Task
from orchestration.worker.state import TaskState
from tests.unit.some_worker import some_worker

LIMIT = 1800.0


@pytest.fixture
def states(cluster: str) -> Any:
    with connect_catalog(load_settings(catalog_url=cluster)) as connection:
        store.ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.streams, lakehouse.progress")
        store.create_stream(connection, "shop", "lakehouse_shop", store.Cluster("1", 1), 0, kind="postgres")
        yield connection


def published(states: CatalogConnection, table: str, seconds: float) -> None:
    states.execute(f"UPDATE lakehouse.{table} SET updated_at = clock_timestamp() - make_interval(secs => {seconds})")


def test_a_follower_whose_cycle_or_load_hangs_is_not_ready(
    states: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with at_work("shop", "cycle"):
        clock[0] += 2700
        published(states, "streams", 60)
        assert stuck(states, "shop", LIMIT) == "", "a backlog that gets on"
        published(states, "streams", 2400)
        assert stuck(states, "shop", LIMIT) == "its cycle has made no progress for 40 minutes"
        assert stuck(states, "bank", LIMIT) == ""
    assert stuck(states, "shop", LIMIT) == "", "it waits for changes"
    with at_work("shop", "load"):
        clock[0] += 2700
        published(states, "streams", 1)
        assert stuck(states, "shop", LIMIT) == "its load has made no progress for 45 minutes", "cycles go on beside it"
        progress.begin(states, "shop", "snapshot", 100)
        assert stuck(states, "shop", LIMIT) == "", "a long one that gets on"
        published(states, "progress", 2400)
        assert stuck(states, "shop", LIMIT) == "its load has made no progress for 40 minutes"


def test_a_worker_whose_load_hangs_is_ready_for_no_job() -> None:
    seen = list[dict[str, str]]()
    task = Task("load_shop", (("raw_shop", "sales"),))
    jobs = {name: TaskState(served=name != "load_bank") for name in ("load_shop", "build_marts", "load_bank")}

    def load(*_: object) -> bool:
        job, begun = worker._at or ("", 0.0)
        seen.append(worker.ready())
        worker._at = (job, begun - 2700)
        seen.append(worker.ready())
        return False

    worker = some_worker(states=jobs, _load=load, _settings=load_settings())
    worker._attend(task, jobs["load_shop"])
    left = {"load_bank": "it is left to Dagster"}
    at_it = "the worker has been at load_shop for 45 minutes"
    assert seen[0] == worker.ready() == {"load_shop": "", "build_marts": "", **left}
    assert seen[1] == {"load_shop": at_it, "build_marts": at_it, **left}
    worker._at = "tests", time.monotonic() - 2700
    assert worker.ready()["load_shop"] == "the worker has been at tests for 45 minutes"
