"""The macros as a dbt package: a project that is not this one uses them, and no macro relies on being in it."""

import json
from pathlib import Path

import pytest
from dbt_common.clients.jinja import get_environment
from jinja2 import nodes

from lakehouse.settings import DBT_PACKAGE, PROJECT_DIR
from tests.dbt_package import make_project, run_dbt
from tests.unit.dbt_macros import MACROS, macro_texts


@pytest.mark.slow
def test_another_project_needs_the_package_alone(tmp_path: Path) -> None:
    """Parsed without a server and without a network."""
    project = make_project(tmp_path)
    run_dbt(project, "deps")
    run_dbt(project, "parse")
    manifest = json.loads((project / "target" / "manifest.json").read_text())
    materialized = {n["name"]: n["config"].get("materialized") for n in manifest["nodes"].values()}
    assert materialized["hub_animal"] == "append_only"
    assert [name for name in materialized if name.startswith("cdc_vault_hub_is_sound")]
    assert f"operation.{DBT_PACKAGE.name}.{DBT_PACKAGE.name}-on-run-start-0" in manifest["nodes"]


def test_the_link_to_the_package_is_the_one_that_dbt_deps_makes() -> None:
    link = PROJECT_DIR / "dbt_project" / "dbt_packages" / DBT_PACKAGE.name
    assert link.is_symlink() and link.resolve() == DBT_PACKAGE


@pytest.mark.parametrize("file", [f.relative_to(DBT_PACKAGE) for f in sorted(DBT_PACKAGE.rglob("*.sql"))], ids=str)
def test_macros_call_each_other_by_the_name_of_their_package(file: Path) -> None:
    """By their own names alone they are found only in the project that is run."""
    tree = get_environment(None, capture_macros=True).parse((DBT_PACKAGE / file).read_text())
    called = {call.node.name for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)}
    assert not called & macro_texts().keys()
    assert MACROS.is_relative_to(DBT_PACKAGE)
