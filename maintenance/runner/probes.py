"""Probes: queries that are timed in Trino before and after an action that rewrites data.

They are a count, a lookup of one key, and a scan of one day.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse.declarations.policies import MaintenancePolicy, ProbePolicy
from lakehouse.text.sql import literal, relation, trino_ident
from maintenance.actions.compact import plan_for
from maintenance.actions.need import Body
from maintenance.inventory.outcome import Outcome, TableName, plainly
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

TIMES = 2  # the better of two: the first run fills caches
TIME_TRANSFORMS = frozenset({"hour", "day", "month", "year"})


def probed(body: Body) -> Body:
    """Times the declared probe before and after the action.

    A failing probe does not fail the action; its error is part of the outcome's reason.
    """

    @functools.wraps(body)
    def run(session: Session, name: TableName, policy: MaintenancePolicy) -> Outcome:
        try:
            queries = _queries(session, name, policy)
            before = timed(session, queries)
        except Exception as error:  # the action reports a table that cannot be read
            outcome = body(session, name, policy)
            return _not_probed(outcome, error) if outcome.status == "done" else outcome
        outcome = body(session, name, policy)
        return _with_probes(session, outcome, queries, before) if queries and outcome.status == "done" else outcome

    return run


def _queries(session: Session, name: TableName, policy: MaintenancePolicy) -> dict[str, str]:
    """The queries to time; none if no data will be rewritten."""
    if session.dry_run or policy.probe is None or policy.opt_out is not None or policy.compact is None:
        return {}
    table = session.load(name)
    if table is None or not plan_for(table, policy.compact).data:
        return {}
    return queries_of(session, name, table, policy.probe)


def _with_probes(session: Session, outcome: Outcome, queries: dict[str, str], before: dict[str, float]) -> Outcome:
    try:
        return replace(outcome, probes_before=before, probes_after=timed(session, queries))
    except Exception as error:
        return _not_probed(replace(outcome, probes_before=before), error)


def _not_probed(outcome: Outcome, error: Exception) -> Outcome:
    return replace(outcome, reason=f"{outcome.reason}; not probed: {plainly(error)}")


def queries_of(session: Session, name: TableName, table: Table, policy: ProbePolicy) -> dict[str, str]:
    """The probe's queries by name, with constants, so that they are the same before and after.

    The lookup reads the greatest key, the scan the newest day with rows, by the time column that partitions the table;
    a query without a value is left out.
    """
    target, key, day = relation(*name), trino_ident(policy.key), time_column(table)
    newest = f"CAST(CAST(max({trino_ident(day)}) AS date) AS varchar)" if day else "NULL"
    values = f"CAST(max({key}) AS varchar), typeof(max({key})), {newest}"
    [[greatest, kind, last_day]] = session.trino(f"SELECT {values} FROM {target}")
    queries = {"count": f"SELECT count(*) FROM {target}"}
    if greatest is not None:
        queries["lookup"] = f"SELECT count(*) FROM {target} WHERE {key} = CAST({literal(greatest)} AS {kind})"
    if day is not None and last_day is not None:
        names = [field.name for field in table.schema().fields]
        queries["day"] = _scan(target, names, trino_ident(day), f"DATE {literal(last_day)}")
    return queries


def time_column(table: Table) -> str | None:
    """The column whose hour, day, month or year partitions the table, if there is one."""
    for field in table.spec().fields:
        if str(field.transform) in TIME_TRANSFORMS:
            return table.schema().find_column_name(field.source_id)
    return None


def timed(session: Session, queries: dict[str, str]) -> dict[str, float]:
    """The seconds of each query, by name: the best of a few runs."""
    return {name: min(_seconds(session, query) for _ in range(TIMES)) for name, query in queries.items()}


def _scan(target: str, columns: Sequence[str], day: str, date: str) -> str:
    """A query that reads every column: a checksum needs each value."""
    sums = ", ".join(f"checksum({trino_ident(column)})" for column in columns)
    return f"SELECT {sums} FROM {target} WHERE {day} >= {date} AND {day} < {date} + INTERVAL '1' DAY"


def _seconds(session: Session, query: str) -> float:
    started = time.perf_counter()
    session.trino(query)
    return time.perf_counter() - started
