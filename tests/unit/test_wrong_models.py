"""Models that would mean something wrong without a word are refused, with the file and what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_project.new_project import create_project
from orchestration.assets.wrong_models import (
    REF,
    refuse_early_readers,
    refuse_hidden_marts,
    refuse_marts_in_place,
    refuse_marts_without_ref,
    refuse_models_as_sources,
    refuse_next_schemas,
    refuse_repeated_rows,
    refuse_untagged_marts,
    refuse_wrong_models,
)
from tests.unit.test_sound_tables import manifest, model

PLACE = Path("project")
TAGGED = {"tags": ["marts"]}


def tagged() -> dict[str, Any]:
    """The marts with their tag."""
    found = manifest()
    for name in ("dim", "fact", "report"):
        found["nodes"][f"model.{name}"] |= TAGGED
    return found


def snapshot(name: str, *reads: str) -> dict[str, Any]:
    node = model(name, *reads, materialized="snapshot")
    return {**node, "resource_type": "snapshot", "original_file_path": f"snapshots/{name}.yml"}


def with_macros(**calls: list[str]) -> dict[str, Any]:
    """Macros of a project and of the package, each with those that it calls."""
    found = manifest()
    found["metadata"] = {"project_name": "shop"}
    names = {name.replace("__", "."): called for name, called in calls.items()}
    found["macros"] = {
        f"macro.{name}": {"depends_on": {"macros": [f"macro.{key}" for key in called]},
                          "original_file_path": f"macros/{name.partition('.')[2]}.sql"}
        for name, called in names.items()
    }  # fmt: skip
    return found


def appended(sql: str = "select 1 as id", *macros: str, patch: str | None = None) -> dict[str, Any]:
    """A project whose model `plain` is appended to."""
    found = with_macros(
        cdc_vault__load_header=[], cdc_vault__plan_header=["cdc_vault.load_header"], cdc_vault__hash=[],
        cdc_vault__sat=["cdc_vault.plan_header"], cdc_vault__parsed_table=["cdc_vault.load_header"],
        cdc_vault__stage=["cdc_vault.load_header"],
        shop__own_sat=["cdc_vault.sat"],
    )  # fmt: skip
    node = model("plain", materialized="append_only")
    node |= {"raw_code": sql, "patch_path": patch}
    node["depends_on"]["macros"] = [f"macro.{name}" for name in macros]
    found["nodes"] = {"model.plain": node}
    return found


@pytest.mark.parametrize("through", [None, "view", "ephemeral"])
@pytest.mark.parametrize("kind", ["table", "incremental", "append_only", "rebuilt_table"])
def test_what_a_load_would_make_of_a_mart_is_refused(kind: str, through: str | None) -> None:
    """It was made in the load before the mart, of its former state, each time."""
    found = tagged()
    found["nodes"]["model.own"] = model("own", "model.hub", materialized=kind) | {"schema": "own"}
    found["nodes"]["model.seen"] = model("seen", "model.fact", materialized=through or "view")
    refuse_early_readers(found, PLACE)
    found["nodes"]["model.own"]["depends_on"]["nodes"].append("model.seen" if through else "model.fact")
    with pytest.raises(LakehouseError, match=r"^project/models/own.sql: own reads the mart fact .* the tag marts, and"):
        refuse_early_readers(found, PLACE)
    found["nodes"]["model.own"] |= TAGGED
    refuse_early_readers(found, PLACE)


@pytest.mark.parametrize("kind", ["rebuilt_table", "view", "table", "snapshot"])
def test_what_is_in_the_schema_of_the_marts_without_their_tag_is_refused(kind: str) -> None:
    """The worker built it with the marts, and no job did where no worker runs."""
    found = tagged()
    made = snapshot("own", "model.hub") if kind == "snapshot" else model("own", "model.hub", materialized=kind)
    found["nodes"]["model.own"] = made | {"schema": "marts", "tags": []}
    with pytest.raises(LakehouseError, match=r"/own.(sql|yml): own is in the schema marts without"):
        refuse_untagged_marts(found, PLACE)
    for right in ({"schema": "own"}, TAGGED):
        found["nodes"]["model.own"] = made | {"schema": "marts", "tags": []} | right
        refuse_untagged_marts(found, PLACE)


def test_a_snapshot_of_dbt_that_reads_a_mart_is_refused_with_or_without_the_tag() -> None:
    """It kept the mart's state of one load before, and no build would take it beside the one that readers see."""
    found = tagged()
    found["nodes"]["snapshot.kept"] = snapshot("kept", "model.hub")
    refuse_early_readers(found, PLACE)
    refuse_marts_in_place(found, PLACE)
    found["nodes"]["snapshot.kept"] = snapshot("kept", "model.dim")
    with pytest.raises(LakehouseError, match=r"^project/snapshots/kept.yml: kept reads the mart dim .* or the vault$"):
        refuse_early_readers(found, PLACE)
    found["nodes"]["snapshot.kept"] |= TAGGED
    with pytest.raises(LakehouseError, match=r"/kept.yml: kept has the tag marts .* snapshot, .* without that tag$"):
        refuse_marts_in_place(found, PLACE)


