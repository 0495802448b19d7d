"""`lakehouse init`: a project of one's own, beside the checkout or an installed wheel."""

import json
import re
import stat
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lakehouse.declarations import Declarations, load_declarations
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import DBT_PACKAGE, PROJECT_DIR, is_project, load_settings
from lakehouse_cli.commands import command_line
from lakehouse_cli.machine import stack
from lakehouse_cli.machine.stack import by_hand
from lakehouse_project import create_project, new_project
from lakehouse_project.new_project import TEMPLATE
from scaffold import declared_alone
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


def test_its_ci_installs_this_product_and_no_other_of_its_name(project: Path) -> None:
    """It said `pip install lakehouse==…`, by which the package index gives somebody else's project."""
    ci = yaml.safe_load((project / ".github" / "workflows" / "lakehouse.yml").read_text())
    installs = [step["run"] for step in ci["jobs"]["check"]["steps"] if "pip" in step.get("run", "")]
    assert installs == [f"pip install wheels/lakehouse-{version('lakehouse')}-py3-none-any.whl"]


def test_it_is_the_project_of_commands_that_run_in_it(project: Path) -> None:
    (project / "dbt_project" / "models" / "sources" / "shop.yml").write_text(ORDERS)
    settings = load_settings()
    assert settings.project_dir == project
    assert [source.name for source in load_declarations(settings).sources] == ["shop"]
    assert load_manifest(settings)["metadata"]["project_name"] == "my_shop"
    assert (project / "dbt_project" / "dbt_packages" / "cdc_vault").resolve() == DBT_PACKAGE


@pytest.mark.parametrize("name", ["Shop", "my-shop", "../shop"])
def test_a_source_that_no_project_could_declare_is_refused_before_its_file_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("scaffold.declared_alone", lambda settings: Declarations(sources=()))
    refused = CliRunner().invoke(command_line(["scaffold"]), ["scaffold", name])
    assert f"source '{name}' cannot be declared by this name" in str(refused.exception)
    assert [file.name for file in (project / "dbt_project" / "models" / "sources").iterdir()] == ["meta.yml"]


@pytest.mark.slow
def test_outside_of_a_project_no_other_is_taken_in_its_place(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the checkout worked on the demo's project in any folder: `scaffold` wrote its models."""
    inside, nowhere = project / "dbt_project" / "models", project.parent / "nowhere"
    nowhere.mkdir()
    for folder, remedy in ((inside, f"run this in {project}"), (nowhere, "`lakehouse init FOLDER` makes one")):
        monkeypatch.chdir(folder)
        settings = load_settings()
        for read in (load_declarations, declared_alone):
            with pytest.raises(LakehouseError, match=re.escape(f"{folder} holds no project")) as refused:
                read(settings)
            assert remedy in str(refused.value)
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(project))
    assert load_declarations(load_settings()).sources == ()


def test_a_project_that_is_named_from_elsewhere_has_its_settings_and_its_home(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were those of the working folder, where `up` made a second lake."""
    monkeypatch.delenv("LAKEHOUSE_HOME")
    (project / "lakehouse.toml").write_text('warehouse = "s3://shop/"\n')
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lakehouse.toml").write_text('warehouse = "s3://another/"\n')
    monkeypatch.chdir(elsewhere)
    assert load_settings().warehouse == "s3://another/"
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", f"../{project.name}")
    found = load_settings()
    assert (found.warehouse, found.home, found.project_dir) == ("s3://shop/", project / ".lakehouse", project)
    (project / "lakehouse.toml").write_text('home = "lake"\n')
    assert load_settings().home == project / "lake"
    monkeypatch.setenv("LAKEHOUSE_HOME", "mine")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "lakehouse.toml")
    found = load_settings()
    assert (found.warehouse, found.home) == ("s3://another/", elsewhere / "mine"), "what is said otherwise"


def test_settings_of_another_place_leave_the_project_of_the_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project.joinpath("lakehouse.toml").rename(tmp_path / "shop.toml")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(elsewhere))
    assert load_settings().project_dir == project


def test_no_servers_are_started_where_there_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four servers and a home were made in whatever folder `up` ran in."""
    for name in ("LAKEHOUSE_CONFIG", "LAKEHOUSE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LakehouseError, match="holds no project"):
        stack.up()
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(tmp_path / "misspelt"))
    with pytest.raises(LakehouseError, match="misspelt holds no project"):
        stack.up()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_follows_the_installation_to_another_place(project: Path) -> None:
    link = project / "dbt_project" / "dbt_packages" / "cdc_vault"
    link.parent.mkdir()
    link.symlink_to(project / "an earlier environment")
    load_manifest(load_settings())
    assert link.resolve() == DBT_PACKAGE


def test_a_folder_that_takes_no_link_to_the_package_is_told_with_what_to_do(project: Path) -> None:
    """In an image, whose files nobody may write, every command ended with a traceback."""
    (project / "dbt_project" / "dbt_packages").touch()
    said = r"dbt_packages/cdc_vault: the link .* `ln -sfn /\S+cdc_vault '/.+cdc_vault'`"
    with pytest.raises(LakehouseError, match=said):
        load_manifest(load_settings())


@pytest.mark.slow
def test_a_copy_of_the_package_stays(project: Path) -> None:
    own = project / "dbt_project" / "dbt_packages" / "cdc_vault"
    own.mkdir(parents=True)
    (own / "dbt_project.yml").write_text((DBT_PACKAGE / "dbt_project.yml").read_text())
    (own / "macros").symlink_to(DBT_PACKAGE / "macros")
    load_manifest(load_settings())
    assert not own.is_symlink()


@pytest.mark.slow
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


@pytest.mark.parametrize("written", [1, 5, 8])
def test_what_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """It was refused, with half a project left that dbt and git took for a whole one."""
    folder, wrote = tmp_path / "shop", list[Path]()

    def killed(path: Path, text: str) -> None:
        if len(wrote) == written:
            raise KeyboardInterrupt
        wrote.append(path)
        write_atomically(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(new_project, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            create_project(folder)
    assert not is_project(folder)
    (folder / ".README.md.4711").write_text("a part of")
    made = create_project(folder)
    assert is_project(folder) and all((folder / path).exists() for path in made)
    with pytest.raises(LakehouseError, match="already"):
        create_project(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(LakehouseError, match=r"holds README.md already"):
        create_project(other)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("dbt", "lake_dbt"), ("cdc-vault", "lake_cdc_vault"), ("Bücher & Co", "bucher_co"), ("2026", "lake_2026")],
)
def test_its_name_is_one_that_dbt_accepts(folder: str, name: str) -> None:
    """dbt has a package of the first name, and we one of the second: every command failed."""
    assert new_project.dbt_name(folder) == name


def test_without_a_project_commands_name_the_remedy(tmp_path: Path) -> None:
    settings = load_settings(project_dir=tmp_path, home=tmp_path / "home")
    with pytest.raises(LakehouseError, match="`lakehouse init FOLDER` makes one"):
        load_manifest(settings)
