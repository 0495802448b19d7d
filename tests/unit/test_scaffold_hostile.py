"""Hostile names and comments of a database stay plain text in the YAML and models of `lakehouse scaffold`."""

import random
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from lakehouse.declarations import Declarations, declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import split_relation
from lakehouse.settings import Settings, load_settings
from lakehouse.text.names import NAME
from lakehouse.text.shown import visible
from lakehouse.text.sql import typed_relation
from scaffold import apply, models_of, plan
from scaffold.propose import DbTable, proposal
from scaffold.text import jinja
from tests.hostile import effects, names
from tests.marks import seeds
from tests.orchestrated import copy_project

ODD = names(7, 300)
WORDS = ["no", "on", "null", "true", "off"]  # of YAML, and plain names of the lake


def found(odd: list[str], unfit: str | None = None) -> list[DbTable]:
    """Tables of ten columns whose schema, name, comments, columns and types are taken from these."""
    tables = []
    for number, start in enumerate(range(0, len(odd) - 2, 12)):
        schema, name, *columns = odd[start : start + 12]
        typed = tuple((column, "numeric(8,2)" if n % 3 else f'"{n}{column}"', name) for n, column in enumerate(columns))
        key = tuple(columns[:2])
        tables.append(
            DbTable(number, schema, name, columns[-1], typed, key, ((key, number - 1),) if number else (), unfit)
        )
    return tables


