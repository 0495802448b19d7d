"""Loads of a few rows: read by one statement for many models, and written all at once or not at all."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from trino.exceptions import TrinoQueryError

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads.remembered import LOADED
from lakehouse.catalog.writing.appending import Append, append_all
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from orchestration.worker.loads import small_loads
from orchestration.worker.loads.handed import Handed, parsed_rows, stored_rows
from orchestration.worker.loads.rows import Rows, named_in, one_statement, relation_of, texts, values
from orchestration.worker.loads.small_loads import STATEMENTS, SmallLoads, fits, lots_of
from orchestration.worker.plan import Graph
from tests.unit.dbt_macros import macro

HUB, LINK = ("vault", "hub"), ("vault", "link")
KEY = f"{LOADED}stg"
THERE = [["hk", "varchar", ""], ["amount", "decimal(10,2)", "What it cost"]]
COLUMNS = {"vault.hub": [["n", "bigint", ""]], "vault.link": [["n", "bigint", ""]]}
HEADER = (
    '-- lakehouse: {{"new_data": {new}, "anew": {anew}, "columns": null, "remember": {{"{key}": "m"}}, "base": null}}\n'
)


@pytest.fixture
def catalog(postgres_catalog: LakeCatalog) -> LakeCatalog:
    postgres_catalog.create_namespace_if_not_exists("vault")
    for name in (HUB, LINK):
        postgres_catalog.create_table(name, ROWS.schema).append(ROWS)
    return postgres_catalog


@pytest.fixture
def connection(catalog_settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(catalog_settings.catalog_dsn(), autocommit=True) as found:
        yield found


ROWS = pa.table({"n": [1]})
NEW = pa.table({"n": [2, 3]})


def stored(catalog: LakeCatalog, name: tuple[str, str]) -> list[int]:
    fresh = LakeCatalog(catalog.name, **catalog.properties)
    return sorted(fresh.load_table(name).scan().to_arrow()["n"].to_pylist())


def test_rows_and_what_is_remembered_come_with_one_commit(
    catalog: LakeCatalog, connection: psycopg.Connection[Any]
) -> None:
    hub, link = catalog.load_table(HUB), catalog.load_table(LINK)
    assert append_all(connection, catalog, [Append(hub, NEW, {KEY: "m"}), Append(link, NEW.slice(2), {KEY: "m"})])
    assert stored(catalog, HUB) == [1, 2, 3] and stored(catalog, LINK) == [1]
    now = catalog.load_table(HUB)
    assert now.properties[KEY] == f"m|{now.metadata.current_snapshot_id}" and len(now.metadata.snapshots) == 2
    same = catalog.load_table(LINK)
    assert same.properties[KEY] == f"m|{same.metadata.current_snapshot_id}" and len(same.metadata.snapshots) == 1
    assert int(now.current_snapshot().summary["total-records"]) == 3  # type: ignore[union-attr, index, arg-type]


def test_nothing_is_appended_where_another_writer_has_changed_one_table(
    catalog: LakeCatalog, connection: psycopg.Connection[Any]
) -> None:
    """It may have loaded the same rows."""
    hub, link = catalog.load_table(HUB), catalog.load_table(LINK)
    catalog.load_table(LINK).append(NEW)
    assert not append_all(connection, catalog, [Append(hub, NEW), Append(link, NEW)])
    assert stored(catalog, HUB) == [1] and stored(catalog, LINK) == [1, 2, 3]


class Compiled:
    """dbt's SQL of two models."""

    def __init__(self, new: bool = True, anew: bool = False) -> None:
        self.header = HEADER.format(new=str(new).lower(), anew=str(anew).lower(), key=KEY)

    def compiled(self, names: list[str], _: object) -> dict[str, str]:
        return {f"model.{name}": f"{self.header}select {name}" for name in names}


class Refusing(Compiled):
    """The same where a macro raises an error."""

    def compiled(self, names: list[str], _: object) -> dict[str, str]:
        raise LakehouseError("dbt compile: column n is not in the model's YAML")


def graph() -> Graph:
    nodes = {
        f"model.{name}": {
            "resource_type": "model", "schema": "vault", "alias": name, "name": name, "columns": {},
            "depends_on": {"nodes": []}, "config": {},
        }
        for name in ("hub", "link")
    }  # fmt: skip
    return Graph({"sources": {}, "nodes": nodes, "child_map": {}})


def loaded(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], compiled: Compiled | None = None, **columns: Any
) -> set[str]:
    loads = SmallLoads(None, catalog, connection, compiled or Compiled(), graph())  # type: ignore[arg-type]
    tables = catalog.load_tables([HUB, LINK])
    models = ["model.hub", "model.link"]
    return {result.unique_id for result in loads.run(models, tables, {**COLUMNS, **columns}, {}).results}