@pytest.mark.parametrize("kind", ["table", "incremental", "append_only", "materialized_view"])
def test_a_mart_that_dbt_would_write_in_place_is_refused(kind: str) -> None:
    """Readers saw it before its tests, and it was made of the former state of the marts that it reads."""
    found = tagged()
    found["nodes"]["model.own"] = model("own", "model.fact", materialized=kind) | TAGGED
    with pytest.raises(LakehouseError, match=rf"^project/models/own.sql: own .* {kind}, .* as rebuilt_table or view$"):
        refuse_marts_in_place(found, PLACE)


@pytest.mark.parametrize("kind", ["rebuilt_table", "view", "ephemeral"])
def test_a_mart_that_is_built_beside_the_one_that_readers_see_or_stores_nothing_is_not_refused(kind: str) -> None:
    found = tagged()
    found["nodes"]["model.own"] = model("own", "model.fact", materialized=kind) | TAGGED
    found["nodes"]["seed.codes"] = model("codes", materialized="seed") | TAGGED | {"resource_type": "seed"}
    refuse_marts_in_place(found, PLACE)
    refuse_early_readers(found, PLACE)


def test_marts_of_a_project_without_our_ref_are_refused() -> None:
    """Their tests read what readers saw, and they were published untested."""
    foreign = {"cdc_vault__next_of_ref": [], "other__ref": ["cdc_vault.next_of_ref"]}
    with pytest.raises(LakehouseError, match=rf"^project/dbt_project.yml: the project has no .*: copy {REF} to its"):
        refuse_marts_without_ref(with_macros(**foreign), PLACE)
    with pytest.raises(LakehouseError, match=r"^project/macros/ref.sql: the project has no macro `ref` that calls"):
        refuse_marts_without_ref(with_macros(**foreign, shop__ref=["dbt.ref"]), PLACE)
    assert REF.is_file()


def test_a_ref_of_the_projects_own_that_calls_ours_is_not_refused_nor_is_a_project_without_marts() -> None:
    ours = {"cdc_vault__next_of_ref": [], "shop__next": ["cdc_vault.next_of_ref"]}
    refuse_marts_without_ref(with_macros(**ours, shop__ref=["shop.ref", "cdc_vault.next_of_ref"]), PLACE)
    refuse_marts_without_ref(with_macros(**ours, shop__ref=["shop.next"]), PLACE)
    found = with_macros(cdc_vault__next_of_ref=[])
    found["nodes"] = {"model.hub": found["nodes"]["model.hub"]}
    refuse_marts_without_ref(found, PLACE)


@pytest.mark.parametrize("macros", [(), ("cdc_vault.hash",), ("cdc_vault.stage",)])
def test_a_query_of_ones_own_that_a_folder_has_appended_is_refused(macros: tuple[str, ...]) -> None:
    """Each load appended all of its rows once more."""
    with pytest.raises(
        LakehouseError, match=r"^project/models/plain.sql: plain is append_only by its folder's .*config"
    ):
        refuse_repeated_rows(appended("select 1 as materialized -- {{ config(alias='b') }}", *macros), PLACE)