def rendered(value: Any) -> Any:
    """As dbt renders the values of its YAML, and not the keys."""
    if isinstance(value, dict):
        return {key: rendered(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rendered(item) for item in value]
    return jinja2.Environment().from_string(value).render() if isinstance(value, str) else value


def check(tables: list[DbTable], read: list[dict[str, Any]]) -> None:
    """The text that YAML and dbt read equals the text in the database."""
    assert len(read) == len(tables)
    for table, entry in zip(tables, read, strict=True):
        raw = entry["config"]["meta"]["raw"]
        assert NAME.fullmatch(entry["name"]) and set(raw) <= {"relation", "key", "alias"}
        assert split_relation(raw["relation"]) == (table.schema, table.name) and tuple(raw["key"]) == table.key
        assert entry["description"].strip() == (table.comment or f"Table {table.name}.").strip()
        said = [(c["name"], c["data_type"], c["description"].strip()) for c in entry["columns"]]
        assert said == [(name, kind, (comment or f"Column {name}.").strip()) for name, kind, comment in table.columns]
        assert all(set(column) == {"name", "data_type", "description"} for column in entry["columns"])
        landed = [raw.get("alias", {}).get(name, name) for name, *_ in table.columns]
        assert len(set(landed)) == len(landed) and all(map(NAME.fullmatch, landed))


@pytest.mark.parametrize("seed", seeds(5, 1))
def test_a_proposal_says_what_the_database_says(seed: int) -> None:
    tables = found(random.Random(seed).sample(ODD, len(ODD)))
    text = proposal("shop", tables, set())
    [source] = yaml.safe_load(text)["sources"]
    assert not list(effects(text)) and all(visible(line) == line for line in text.split("\n"))
    check(tables, rendered(source["tables"]))


def test_a_table_that_is_left_out_stays_in_its_comment() -> None:
    """A line break in a name ended the comment: what followed was YAML, a `mask` for one."""
    tables = [
        DbTable(n, schema, name, "", (("id", "text", ""),), ("id",), unfit=f"{typed_relation(schema, name)}: {name}")
        for n, (schema, name) in enumerate(zip(ODD, reversed(ODD), strict=True))
    ]
    text = proposal("shop", tables, set())
    assert yaml.safe_load(text)["sources"][0]["tables"] == []
    assert not list(effects(text))


@pytest.mark.parametrize("word", WORDS)
def test_a_table_called_like_a_word_of_yaml_is_proposed_under_its_name(word: str) -> None:
    """`No` became `False`."""
    columns = (("id", "int", ""), (f"{word}_id", "int", ""), (word.upper(), "int", ""))
    one = DbTable(1, "public", word, "", columns[:1], ("id",))
    two = DbTable(2, "public", "orders", "", columns, ("id",), ((columns[1][:1], 1),))
    [source] = yaml.safe_load(proposal("shop", [one, two], set()))["sources"]
    vault = source["tables"][1]["config"]["meta"]["vault"]
    assert source["tables"][0]["name"] == source["tables"][0]["config"]["meta"]["vault"]["hub"] == word
    assert list(vault["references"]) == [word] and vault["links"] == {f"order_{word}": {"to": [word]}}


def test_a_literal_of_jinja_says_the_text() -> None:
    """A carriage return came out as a line feed; the keys of a mapping were not quoted at all."""
    said: list[Any] = []
    mapping = {text: text for text in ODD}
    source = f"{{{{ hear({jinja([*ODD, mapping])}) }}}}"
    jinja2.Environment().from_string(source.replace("\r\n", "\n").replace("\r", "\n")).render(hear=said.append)
    assert said == [[*ODD, mapping]]


@pytest.mark.slow
def test_dbt_reads_what_the_database_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: proposal, dbt, declarations, models, dbt again, with descriptions, tests and their arguments."""
    settings = project_of(tmp_path, monkeypatch)
    tables = found(ODD[: 12 * 12])
    (settings.dbt_project_dir / "models" / "sources" / "shop.yml").write_text(proposal("shop", tables, set()))
    declared = scaffolded(settings)
    source = declared.source("shop")
    for table, read in zip(tables, sorted(source.tables, key=lambda t: order(tables, t.relation)), strict=True):
        assert read.relation == (table.schema, table.name) and read.key == table.key
        assert [(c.name, c.data_type) for c in read.columns] == [(name, kind) for name, kind, _ in table.columns]
        assert not read.raw.mask and not read.raw.exclude


@pytest.mark.slow
def test_columns_that_land_under_their_own_odd_names_are_read_by_dbt_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an alias they are names of the lake, keys of mappings and arguments of macros and tests."""
    settings = project_of(tmp_path, monkeypatch)
    landing = {}
    for name in ODD:
        if not name.startswith("!") and name.strip():
            landing.setdefault(name.lower(), name)
    columns = list(landing.values())
    table = DbTable(1, "public", "t", "", tuple((name, "text", name) for name in columns), tuple(columns[:3]))
    text = proposal("shop", [table], set())
    bare = re.sub(r", alias: \{.*\}(?=\}\n)", "", text)
    assert bare != text
    (settings.dbt_project_dir / "models" / "sources" / "shop.yml").write_text(bare)
    scaffolded(settings)
    manifest = load_manifest(settings)
    parsed = manifest["nodes"]["model.lakehouse.parsed_shop__t"]
    assert list(parsed["columns"])[: len(columns)] == columns
    assert [c["description"].strip() for c in parsed["columns"].values()][: len(columns)] == [
        c.strip() for c in columns
    ]
    kwargs = [
        node["test_metadata"]["kwargs"] for node in manifest["nodes"].values()
        if node["resource_type"] == "test" and node["test_metadata"]["name"] == "hub_is_sound"
    ]  # fmt: skip
    assert [rendered(given["src_nk"]) for given in kwargs] == [columns[:3]]


def order(tables: list[DbTable], relation: tuple[str, str]) -> int:
    """The place of a relation among the tables."""
    return [(table.schema, table.name) for table in tables].index(relation)


def project_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A copy of the project without samples."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "/dev/null")
    settings = load_settings()
    copy_project(settings, tmp_path / "project")
    return settings.model_copy(update={"project_dir": tmp_path / "project"})


def scaffolded(settings: Settings) -> Declarations:
    """The declarations that dbt reads, with their models written; scaffolding again finds nothing to change."""
    declared = declarations_from(load_manifest(settings), settings.dbt_project_dir)
    apply(plan(settings.dbt_project_dir, "shop", models_of(declared, "shop")))
    again = declarations_from(load_manifest(settings), settings.dbt_project_dir)
    assert again == declared
    assert {c.kind for c in plan(settings.dbt_project_dir, "shop", models_of(again, "shop"))} == {"same"}
    return again
