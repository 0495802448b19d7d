"""The worker in this process, on real servers: tables that leave the cuts and come back."""

from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest

from ingestion import pause, resume
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from orchestration.runs.arrivals import ARRIVED
from orchestration.runs.subset import failing_checks
from orchestration.worker.loop import open_worker
from tests.readers import declared_as_is, project_of
from tests.world import make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

DDL = """
CREATE TABLE orders (id int PRIMARY KEY, item text);
CREATE TABLE notes (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (1, 'a');
INSERT INTO notes VALUES (1, 'a')
"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "notes")}


def test_rows_of_a_table_that_left_the_cuts_before_they_were_loaded_are_loaded_once_it_is_back(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """The worker had seen their snapshot and loaded nothing of it; no snapshot later, they were never loaded."""
    world = make_world(settings, DDL, TABLES)
    name = world.source.name
    check = dg.AssetCheckKey(dg.AssetKey([f"raw_{name}", "orders"]), ARRIVED)
    with project_of(world, tmp_path / "project") as project:
        project.declare({table: declared_as_is(world, table) for table in TABLES})
        world.ingest(spark)
        project.load("run")

        def loaded() -> list[int]:
            return [project.rows(f"SELECT count(*) FROM {project.view(table)}")[0][0] for table in TABLES]

        world.sql("INSERT INTO orders VALUES (2, 'b')")
        world.ingest(spark)
        pause(world.settings, world.source.table("orders"))
        world.sql("INSERT INTO notes VALUES (2, 'b')")
        world.ingest(spark)
        with open_worker(project.settings, Event()) as (worker, _, _):
            absent = dg.AssetCheckEvaluation(asset_key=check.asset_key, check_name=ARRIVED, passed=False)
            worker._instance.report_runless_asset_event(absent)
            worker.load_what_is_due()
            assert worker.ready() == {f"load_{name}": ""}
            assert loaded() == [1, 2], "orders is in no cut"
            assert failing_checks(worker._instance, [check]) == [check]
            resume(world.settings, world.declarations, name, ["orders"], spark)
            worker.load_what_is_due()
            assert loaded() == [2, 2]
            assert not failing_checks(worker._instance, [check])