@pytest.mark.parametrize(
    "said",
    [
        "{# {{ config(materialized='append_only') }} #}",
        "{#\n{{ config(materialized='append_only') }}\n#}",
        "{{ config(tags=['materialized']) }}",
        "{{ config(meta={'note': 'materialized'}) }}",
    ],
)
def test_what_only_names_the_materialization_does_not_say_it(said: str) -> None:
    """A config that was commented out counted, and each load appended all rows once more."""
    with pytest.raises(LakehouseError, match="plain is append_only"):
        refuse_repeated_rows(appended(f"{said}\nselect 1 as id"), PLACE)


@pytest.mark.parametrize("macro", ["cdc_vault.sat", "shop.own_sat", "cdc_vault.parsed_table"])
def test_a_model_that_plans_its_load_by_our_macros_is_not_refused(macro: str) -> None:
    refuse_repeated_rows(appended("{{ … }}", macro), PLACE)


@pytest.mark.parametrize(
    "said",
    [
        "{{ config(materialized='append_only') }}",
        "{{ config(\n  meta={'a': {'b': 1}},\n  materialized='append_only',\n) }}",
        "{%- do config({'materialized': 'append_only'}) -%}",
    ],
)
def test_a_query_that_says_itself_that_it_is_appended_is_not_refused(said: str) -> None:
    refuse_repeated_rows(appended(f"{said}\nselect 1 as id"), PLACE)


def test_a_query_of_which_its_own_yaml_says_that_it_is_appended_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    file, found = tmp_path / "models" / "own.yml", appended(patch="shop://models/own.yml")
    file.write_text("models: [{name: plain, config: {alias: plain}}, {name: b, config: {materialized: append_only}}]")
    with pytest.raises(LakehouseError, match=r"plain is append_only"):
        refuse_repeated_rows(found, tmp_path)
    file.write_text("models: [{name: plain, config: {materialized: append_only}}]")
    refuse_repeated_rows(found, tmp_path)


@pytest.mark.parametrize("kind", ["view", "ephemeral"])
def test_a_mart_that_reads_another_one_through_a_view_is_refused(kind: str) -> None:
    """It was made of the other's former state: a view goes on showing what readers see."""
    found = manifest()
    refuse_hidden_marts(found, PLACE)
    found["nodes"]["model.hub_v1"] = model("hub_v1", "model.hub", materialized="view")
    found["nodes"]["model.shown"] = model("shown", "model.fact", materialized=kind)
    found["nodes"]["model.dim"]["depends_on"]["nodes"].append("model.hub_v1")
    refuse_hidden_marts(found, PLACE)
    found["nodes"]["model.report"]["depends_on"]["nodes"].append("model.shown")
    with pytest.raises(LakehouseError, match=r"project/models/report.sql: report reads fact through shown, .*itself"):
        refuse_hidden_marts(found, PLACE)


@pytest.mark.parametrize("kind", ["model", "seed", "snapshot"])
@pytest.mark.parametrize("schema", ["marts_next", "Vault_NEXT", "next_mirror_shop"])
def test_a_table_of_dbt_in_a_schema_of_copies_is_refused(kind: str, schema: str) -> None:
    """A build of the marts took it for a copy that a killed one had left, and dropped it."""
    found = manifest()
    found["nodes"]["test.both"]["schema"] = "dbt_test__audit"
    refuse_next_schemas(found, PLACE)
    found["nodes"][f"{kind}.own"] = {**model("own"), "resource_type": kind, "schema": schema}
    with pytest.raises(LakehouseError, match=rf"project/models/own.sql: own .* {schema}, .* another schema"):
        refuse_next_schemas(found, PLACE)


