"""Raw tables that stand where not everybody looks for them are refused, where they were left out without a word."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations import declarations_from
from lakehouse.declarations.checks.elsewhere import declared_elsewhere
from lakehouse.errors import LakehouseError

RAW = {"raw": {"relation": "public.orders", "key": ["id"]}}


def table(meta: dict[str, Any] | None = None, **stated: Any) -> dict[str, Any]:
    """A source's table as dbt's manifest has it."""
    return {
        "package_name": "lake", "source_name": "shop", "name": "orders", "schema": "raw_shop",
        "database": "lake", "unrendered_database": None, "identifier": "orders", "columns": {"id": {"name": "id"}},
        "original_file_path": "models/sources/shop.yml", "config": {"meta": RAW if meta is None else meta}, **stated,
    }  # fmt: skip


def refusals(place: Path, *nodes: dict[str, Any], connected: tuple[str, ...] = ("shop",)) -> list[str]:
    manifest = {"metadata": {"project_name": "lake"}, "sources": {str(i): node for i, node in enumerate(nodes)}}
    return declared_elsewhere(manifest, place, "lake", connected)


@pytest.mark.parametrize("schema", ["shop", "raw-shop", "Raw_shop", "rawshop", "raw_shops"])
def test_a_table_with_meta_raw_is_declared_whatever_its_schema_is_called(tmp_path: Path, schema: str) -> None:
    """The source disappeared: nothing of it was ingested."""
    with pytest.raises(LakehouseError, match=r"shop\.yml:1: schema of source 'shop' must be raw_shop$"):
        declarations_from({"sources": {"1": table(schema=schema)}}, tmp_path)


def test_a_schema_that_is_almost_one_of_raw_tables_is_refused_without_meta_raw(tmp_path: Path) -> None:
    with pytest.raises(LakehouseError, match=r"schema of source 'shop' must be raw_shop$"):
        declarations_from({"sources": {"1": table({}, schema="raw-shop")}}, tmp_path)
    foreign = table({}, schema="Raw_stripe", database="other", unrendered_database="other")
    assert declarations_from({"sources": {"1": foreign}}, tmp_path).sources == ()


def test_a_connected_source_without_a_schema_is_refused(tmp_path: Path) -> None:
    bare = table({}, schema="shop")
    [told] = refusals(tmp_path, bare)
    assert told.endswith("models/sources/shop.yml:1: schema of source 'shop' must be raw_shop")
    assert refusals(tmp_path, bare, connected=()) == [], "a source of somebody else"
    assert refusals(tmp_path, table({}, schema="archive")) == []
    assert refusals(tmp_path, bare, table()) == [], "its raw tables are declared"
    there = table({}, schema="shop", database="other", unrendered_database="other")
    assert refusals(tmp_path, there) == [], "a namesake in another database"


def test_a_mark_that_is_called_raw_makes_no_table_of_the_lake(tmp_path: Path) -> None:
    """Sources of another tool that sorts its layers by it were refused."""
    other = table({"raw": True}, schema="stripe", source_name="stripe", original_file_path="models/stripe.yml")
    assert declarations_from({"sources": {"1": other}}, tmp_path).sources == () and refusals(tmp_path, other) == []


def test_a_name_that_dbt_would_read_another_table_by_is_refused(tmp_path: Path) -> None:
    """Ingestion wrote raw_shop.orders, and dbt read raw_shop.orders_v2."""
    with pytest.raises(LakehouseError, match=r"shop.yml:1: identifier 'orders_v2': .* leave out `identifier`, and put"):
        declarations_from({"sources": {"1": table(identifier="orders_v2")}}, tmp_path)
    assert len(declarations_from({"sources": {"1": table(identifier="Orders")}}, tmp_path).tables) == 1


def test_another_catalog_is_refused_where_it_is_stated(tmp_path: Path) -> None:
    [told] = refusals(tmp_path, table(database="other", unrendered_database="other"))
    assert told.endswith("in the catalog 'lake', and dbt would read them in 'other': leave out `database`")
    assert refusals(tmp_path, table(database="LAKE", unrendered_database="{{ target.database }}")) == []
    assert refusals(tmp_path, table(database="by_default_of_the_profile")) == []


def test_declarations_outside_of_their_folder_are_refused_unless_a_package_brings_them(tmp_path: Path) -> None:
    """`scaffold` proposed such a source again, and `remove` left its slot behind."""
    [told] = refusals(tmp_path, table(original_file_path="models/shop/sources.yml"))
    assert "models/shop/sources.yml:1: source 'shop' is declared outside of models/sources/" in told
    assert refusals(tmp_path, table(original_file_path="models/shop/sources.yml", package_name="bought")) == []
    assert refusals(tmp_path, table({}, schema="archive", original_file_path="models/archive.yml")) == []
    assert refusals(tmp_path, table(), table(original_file_path="models/sources/eu/shop.yml")) == []
