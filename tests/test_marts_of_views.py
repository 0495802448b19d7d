"""A mart of a current view is built again when a refresh of the mirror shows what the view had to wait for."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehouse.catalog.open import newest_data_snapshots, open_catalog
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from orchestration.jobs.marts import mirrors_read, tables_read
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph
from tests.mirrored import declaring_columns, refreshed
from tests.readers import Declared, project_of
from tests.world import make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

DDL = """
CREATE TABLE item (item_id int PRIMARY KEY, units int);
INSERT INTO item SELECT i, i FROM generate_series(1, 20) i
"""
ANEW = "TRUNCATE item; INSERT INTO item SELECT i, 100 FROM generate_series(1, {}) i"


def test_a_mart_goes_past_a_truncate_with_its_view(settings: Settings, spark: Any, tmp_path: Path) -> None:
    """It was built before the refresh, from what the view showed then, and never again: no row of parsed was new."""
    raw = {"relation": "public.item", "key": ["item_id"]}
    world = declaring_columns(make_world(settings, DDL, {"item": RawPolicy(relation="public.item", key=("item_id",))}))
    n = world.source.name
    mirror, mart = (f"mirror_{n}", "item"), f"marts.total_{n}"
    with project_of(world, tmp_path / "project") as project, closing(open_catalog(settings)) as catalog:
        project.declare({"item": Declared({"item_id": "integer", "units": "integer"}, raw)})
        folder = project.settings.dbt_project_dir / "models" / "marts" / n
        folder.mkdir(parents=True)
        (folder / f"total_{n}.sql").write_text(
            f"select count(*) as items, sum(units) as units from {{{{ ref('current_{n}__item') }}}}\n"
        )
        dbt, manifest = WarmDbt(project.settings), load_manifest(project.settings)
        dbt.refresh()
        marts = Marts(project.settings, catalog, dbt, manifest, Graph(manifest))
        mine = {view: of for of, view in mirrors_read(manifest).items()}
        assert mine["parsed", f"current_{n}__item"] == mirror

        def built_by_the_worker() -> None:
            newest = newest_data_snapshots(catalog, [*tables_read(manifest), *mirrors_read(manifest)])
            results: list[NodeResult] = []
            marts.build([f"model.lakehouse.total_{n}"], (), newest, results)
            assert not [result for result in results if result.failed], results

        def built_by_hand() -> None:
            project.load("run")

        def passed() -> Any:
            return newest_data_snapshots(catalog, [mirror]).get(".".join(mirror))

        def load(*statements: str) -> None:
            world.sql(*statements)
            world.ingest(spark)
            project.load("run", "--exclude", f"total_{n}")

        def shown() -> list[Any]:
            return list(query(settings, f"SELECT items, units FROM {mart}")[0])

        load()
        built_by_hand()
        refreshed(world, spark)
        load("UPDATE item SET units = units + 1")
        refreshed(world, spark)
        built_by_the_worker()
        assert shown() == [20, 230]
        try:
            before = passed()
            assert before is None, "the view has followed all of it"
            for rows, first, then in (
                (5, built_by_the_worker, built_by_the_worker),
                (6, built_by_hand, built_by_the_worker),
                (7, built_by_the_worker, built_by_hand),
            ):
                load(ANEW.format(rows))
                first()
                waiting = shown()
                refreshed(world, spark)
                then()
                assert waiting != shown() == [rows, 100 * rows]
                assert passed() not in (None, before)
                before = passed()
            load("UPDATE item SET units = 1")
            refreshed(world, spark)
            assert passed() == before, "a regular change is in the view at once"
        finally:
            query(settings, f"DROP TABLE IF EXISTS {mart}")
