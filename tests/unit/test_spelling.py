"""A misspelt key is told with the one that is meant, its file and its line, in every declaration and setting."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lakehouse.declarations.lines import mistakes_in
from lakehouse.declarations.policies import ModelPolicy, ProjectMaintenance
from lakehouse.declarations.read import declarations_from
from lakehouse.declarations.table_meta import TableMeta
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.spelling import _alternatives, _is_model, _step, keys_at, line_in_toml
from lakehouse_stack.home.config import StackSettings, stack_settings
from orchestration.assets.policies import policies

ROOTS = (TableMeta, ProjectMaintenance, ModelPolicy, Settings)
DECLARED = """\
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: sales
        config:
          meta:
            raw:
              relation: public.sales
              key: [id]
            vault: {hub: {name: sale}, references: {customer: {columns: [customer_id]}}}
            load:
              trigger:
                cron: "5 * * * *"
        columns: [{name: id}]
"""


def places(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Every model within one, with a path that leads to it as pydantic's errors do."""
    yield path, model
    for name, field in model.model_fields.items():
        for kind in _alternatives(field.annotation):
            inner = [one for one in (_step(kind, "any") if not _is_model(kind) else [kind]) if _is_model(one)]
            for found in inner:
                told = (found.__name__,) if len(inner) > 1 else ()  # which of several it is
                yield from places(found, (*path, name) if _is_model(kind) else (*path, name, "any", *told))


ALL = [(root, path, model) for root in ROOTS for path, model in places(root)]


@pytest.mark.parametrize(("root", "path", "model"), ALL, ids=[".".join((r.__name__, *p)) for r, p, _ in ALL])
def test_every_model_of_a_declaration_is_found_by_its_path(
    root: type[BaseModel], path: tuple[str, ...], model: type[BaseModel]
) -> None:
    assert keys_at(root, path) == set(model.model_fields)
    assert model.model_config.get("extra") == "forbid", "an unknown key would go unseen"


def manifest(project: Path, text: str) -> dict[str, Any]:
    import yaml

    (project / "models").mkdir(parents=True)
    (project / "models" / "shop.yml").write_text(text)
    [source] = yaml.safe_load(text)["sources"]
    [table] = source["tables"]
    node = {
        "resource_type": "source", "schema": "raw_shop", "source_name": "shop", "name": "sales",
        "original_file_path": "models/shop.yml", "columns": {c["name"]: c for c in table["columns"]},
        "config": {"meta": table["config"]["meta"]},
    }  # fmt: skip
    return {"sources": {"sales": node}, "nodes": {}}


def refusal_of(text: str, place: Path) -> str:
    """What is told of a declaration that is refused."""
    project = place / "dbt_project"
    with pytest.raises(LakehouseError) as refused:
        declarations_from(manifest(project, text), project)
    return str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        (
            "key: [id]", "freshnes_minutes: 5", 10,
            "meta.raw: unknown key `freshnes_minutes`: did you mean `freshness_minutes`?",
        ),
        ("relation:", "relaton:", 9, "meta.raw: unknown key `relaton`: did you mean `relation`?"),
        ("vault: {hub: {name", "vault: {hub: {nam", 11, "meta.vault.hub: unknown key `nam`: did you mean `name`?"),
        ("{columns:", "{colums:", 11, "meta.vault.references.customer: unknown key `colums`: did you mean `columns`?"),
        ("cron:", "crn:", 14, "meta.load.trigger: unknown key `crn`: did you mean `cron`?"),
        ("load:", "laod:", 12, "meta: unknown key `laod`: did you mean `load`?"),
        ("cron:", "quux:", 14, "meta.load.trigger: unknown key `quux`; known are cron"),
    ],
)  # fmt: skip
def test_a_misspelt_key_of_a_declaration_has_its_line_and_the_right_one(
    tmp_path: Path, old: str, new: str, line: int, told: str
) -> None:
    refused = refusal_of(DECLARED.replace(old, new), tmp_path)
    assert refused.startswith(f"dbt_project/models/shop.yml:{line}: {told}")
    assert "\n" not in refused and "Extra inputs" not in refused


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("key: [id]", "key: id", 10, "meta.raw.key: a list is wanted, not 'id': write `key: [id]`"),
        ("key: [id]", "exclude: a b", 10, "meta.raw.exclude: a list is wanted, not 'a b': write `exclude: […]`"),
        ("key: [id]", "key: [1]", 10, "meta.raw.key.0: a text is wanted, not 1: put it into quotes"),
        (
            "key: [id]", "on_unrepresentable: null", 10,
            "meta.raw.on_unrepresentable: Input should be 'error', 'clamp' or 'null': YAML reads null without quotes "
            'as nothing: write `on_unrepresentable: "null"`',
        ),
        (
            "key: [id]", "mask: email", 10,
            "meta.raw.mask: keys with values are wanted, not 'email': write `mask: {name: value}`",
        ),
        *(
            (
                "vault: {hub: {name", f"vault: {{{part}: {given}, hub: {{name", 11,
                f"meta.vault.{part}: keys with values are wanted, not {shown}: write `{part}: {{name: value}}`",
            )
            for part, given, shown in (
                ("satellites", "[name, email]", "['name', 'email']"),
                ("codes", "[state]", "['state']"),
                ("links", "x", "'x'"),
            )
        ),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_told_with_what_to_write(
    tmp_path: Path, old: str, new: str, line: int, told: str
) -> None:
    assert refusal_of(DECLARED.replace(old, new), tmp_path).startswith(f"dbt_project/models/shop.yml:{line}: {told}")


