"""Tests, many in one statement of Trino: a test of a few rows costs what a statement costs."""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakehouse.errors import LakehouseError
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import answering, answers
from lakehouse.text.sql import literal
from orchestration.runs.examples import example_rows, found_by
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.plan import Node

if TYPE_CHECKING:
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
AT_ONCE = 16  # a test has about three stages, and Trino takes 150 of a statement
COUNTING = {"fail_calc": "count(*)", "warn_if": "!= 0", "error_if": "!= 0", "limit": None, "store_failures": None}


def run_tests(
    settings: "Settings",
    dbt: WarmDbt,
    tests: Mapping[str, Node],
    variables: Mapping[str, str],
    nodes: Mapping[str, Node],
) -> list[NodeResult]:
    """The results of tests of these nodes, those of failed ones with what they find.

    One that does more than count rows, or whose statement fails, is run by dbt alone.
    """
    counting = [node["name"] for node in tests.values() if counts_rows(node)]
    session = json.loads(variables.get("LAKEHOUSE_SESSION_PROPERTIES", "{}"))
    queries = list(_compiled(settings, dbt, counting, variables).items())
    found = [
        result
        for at in range(0, len(queries), AT_ONCE)
        for result in _counted(settings, dbt, tests, dict(queries[at : at + AT_ONCE]), session)
    ]
    rest = tests.keys() - {result.unique_id for result in found}
    found += dbt.run("test", [tests[test]["name"] for test in sorted(rest)], variables)
    return [
        _with_examples(settings, r, tests[r.unique_id], nodes) if r.sql and r.unique_id in tests else r for r in found
    ]


def _compiled(
    settings: "Settings", dbt: WarmDbt, names: Sequence[str], variables: Mapping[str, str]
) -> Mapping[str, str]:
    """By unique id the SQL of these tests; none if one of them does not compile: dbt compiles all or nothing, and says
    of each what is wrong when it runs them.
    """
    try:
        return dbt.compiled(names, variables)
    except LakehouseError as error:
        if not answers(settings):  # else each test would be told as broken
            raise Unreachable(str(error)) from None
        log.warning("%d tests are left to dbt: %s", len(names), error)
        return {}


def _with_examples(settings: "Settings", result: NodeResult, test: Node, nodes: Mapping[str, Node]) -> NodeResult:
    examples = example_rows(settings, result.sql, test, nodes)
    return replace(result, examples=examples, message=found_by(test, result.failures, examples))


def counts_rows(node: Node) -> bool:
    """Whether the test demands that its query finds no row, and nothing else."""
    config = node["config"]
    return all(config.get(key, value) == value for key, value in COUNTING.items())


def one_query(queries: Mapping[str, str]) -> str:
    """By name the number of rows that each query finds, as one query."""
    return "\nUNION ALL\n".join(
        f"SELECT {literal(name)}, count(*) FROM (\n{sql.strip().rstrip(';')}\n)" for name, sql in queries.items()
    )


def _counted(
    settings: "Settings",
    dbt: WarmDbt,
    tests: Mapping[str, Node],
    queries: Mapping[str, str],
    session: Mapping[str, str],
) -> Iterator[NodeResult]:
    """Nothing where the statement fails: alone, each test says what is wrong with it."""
    from trino.exceptions import TrinoQueryError

    begun = time.monotonic()
    rows: Sequence[Sequence[Any]] = ()
    try:
        with answering(settings):
            rows = dbt.statements.ask(settings, one_query(queries), session)
    except TrinoQueryError:
        return
    seconds = (time.monotonic() - begun) / len(queries)
    for test, count in rows:
        failed = "warn" if tests[test]["config"]["severity"].lower() == "warn" else "fail"
        yield NodeResult(test, failed if count else "pass", seconds, count, "", sql=queries[test] if count else "")
