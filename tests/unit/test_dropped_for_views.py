"""A table that becomes a view is dropped with its history, unless somebody keeps that."""

from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from lakehouse.settings import DBT_PACKAGE
from tests.unit.dbt_macros import Refused, macro

LAKE = """
CREATE MACRO regexp_like(text, pattern) AS regexp_matches(text, pattern);
CREATE SCHEMA marts;
CREATE TABLE marts.refs (name text);
INSERT INTO marts.refs VALUES ('main'), ('pinned by nobody'), ('release');
CREATE TABLE marts.fct (id int);
CREATE TABLE marts.fct__as_of_day (id int);
CREATE TABLE marts.fct_20261130000000 (id int);
"""


class Table:
    """What dbt knows of the relation in the view's place."""

    database, schema, identifier, is_view, is_table = "memory", "marts", "fct", False, True


def drop(lake: duckdb.DuckDBPyConnection, there: Any) -> list[Any]:
    """What is dropped for a view."""
    dropped: list[Any] = []

    def run_query(sql: str) -> Any:
        return SimpleNamespace(
            rows=lake.execute(sql.replace('"memory".information_schema', "information_schema")).fetchall()
        )

    adapter = SimpleNamespace(drop_relation=dropped.append)
    of = lambda relation, name: f"marts.{name}"  # noqa: E731
    macro("drop_for_view", run_query=run_query, adapter=adapter, system_table=of)(there)
    return dropped


@pytest.fixture
def lake() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute(LAKE)
    return made


def test_a_table_that_nobody_keeps_is_dropped(lake: duckdb.DuckDBPyConnection) -> None:
    there = Table()
    assert drop(lake, there) == [there] and drop(lake, None) == []
    assert drop(lake, SimpleNamespace(is_view=True)) == []
    assert "drop_relation(existing)" not in _materialization(), "the macro alone drops"


def _materialization() -> str:
    text = (DBT_PACKAGE / "macros" / "materializations" / "view.sql").read_text()
    return text[text.index("{% materialization") : text.index("{% endmaterialization")]


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ("INSERT INTO marts.refs VALUES ('pin_audit'), ('pin_month_end')", "pin audit, pin month_end"),
        ("CREATE TABLE marts.fct__as_of_20261130000000 (id int)", "restored copy marts.fct__as_of_20261130000000"),
        (
            "CREATE TABLE marts.fct__as_of_20261130000000__as_of_20261201000000 (id int)",
            "restored copy marts.fct__as_of_20261130000000__as_of_20261201000000",
        ),
    ],
)
def test_one_that_a_pin_or_a_restored_copy_needs_is_refused(
    lake: duckdb.DuckDBPyConnection, kept: str, named: str
) -> None:
    """A month's end, and the files below a copy, went with the table without a word."""
    lake.execute(kept)
    with pytest.raises(Refused, match=rf"^marts\.fct is a table, .* Kept of it: {named}\. First end a pin with"):
        drop(lake, Table())