def test_a_models_misspelt_key_is_refused_and_keys_of_other_tools_pass(tmp_path: Path) -> None:
    """It was passed over: the model had no freshness, and nobody said so."""
    model: dict[str, Any] = {
        "resource_type": "model", "schema": "vault", "alias": "hub_sale", "name": "hub_sale", "database": "lake",
        "original_file_path": "models/vault.yml", "unique_id": "model.lake.hub_sale", "patch_path": "lake://models/v.yml",
        "columns": {}, "config": {"meta": {"elementary": {}, "contract_owner": "x"}}, "depends_on": {"nodes": []},
    }  # fmt: skip
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "v.yml"
    file.write_text("models:\n  - name: hub_sale\n    config:\n      meta:\n        freshnes_minutes: 5\n")
    import dagster as dg

    spec = dg.AssetSpec(["vault", "hub_sale"])
    policies({"sources": {}, "nodes": {"hub": model}}, tmp_path)(spec)
    model["config"]["meta"]["freshnes_minutes"] = 5
    with pytest.raises(LakehouseError, match=r"models/v\.yml:5: hub_sale: meta: unknown key `freshnes_minutes`: did"):
        policies({"sources": {}, "nodes": {"hub": model}}, tmp_path)(spec)


@pytest.fixture
def toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "lakehouse.toml"
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(file))
    return file


@pytest.mark.parametrize(
    ("text", "line", "key", "meant"),
    [
        ("[trino]\nport = 1\n[ingestion]\nbathc_bytes = 1\n", 4, "bathc_bytes", "batch_bytes"),
        ("# settings\n[ingeston]\nbatch_bytes = 1\n", 2, "ingeston", "ingestion"),
        ("warehous = 's3://x/'\n", 1, "warehous", "warehouse"),
        ("[sources.shop]\nurl = 'postgresql://u@h/d'\nslott = 'x'\n", 3, "slott", "slot"),
        ("[sources]\nshop = {url = 'postgresql://u@h/d', slott = 'x'}\n", 2, "slott", "slot"),
        ("dagster.prot = 3001\n", 1, "prot", "port"),
    ],
)
def test_a_misspelt_key_of_lakehouse_toml_has_its_line(toml: Path, text: str, line: int, key: str, meant: str) -> None:
    toml.write_text(text)
    with pytest.raises(LakehouseError) as refused:
        load_settings()
    assert f"{toml}:{line}: unknown key `{key}`: did you mean `{meant}`?" in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("LAKEHOUSE_INGESTION__BATHC_BYTES", "LAKEHOUSE_INGESTION__BATCH_BYTES"),
        ("LAKEHOUSE_INGESTON__FLUSH_BYTES", "LAKEHOUSE_INGESTION__FLUSH_BYTES"),
        ("LAKEHOUSE_CATALOG__URL", "LAKEHOUSE_CATALOG_URL"),
        ("LAKEHOUSE_CATALGO_URL", "LAKEHOUSE_CATALOG_URL"),
        ("LAKEHOUSE_TRINO_HSOT", "LAKEHOUSE_TRINO__HOST"),
        ("LAKEHOUSE_SOURCES__SHOP__OWNR_URL", "LAKEHOUSE_SOURCES__SHOP__OWNER_URL"),
        ("LAKEHOUSE_STACK_TRINO_HEAP", "LAKEHOUSE_STACK_TRINO_HEAP_MB"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_right_one(
    toml: Path, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    monkeypatch.setenv(variable, "secret-1")
    with pytest.raises(LakehouseError) as refused:
        load_settings()
        stack_settings()
    assert f"{variable} is no setting" in str(refused.value) and f"did you mean {meant}?" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_variables_of_other_programs_pass(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    for name in ("DAY_FROM", "CODE_SOCKET", "TEST_HOME", "TEST_SEED", "RUN_ID"):
        monkeypatch.setenv(f"LAKEHOUSE_{name}", "x")
    load_settings()
    assert StackSettings.model_fields


def test_the_line_of_a_toml_key_is_that_of_its_table() -> None:
    text = "port = 1\n[a]\nport = 2\n[b.c]\n'port' = 3\n"
    assert [line_in_toml(text, path) for path in (("port",), ("a", "port"), ("b", "c", "port"), ("x",))] == [
        1,
        3,
        5,
        None,
    ]


def test_a_key_that_is_like_none_is_told_with_all_that_are_known() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelPolicy.model_validate({"xyz": 1})
    [(path, text)] = mistakes_in(caught.value, ModelPolicy)
    assert path == ("xyz",) and text == "meta: unknown key `xyz`; known are built_by, freshness_minutes, owners"
