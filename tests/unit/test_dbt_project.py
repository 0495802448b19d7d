"""The project as a whole, from dbt's manifest: everything described, typed, maintained, and no raw column forgotten."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import project_fingerprint
from lakehouse.settings import load_settings
from orchestration.assets.translator import demand
from scaffold import diagram, models_of, plan

PROJECT = Path(__file__).parents[2] / "dbt_project"
VAULTED = ("retail", "bank")
TABLES = ("append_only", "rebuilt_table")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Parsed with no server and no environment."""
    target = tmp_path_factory.mktemp("dbt")
    dbt = Path(sys.executable).with_name("dbt")
    places = ["--project-dir", PROJECT, "--profiles-dir", PROJECT, "--target-path", target, "--log-path", target]
    done = subprocess.run([dbt, "parse", "--quiet", *places], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return json.loads((target / "manifest.json").read_text())


def models(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in manifest["nodes"].values() if node["resource_type"] == "model"]


def test_every_model_and_column_is_described_and_typed(manifest: dict[str, Any]) -> None:
    for model in models(manifest):
        assert model["description"] and model["columns"], model["name"]
        for column in model["columns"].values():
            assert column["description"] and column["data_type"], f"{model['name']}.{column['name']}"
    for source in manifest["sources"].values():
        assert source["description"], source["name"]


def test_every_table_says_how_it_is_maintained_and_no_view_does(manifest: dict[str, Any]) -> None:
    for model in models(manifest):
        is_table = model["config"]["materialized"] in TABLES
        assert ("maintenance" in model["config"]["meta"]) == is_table, model["name"]
        assert model["config"]["meta"]["owners"], model["name"]


def test_every_test_says_what_it_demands(manifest: dict[str, Any]) -> None:
    """In the UI, 115 of 148 checks had a name and nothing else."""
    tests = [key for key, node in manifest["nodes"].items() if node["resource_type"] == "test"]
    assert tests and not [test for test in tests if not demand(manifest, test)]


def test_every_table_is_tested(manifest: dict[str, Any]) -> None:
    tests = [node for node in manifest["nodes"].values() if node["resource_type"] == "test"]
    tested = {parent for test in tests for parent in test["depends_on"]["nodes"]}
    tables = {model["unique_id"] for model in models(manifest) if model["config"]["materialized"] in TABLES}
    lake = {key: source for key, source in manifest["sources"].items() if source["schema"].startswith("raw_")}
    raw = {key for key, source in lake.items() if not source["config"]["meta"].get("optional")}  # may not be there
    assert tables | raw <= tested


def test_a_satellite_says_what_its_hashdiff_covers(manifest: dict[str, Any]) -> None:
    stages = " ".join(model["raw_code"] for model in models(manifest) if model["name"].startswith("stg_"))
    for model in models(manifest):
        if model["name"].startswith("sat_") and not model["name"].endswith("_v1"):
            payload = re.search(r"src_payload=\[(.*?)\]", model["raw_code"])
            hashed = re.search(rf"'hd_{model['name'][4:]}': \{{.*?'columns': \[(.*?)\]\}}", stages)
            assert payload and hashed and payload[1] == hashed[1], model["name"]


def test_every_raw_column_is_in_the_vault_or_declared_ignored(manifest: dict[str, Any]) -> None:
    for source in manifest["sources"].values():
        if source["source_name"] in VAULTED:
            stage = f"stg_{source['source_name']}__{source['name']}"
            readers = [m["raw_code"] for m in models(manifest) if m["name"] == stage or f"'{stage}'" in m["raw_code"]]
            ignored = source["config"]["meta"].get("vault", {}).get("ignored", [])
            for column in source["columns"]:
                used = any(f"'{column}'" in code for code in readers)
                assert used != (column in ignored), f"{stage}.{column}"


@pytest.mark.parametrize("folder", ["models", "macros", "tests", "seeds", "snapshots"])
def test_a_change_in_any_folder_of_dbt_is_noticed(tmp_path: Path, folder: str) -> None:
    """A snapshot that was added was not, so that an erasure did not know it."""
    settings = load_settings(home=tmp_path).model_copy(update={"project_dir": tmp_path})
    before = project_fingerprint(settings)
    (made := settings.dbt_project_dir / folder / "people.sql").parent.mkdir(parents=True)
    made.touch()
    assert project_fingerprint(settings) != before


def test_a_change_in_what_is_linked_is_noticed_and_not_what_a_package_makes_for_itself(tmp_path: Path) -> None:
    """A local package is a link, and so may a folder of models be: dbt reads them, and nothing was parsed again."""
    settings = load_settings(home=tmp_path / "home").model_copy(update={"project_dir": tmp_path})
    project, shared = settings.dbt_project_dir, tmp_path / "shared"
    for folder in (project / "models", project / "dbt_packages", shared / "models", shared / "target"):
        folder.mkdir(parents=True)
    (project / "dbt_packages" / "shared").symlink_to(shared, target_is_directory=True)
    (project / "models" / "common").symlink_to(tmp_path / "common", target_is_directory=True)
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "above").symlink_to(tmp_path, target_is_directory=True)

    def is_seen(file: Path) -> bool:
        before = project_fingerprint(settings)
        file.write_text("select 1")
        return project_fingerprint(settings) != before

    assert is_seen(shared / "models" / "people.sql") and is_seen(shared / "dbt_project.yml")
    (project / "models" / "common" / "above").unlink()
    assert is_seen(tmp_path / "common" / "people.sql")
    assert not is_seen(shared / "target" / "people.sql")
    before = project_fingerprint(settings)
    (project / "dbt_packages" / "shared").unlink()
    (project / "dbt_packages" / "shared").symlink_to(tmp_path / "common", target_is_directory=True)
    assert project_fingerprint(settings) != before


