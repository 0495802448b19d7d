"""Two sources that share a hub: what one declares is in the models of the other, and goes from them with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ingestion.sources.postgres.setup import Kept
from lakehouse.declarations import load_declarations
from lakehouse.settings import load_settings
from lakehouse_cli.commands import command_line
from lakehouse_project import create_project

SHOP = """\
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: people
        config:
          meta:
            raw: {relation: public.people, key: [id]}
            vault: {hub: person, track_mentions: true, satellites: {person_details: [name]}}
        columns: [{name: id, data_type: bigint}, {name: name, data_type: text}]
"""
CRM = """\
sources:
  - name: crm
    schema: raw_crm
    tables:
      - name: tickets
        config:
          meta:
            raw: {relation: public.tickets, key: [id]}
            vault: {hub: ticket, references: {person: person_id}, links: {ticket_person: [person]}}
        columns: [{name: id, data_type: bigint}, {name: person_id, data_type: bigint}]
"""
SHARED = ("models/vault/shop/hub_person.sql", "models/vault/shop/rts_person.sql")
Run = Callable[..., Any]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands in a project that declares the shop, with its models; no source has a server."""
    monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    for name in ("SHOP", "CRM"):
        monkeypatch.setenv(f"LAKEHOUSE_SOURCES__{name}__URL", "postgresql://nobody@localhost/nothing")
    create_project(tmp_path / "lake")
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(tmp_path / "lake"))
    monkeypatch.chdir(tmp_path / "lake" / "dbt_project")
    monkeypatch.setattr("lakehouse_cli.source.remove.take_back", lambda *_: Kept())
    Path("models/sources/shop.yml").write_text(SHOP)
    app = command_line(["scaffold", "remove"])

    def call(*arguments: str) -> Any:
        return CliRunner().invoke(app, arguments)

    assert call("scaffold").exit_code == 0
    return call


def shared() -> list[str]:
    return [Path(name).read_text() for name in SHARED]


def test_models_of_a_hub_follow_the_tables_of_other_sources(run: Run) -> None:
    """They were left as they were: keys of the new source were missing, or a stage that was gone broke the project."""
    alone = shared()
    Path("models/sources/crm.yml").write_text(CRM)
    checked = run("scaffold", "crm", "--check")
    assert shared() == alone and all(f"changed {name}" in checked.stdout for name in SHARED)

    added = run("scaffold", "crm")

    assert added.exit_code == 0 and all(f"changed {name}" in added.stdout for name in SHARED)
    assert all("stg_crm__tickets" in text for text in shared())
    assert run("scaffold", "--check").exit_code == 0

    removed = run("remove", "crm", "--yes")

    assert removed.exit_code == 0, removed.exception
    assert all(f"changed {name}" in removed.stdout for name in SHARED) and shared() == alone
    assert not list(Path("models").rglob("*crm*"))
    assert [source.name for source in load_declarations(load_settings()).sources] == ["shop"]


def test_edited_models_of_a_shared_hub_stay_and_are_named(run: Run) -> None:
    hub = Path(SHARED[0])
    hub.write_text(edited := hub.read_text() + "-- ours\n")
    Path("models/sources/crm.yml").write_text(CRM)
    assert f"yours   {hub}" in run("scaffold", "crm").stdout and hub.read_text() == edited
    assert "stg_crm__tickets" in Path(SHARED[1]).read_text()
    hub.write_text(hub.read_text().replace("stg_shop__people", "stg_crm__tickets"))

    removed = run("remove", "crm", "--yes")

    assert f"stays   {hub}" in removed.stdout
    assert "models of yours still read it" in str(removed.exception) and "hub_person" in str(removed.exception)


def test_a_source_whose_hub_others_refer_to_stays_whole(run: Run) -> None:
    """It was removed with all its models before anybody was told that the others need it, and not which table does."""
    Path("models/sources/crm.yml").write_text(CRM)
    run("scaffold", "crm")
    before = {path: path.read_text() for path in Path("models").rglob("*") if path.is_file()}
    refused = run("remove", "shop", "--yes")
    assert "nothing was written, as the declarations would be refused" in str(refused.exception)
    assert "crm.yml" in str(refused.exception)
    assert "no table declares a hub 'person', which crm.tickets refers to" in str(refused.exception)
    assert before == {path: path.read_text() for path in Path("models").rglob("*") if path.is_file()}


def test_models_of_a_source_that_is_not_scaffolded_yet_name_no_stage_that_is_missing(run: Run) -> None:
    """They named the stage of a table that was declared and not scaffolded, and dbt could not parse the project."""
    visits = """\
      - name: visits
        config:
          meta:
            raw: {relation: public.visits, key: [id]}
            vault: {hub: visit, references: {person: person_id}, links: {visit_person: [person]}}
        columns: [{name: id, data_type: bigint}, {name: person_id, data_type: bigint}]
"""
    alone = shared()
    Path("models/sources/shop.yml").write_text(SHOP + visits)
    Path("models/sources/crm.yml").write_text(CRM)

    added = run("scaffold", "crm")

    assert shared() == alone and all(f"behind  {name}" in added.stdout for name in SHARED)
    assert "`lakehouse scaffold shop`" in added.stdout
    load_declarations(load_settings())
    run("scaffold", "shop")
    assert all("stg_crm__tickets" in text and "stg_shop__visits" in text for text in shared())
    Path("models/stage/shop/stg_shop__visits.sql").unlink()

    refused = run("remove", "crm", "--yes")

    assert "run `lakehouse scaffold shop` first" in str(refused.exception)
    assert Path("models/stage/crm/stg_crm__tickets.sql").exists()


def test_models_of_others_that_have_nothing_to_do_with_a_source_are_left_alone(run: Run) -> None:
    hub = Path(SHARED[0])
    hub.write_text(hub.read_text() + "-- ours\n")
    Path("models/sources/crm.yml").write_text(
        CRM.replace(", references: {person: person_id}, links: {ticket_person: [person]}", "")
    )
    assert "shop" not in run("scaffold", "crm").stdout