@pytest.fixture
def trino(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Trino answers about each model."""
    answers: dict[str, Any] = {"hub": [["2"], ["3"]], "link": []}

    def query(_: object, sql: str, **__: object) -> list[list[Any]]:
        asked = [name for name in answers if f"select {name}" in sql]
        if any(isinstance(answers[name], Exception) for name in asked):
            raise TrinoQueryError({"message": "no"})
        return [[f"model.{name}", row] for name in asked for row in answers[name]]

    monkeypatch.setattr(small_loads, "query", query)
    monkeypatch.setattr(small_loads, "as_written", lambda _: {})
    return answers


def test_models_are_loaded_by_what_trino_answers(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], trino: dict[str, Any]
) -> None:
    assert loaded(catalog, connection) == {"model.hub", "model.link"}
    assert stored(catalog, HUB) == [1, 2, 3] and stored(catalog, LINK) == [1]
    assert catalog.load_table(LINK).properties[KEY].startswith("m|")


def test_what_is_out_of_the_ordinary_is_left_to_dbt(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], trino: dict[str, Any]
) -> None:
    assert not loaded(catalog, connection, Compiled(anew=True)), "a table that is made anew"
    noting = Compiled()
    noting.header = noting.header.replace('"base"', '"left_out": "[]", "base"')
    assert not loaded(catalog, connection, noting), "a table that is to note something before it is loaded"
    assert not loaded(catalog, connection, Refusing()), "models of which one refuses its load"
    trino["hub"] = [["2 and more"]]
    assert loaded(catalog, connection) == {"model.link"}, "a value that only Trino can hold"
    trino["hub"] = TrinoQueryError({"message": "no"})
    assert loaded(catalog, connection) == {"model.link"}, "a statement that fails, of which dbt tells the model"
    assert stored(catalog, HUB) == [1]


def test_nothing_of_a_step_is_written_where_one_batch_is_refused(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], trino: dict[str, Any]
) -> None:
    trino["link"] = [["5"], ["6"], ["6"]]
    compiled = Compiled()
    compiled.header = compiled.header.replace('"base"', '"checks": {"once": [["n"]], "given": ["n"]}, "base"')
    with pytest.raises(LakehouseError, match=r"no new row gets into vault\.link, because one has n twice: 6"):
        loaded(catalog, connection, compiled)
    assert stored(catalog, HUB) == [1] and stored(catalog, LINK) == [1]


def test_without_new_data_trino_is_not_asked(
    catalog: LakeCatalog, connection: psycopg.Connection[Any], trino: dict[str, Any]
) -> None:
    trino["hub"] = trino["link"] = TrinoQueryError({"message": "asked"})
    assert loaded(catalog, connection, Compiled(new=False)) == {"model.hub", "model.link"}
    assert catalog.load_table(HUB).properties[KEY].startswith("m|") and stored(catalog, HUB) == [1]


def described(**types: str) -> dict[str, Any]:
    comments = {"amount": "What it cost"}
    columns = {n: {"name": n, "data_type": t, "description": comments.get(n, "")} for n, t in types.items()}
    return {"columns": columns, "config": {}}


def test_a_table_without_the_columns_of_its_model_is_left_to_the_materialization() -> None:
    """It adds them, widens them, and writes their comments."""
    assert fits(described(), None, THERE)
    assert not fits(described() | {"config": {"post-hook": [{"sql": "select 1"}]}}, None, THERE)
    assert not fits(described() | {"config": {"full_refresh": True}}, None, THERE), "it is replaced by each load"
    assert fits(described() | {"config": {"full_refresh": False}}, None, THERE)
    assert fits(described(hk="varchar", amount="decimal(10, 2)"), None, THERE)
    assert fits(described(), [{"name": "HK", "type": "varchar"}, {"name": "amount", "type": "decimal(10,2)"}], THERE)
    assert not fits(described(hk="varchar", amount="decimal(12, 2)"), None, THERE)
    assert not fits(described(hk="varchar", amount="decimal(10, 2)", more="date"), None, THERE)
    assert not fits(described(hk="varchar"), None, THERE)
    assert not fits(described(hk="varchar", amount="decimal(10, 2)"), None, [THERE[0], ["amount", "decimal(10,2)", ""]])


def test_a_statement_is_of_half_the_models_but_never_of_more_than_trino_takes() -> None:
    assert [len(lot) for lot in lots_of(list("abcde"))] == [3, 2]
    assert lots_of([]) == []
    lots = lots_of([str(n) for n in range(100)])
    assert max(map(len, lots)) == small_loads.MOST_MODELS and len(lots) > STATEMENTS


def test_text_becomes_values_of_the_columns_types() -> None:
    columns = [
        ("i", "integer"), ("b", "boolean"), ("x", "double"), ("d", "decimal(10,2)"), ("day", "date"),
        ("at", "timestamp(6) with time zone"), ("local", "timestamp(6)"), ("raw", "varbinary"), ("l", "array(varchar)"),
    ]  # fmt: skip
    text = ["7", "false", "1.0E1", "-0.10", "2026-11-24", *["2026-11-24 01:02:03.000004"] * 2, "00FF", '["a", null]']
    moment = datetime(2026, 11, 24, 1, 2, 3, 4)
    made = {name: value[0] for name, value in values(columns, [text]).items()}
    assert made == {
        "i": 7, "b": False, "x": 10.0, "d": Decimal("-0.10"), "day": date(2026, 11, 24),
        "at": moment.replace(tzinfo=UTC), "local": moment, "raw": b"\x00\xff", "l": ["a", None],
    }  # fmt: skip
    assert values(columns, [[None] * len(columns)]) == {name: [None] for name, _ in columns}
    with pytest.raises(ValueError, match="isoformat"):
        values([("day", "date")], [["-0001-01-01"]])


def test_values_become_the_text_that_they_are_made_of() -> None:
    moment = datetime(2026, 11, 24, 1, 2, 3, 4)
    row = {
        "t": "it's \u0000", "i": 7, "b": False, "r": 0.1, "x": float("inf"), "d": Decimal("1E-9"), "day": date(2, 1, 1),
        "at": moment.replace(tzinfo=UTC), "local": datetime(1, 1, 1), "raw": b"\x00\xff", "l": ["a", None],
    }  # fmt: skip
    kinds = [
        "varchar", "bigint", "boolean", "real", "double", "decimal(38,10)", "date", "timestamp(6) with time zone",
        "timestamp(6)", "varbinary", "array(varchar)",
    ]  # fmt: skip
    columns = list(zip(row, kinds, strict=True))
    found = texts(columns, [row, dict.fromkeys(row)])
    assert {name: value[0] for name, value in values(columns, found).items()} == row
    assert found[1] == [None] * len(row)
    assert found[0][8] == "0001-01-01 00:00:00.000000" and found[0][5] == "0.000000001"


def test_a_statement_has_the_relations_that_it_names_and_those_that_these_name() -> None:
    relations = {"_a": "select 1", "_b": 'select * from "_a"', "_c": "select 3", "_d": 'select * from "_b"'}
    assert named_in('select * from "_b"', relations) == {"_a": relations["_a"], "_b": relations["_b"]}
    assert list(named_in('select * from "_d", "_c"', relations)) == ["_a", "_b", "_c", "_d"]
    sql = one_statement({"m": ('select * from "_c"', [("n", "varchar")])}, relations)
    assert sql.startswith('WITH "_c" AS (\nselect 3\n)\nSELECT') and "_a" not in sql


def test_a_load_is_handed_the_rows_of_its_table_that_have_the_keys_of_the_new_ones() -> None:
    rows = Rows([("id", "integer"), ("hk_a", "varchar"), ("hk_b", "varchar")], [["1", "x", "it's"], ["2", "x", None]])
    stored: dict[str, Any] = {"key": "hk_a", "columns": ["hk_a", "seq"], "keys": {"stg": ["hk_a", '"hk_b"']}}
    keys = Handed(stages={"stg": rows}).keys(stored)
    assert keys == ["x", "it's"]
    query = stored_rows(("vault", "hub"), stored, keys)
    assert query == "SELECT hk_a, seq FROM \"vault\".\"hub\" WHERE hk_a IN ('x', 'it''s')"
    assert stored_rows(("vault", "hub"), stored, []).endswith("WHERE false")


def test_names_are_quoted_in_the_statement() -> None:
    assert one_statement({"it's": ("select 1", [('a"b', "bigint")])}) == (
        "SELECT 'it''s', ARRAY[cast(cast(\"a\"\"b\" as bigint) as varchar)] FROM (\nselect 1\n)"
    )


def test_a_column_is_handed_over_by_the_name_that_a_model_of_dbt_gives_it() -> None:
    """In lower case, which of İ is two letters: Trino does not find it otherwise."""
    odd = [("İd", "integer")]
    for sql in (relation_of(Rows(odd, [["1"]])), parsed_rows("select 1", odd), one_statement({"m": ("select 1", odd)})):
        assert macro("quoted")("İd") in sql and "İ" not in sql