def test_a_variable_that_the_project_names_is_noticed_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest kept what the variable had been when a file changed last."""
    settings = load_settings(home=tmp_path / "home").model_copy(update={"project_dir": tmp_path})
    models = settings.dbt_project_dir / "models"
    models.mkdir(parents=True)

    def is_seen(name: str) -> bool:
        before = project_fingerprint(settings)
        monkeypatch.setenv(name, "other")
        return project_fingerprint(settings) != before

    assert not is_seen("SHOP_SCHEMA")
    (models / "shop.yml").write_text("schema: \"{{ env_var('SHOP_SCHEMA', 'raw_shop') }}\"")
    (models / "people.sql").write_text("{{ config(alias=env_var( \"PEOPLE\" )) }} {{ env_var('LAKEHOUSE_RUN_ID') }}")
    project_fingerprint(settings)
    monkeypatch.setenv("SHOP_SCHEMA", "raw_shop")
    assert is_seen("SHOP_SCHEMA") and is_seen("PEOPLE")
    assert not is_seen("LAKEHOUSE_RUN_ID") and not is_seen("OTHER_PROGRAM")


def test_identifiers_of_runs_stay_out_of_the_vars_so_that_dbt_never_parses_again(manifest: dict[str, Any]) -> None:
    assert all("env_var(" not in model["raw_code"] for model in models(manifest))


def test_the_models_are_what_the_declarations_mean(manifest: dict[str, Any]) -> None:
    declared = declarations_from(manifest, PROJECT)
    for source in declared.sources:
        drifted = [c for c in plan(PROJECT, source.name, models_of(declared, source.name)) if c.kind != "same"]
        assert not drifted, f"lakehouse scaffold {source.name}"


def test_the_diagrams_in_the_docs_are_current(manifest: dict[str, Any]) -> None:
    page = (PROJECT.parent / "docs" / "data-vault.md").read_text()
    for source in VAULTED:
        assert diagram(declarations_from(manifest, PROJECT), source) in page, "make docs"


def test_every_macro_of_the_vault_has_a_unit_test_that_no_load_knows(manifest: dict[str, Any]) -> None:
    assert not manifest["unit_tests"] and not [m for m in models(manifest) if m["name"].startswith("unit_")]
    tested = {
        test["model"]
        for file in (PROJECT / "models" / "unit").glob("*.yml")
        for test in yaml.safe_load(file.read_text())["unit_tests"]
    }
    used = {path.stem: path.read_text() for path in (PROJECT / "models" / "unit").glob("*.sql")}
    called = {match for name in tested for match in re.findall(r"\{\{ (?:cdc_vault\.)?(\w+)\(", used[name])}
    calls = {match for m in models(manifest) for match in re.findall(r"\{\{ (?:cdc_vault\.)?(\w+)\(", m["raw_code"])}
    further = {"nh_link", "ma_sat", "rec_track_sat", "ref_table"}  # no sample has a table for them
    assert (calls | further) - called == {"parsed_table", "current_table", "ref"}