@pytest.fixture
def project(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """The manifest of a new project with a mart, as its files are now; it is in the folder `lake`."""
    create_project(tmp_path / "lake")
    folder = tmp_path / "lake" / "dbt_project"
    (folder / "models" / "marts").mkdir(parents=True)
    (folder / "models" / "marts" / "dim_day.sql").write_text("select 1 as id")
    settings = Settings.model_validate({"project_dir": tmp_path / "lake", "home": tmp_path / "home"})
    return lambda: load_manifest(settings)


def test_a_new_project_is_not_refused_and_is_where_its_files_would_mean_something_wrong(
    project: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    """What dbt's manifest has of a project's own files is what the refusals go by."""
    folder = tmp_path / "lake" / "dbt_project"
    refuse_wrong_models(project(), folder)
    stored, view = "{{ config(materialized='table') }}", "{{ config(schema='marts', materialized='view') }}"
    reads = f"{stored} select * from {{{{ ref('dim_day') }}}}"
    models = {
        "models/vault/plain.sql": ("select 1 as id", r"plain.sql: plain is append_only"),
        "models/own/early.sql": (reads, r"early.sql: early reads the mart dim_day"),
        "models/marts/placed.sql": (reads, r"placed.sql: placed has the tag"),
        "models/own/lost.sql": (f"{view} select 1 as id", r"lost.sql: lost is"),
        "models/own/past.yml": (
            json.dumps({"sources": [{"name": "m", "schema": "marts", "tables": [{"name": "dim_day"}]}]}),
            r"dbt_project/models/own/past.yml: the source m.dim_day is marts.dim_day",
        ),
        "snapshots/kept.yml": (
            json.dumps({"snapshots": [{"name": "kept", "relation": "ref('dim_day')", "config": {
                "schema": "kept", "unique_key": "id", "strategy": "check", "check_cols": "all"}}]}),
            r"dbt_project/snapshots/kept.yml: kept reads the mart dim_day",
        ),
    }  # fmt: skip
    for file, (text, _) in models.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    found = project()
    for file, (_, said) in models.items():
        others = models.keys() - {file}
        alone = {
            part: {key: node for key, node in found[part].items() if node["original_file_path"] not in others}
            for part in ("nodes", "sources")
        }
        with pytest.raises(LakehouseError, match=said):
            refuse_wrong_models(found | alone, folder)
    (folder / "macros" / "ref.sql").unlink()
    with pytest.raises(LakehouseError, match=r"dbt_project/dbt_project.yml: the project has no macro `ref`"):
        refuse_wrong_models(project(), folder)


@pytest.mark.parametrize("schema", ["marts", "Marts"])
def test_a_mart_that_is_declared_as_a_source_is_refused(schema: str) -> None:
    """Its readers were made before it, of its former state, and no load followed from it."""
    found = manifest()
    found["sources"] = {
        "source.m.dim": {
            "database": "lake", "schema": schema, "identifier": "Dim", "source_name": "m", "name": "d",
            "original_file_path": "models/m.yml",
        },
        "source.raw.dim": {
            "database": "lake", "schema": "raw_shop", "identifier": "dim", "source_name": "raw_shop", "name": "dim",
            "original_file_path": "models/raw.yml",
        },
    }  # fmt: skip
    with pytest.raises(LakehouseError, match=r"project/models/m.yml: the source m.d is marts.dim, .* ref\('dim'\)"):
        refuse_models_as_sources(found, PLACE)
    found["sources"]["source.m.dim"]["database"] = "crm"  # a table of another catalog of Trino
    refuse_models_as_sources(found, PLACE)


def test_the_schema_of_the_marts_is_theirs_in_capitals_too() -> None:
    """To Trino `Marts` is `marts`; to us it was another layer, whose models every load made."""
    found = manifest()
    found["nodes"]["model.dim"]["schema"] = "Marts"
    found["nodes"]["model.dim"]["tags"] = []
    with pytest.raises(LakehouseError, match="dim is in the schema marts without the tag"):
        refuse_untagged_marts({"nodes": {"model.dim": found["nodes"]["model.dim"]}}, PLACE)


def test_what_is_ephemeral_needs_no_tag() -> None:
    found = {"nodes": {"model.part": {**model("part", materialized="ephemeral"), "schema": "marts", "tags": []}}}
    refuse_untagged_marts(found, PLACE)
