"""`lakehouse init`: a project of one's own, beside the checkout or an installed wheel."""

import json
import stat
from pathlib import Path

import pytest
import yaml

from lakehouse.declarations import load_declarations
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import DBT_PACKAGE, PROJECT_DIR, load_settings
from lakehouse_cli.machine.stack import by_hand
from lakehouse_project import create_project
from lakehouse_project.new_project import TEMPLATE
from tests.dbt_package import run_dbt

ORDERS = """
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: orders
        config: {meta: {raw: {relation: public.orders, key: [id]}}}
        columns: [{name: id, data_type: integer}]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which commands run."""
    monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "My shop"
    create_project(folder)
    monkeypatch.chdir(folder)
    return folder


def test_its_settings_are_private_and_kept_from_git(project: Path) -> None:
    assert stat.S_IMODE((project / "lakehouse.toml").stat().st_mode) == 0o600
    assert "lakehouse.toml" in (project / ".gitignore").read_text().splitlines()


def test_it_is_the_project_of_commands_that_run_in_it(project: Path) -> None:
    (project / "dbt_project" / "models" / "sources" / "shop.yml").write_text(ORDERS)
    settings = load_settings()
    assert settings.project_dir == project
    assert [source.name for source in load_declarations(settings).sources] == ["shop"]
    assert load_manifest(settings)["metadata"]["project_name"] == "my_shop"
    assert (project / "dbt_project" / "dbt_packages" / "cdc_vault").resolve() == DBT_PACKAGE


def test_it_follows_the_installation_to_another_place(project: Path) -> None:
    link = project / "dbt_project" / "dbt_packages" / "cdc_vault"
    link.parent.mkdir()
    link.symlink_to(project / "an earlier environment")
    load_manifest(load_settings())
    assert link.resolve() == DBT_PACKAGE


def test_a_copy_of_the_package_stays(project: Path) -> None:
    own = project / "dbt_project" / "dbt_packages" / "cdc_vault"
    own.mkdir(parents=True)
    (own / "dbt_project.yml").write_text((DBT_PACKAGE / "dbt_project.yml").read_text())
    (own / "macros").symlink_to(DBT_PACKAGE / "macros")
    load_manifest(load_settings())
    assert not own.is_symlink()


def test_dbt_by_hand_finds_the_package(project: Path) -> None:
    """`lakehouse env` exports the addresses under other names than the profile reads."""
    variables = by_hand(load_settings())
    run_dbt(project / "dbt_project", "deps", **variables)
    run_dbt(project / "dbt_project", "parse", **variables)
    manifest = json.loads((project / "dbt_project" / "target" / "manifest.json").read_text())
    assert "macro.cdc_vault.parsed_table" in manifest["macros"]


def test_models_are_configured_as_in_the_demo() -> None:
    demo, own = (
        yaml.safe_load((folder / "dbt_project" / "dbt_project.yml").read_text()) for folder in (PROJECT_DIR, TEMPLATE)
    )
    shared = dict(demo["models"]["lakehouse"])
    del shared["+meta"], shared["unit"], demo["unit_tests"]
    assert demo | {"name": "my_project", "models": {"my_project": shared}} == own
    assert (PROJECT_DIR / "workspace.yaml").read_text() == (TEMPLATE / "workspace.yaml").read_text()


@pytest.mark.parametrize(
    ("folder", "problem"),
    [("full", "holds notes.txt already"), ("notes.txt", "is a file"), ("…", "no letter")],
)
def test_nothing_is_written_where_it_cannot_be_made(tmp_path: Path, folder: str, problem: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LakehouseError, match=problem):
        create_project(tmp_path / folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_project_commands_name_the_remedy(tmp_path: Path) -> None:
    settings = load_settings(project_dir=tmp_path, home=tmp_path / "home")
    with pytest.raises(LakehouseError, match="`lakehouse init FOLDER` makes one"):
        load_manifest(settings)
