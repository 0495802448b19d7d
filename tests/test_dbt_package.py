"""The macros as a dbt package in a project of somebody else, on Trino."""

from pathlib import Path

import pytest

from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.dbt_package import make_project, run_dbt

pytestmark = pytest.mark.stack


@pytest.mark.slow
def test_another_project_builds_and_compiles_a_vault_with_the_package(settings: Settings, tmp_path: Path) -> None:
    project, server = make_project(tmp_path), dbt_environment(settings)
    run_dbt(project, "deps")
    for schema in ("stranger", "stranger_parsed"):
        query(settings, f"drop schema if exists {schema} cascade")
    run_dbt(project, "build", **server)
    assert query(settings, "select count(*) from stranger_parsed.hub_animal") == [[0]]
    assert query(settings, "select record_source from stranger_parsed.sat_animal") == [["ghost"], ["ghost"]]
    run_dbt(project, "build", **server)
    assert query(settings, "select count(*) from stranger_parsed.sat_animal") == [[2]]
    run_dbt(project, "compile", "--select", "hub_animal", **server)
    (compiled,) = (project / "target" / "compiled").rglob("hub_animal.sql")
    assert compiled.read_text().strip().startswith('-- lakehouse: {"new_data": false')
