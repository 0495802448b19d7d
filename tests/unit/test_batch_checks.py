"""A batch that breaks a test of its table is refused before it is there: by its statement, or by the worker."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from orchestration.worker.loads.small_loads import broken
from tests.unit.dbt_macros import macro

MODEL = SimpleNamespace(unique_id="model.p.sat", name="sat")
COLUMNS = [("hk", "varchar"), ("line", "bigint"), ("source_seq", "varchar")]
SAT = {"once": [["hk", "line", "source_seq"]], "given": ["hk"]}


def a_test(name: str, severity: str = "ERROR", where: str | None = None, **said: Any) -> SimpleNamespace:
    return SimpleNamespace(
        resource_type="test", attached_node=MODEL.unique_id, config=SimpleNamespace(severity=severity, where=where),
        test_metadata=SimpleNamespace(name=name, kwargs=SimpleNamespace(**{"src_cdk": None, **said})),
    )  # fmt: skip


def checks_of(*tests: SimpleNamespace) -> dict[str, list[Any]] | None:
    graph = {"nodes": {str(n): test for n, test in enumerate(tests)}}
    found: dict[str, list[Any]] | None = macro("batch_checks", graph=graph, model=MODEL)()
    return found


def test_what_a_batch_can_break_is_what_the_tests_of_its_table_say_of_each_row() -> None:
    assert checks_of(a_test("sat_is_sound", src_pk="hk", src_cdk="line")) == SAT
    assert checks_of(a_test("hub_is_sound", src_pk="hk")) == {"once": [["hk"]], "given": ["hk"]}
    assert checks_of(a_test("ref_is_sound", src_pk=["a", "order"])) == {
        "once": [["a", '"order"', "source_seq"]], "given": ["a", '"order"'],
    }  # fmt: skip
    both = a_test("unique", column_name="id"), a_test("not_null", column_name="id")
    assert checks_of(*both) == {"once": [["id"]], "given": ["id"]}
    assert checks_of() is None and checks_of(a_test("keys_are_given", src_pk="hk")) is None
    assert checks_of(a_test("unique", column_name="id", severity="WARN")) is None, "a warning stops nothing"
    assert checks_of(a_test("unique", column_name="id", where="id > 5")) is None, "not of all rows"
    assert checks_of(a_test("unique", column_name="a || b")) is None, "an expression"
    query = SimpleNamespace(resource_type="test", name="a query of its own")
    assert checks_of(query, a_test("unique", column_name="id")) == {"once": [["id"]], "given": []}


def by_statement(rows: list[tuple[Any, ...]]) -> str | None:
    relation = SimpleNamespace(schema="vault", identifier="sat")
    given = ", ".join(f"({', '.join('null' if value is None else repr(value) for value in row)})" for row in rows)
    query = f"select * from (values {given}) as t (hk, line, source_seq)"
    sql = macro("refusing_batch")(relation, SAT, query).replace("fail(", "error(")
    try:
        assert len(duckdb.execute(sql).fetchall()) == len(rows)
    except duckdb.Error as error:
        return str(error)
    return None


def by_worker(rows: list[tuple[Any, ...]]) -> str | None:
    return broken(COLUMNS, [[None if value is None else str(value) for value in row] for row in rows], SAT)


@pytest.mark.parametrize("refused", [by_statement, by_worker])
def test_a_batch_with_a_key_that_is_missing_or_comes_twice_is_refused_with_an_example(
    refused: Callable[[list[tuple[Any, ...]]], str | None],
) -> None:
    sound = [("x", 1, "1"), ("x", 1, "2"), ("x", 2, "1"), ("y", 1, "1"), ("z", None, "1"), ("z", None, "1")]
    assert refused(sound) is None, "what has a NULL is not twice, as dbt's unique has it"
    missing, twice = refused([*sound, (None, 1, "1")]), refused([*sound, ("y", 1, "1")])
    assert missing and "hk is not given: NULL" in missing
    assert twice and "hk, line, source_seq twice: y, 1, 1" in twice


def test_without_checks_a_query_stays_as_it_is() -> None:
    assert macro("refusing_batch")(None, None, "select 1") == "select 1"
