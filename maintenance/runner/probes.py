"""What maintenance gains, measured: the same queries timed before and after, in Trino, the users' engine.

A count, a lookup of one key, and a scan of one day. Only what rewrites a table's data is measured this way.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse.declarations.policies import MaintenancePolicy, ProbePolicy
from lakehouse.text.sql import ident, literal, relation
from maintenance.actions.action import Body
from maintenance.actions.compact import plan_for
from maintenance.inventory.outcome import Outcome, TableName, plainly
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

TIMES = 2  # the better of two: the first also warms what any reader finds warm
TIME_TRANSFORMS = frozenset({"hour", "day", "month", "year"})


def probed(body: Body) -> Body:
    """A compaction with the table's probe, where one is declared, timed before and after the data is rewritten.

    The queries never make the action fail; why they could not be timed is part of the outcome's reason.
    """

    @functools.wraps(body)
    def run(session: Session, name: TableName, policy: MaintenancePolicy) -> Outcome:
        try:
            queries = _queries(session, name, policy)
            before = timed(session, queries)
        except Exception as error:  # a table that cannot be read is the action's to report
            outcome = body(session, name, policy)
            return _not_probed(outcome, error) if outcome.status == "done" else outcome
        outcome = body(session, name, policy)
        return _with_probes(session, outcome, queries, before) if queries and outcome.status == "done" else outcome

    return run


def _queries(session: Session, name: TableName, policy: MaintenancePolicy) -> dict[str, str]:
    """What is timed; nothing where no data is going to be rewritten."""
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
    """The probe's queries by name, with the values they look for in their text, so that they stay the same ones.

    Looked up is the greatest key, scanned the newest day that has rows, by the column of time that the table is
    partitioned by; where there is none, or no row, that query is left out.
    """
    place, key, day = relation(*name), ident(policy.key), time_column(table)
    newest = f"CAST(CAST(max({ident(day)}) AS date) AS varchar)" if day else "NULL"
    values = f"CAST(max({key}) AS varchar), typeof(max({key})), {newest}"
    [[greatest, kind, last_day]] = session.trino(f"SELECT {values} FROM {place}")
    queries = {"count": f"SELECT count(*) FROM {place}"}
    if greatest is not None:
        queries["lookup"] = f"SELECT count(*) FROM {place} WHERE {key} = CAST({literal(greatest)} AS {kind})"
    if day is not None and last_day is not None:
        names = [field.name for field in table.schema().fields]
        queries["day"] = _scan(place, names, ident(day), f"DATE {literal(last_day)}")
    return queries


def time_column(table: Table) -> str | None:
    """The column whose hour, day, month or year the table is partitioned by; None where there is none."""
    for field in table.spec().fields:
        if str(field.transform) in TIME_TRANSFORMS:
            return table.schema().find_column_name(field.source_id)
    return None


def timed(session: Session, queries: dict[str, str]) -> dict[str, float]:
    """Seconds that each query takes, by its name: the best of a few runs."""
    return {name: min(_seconds(session, query) for _ in range(TIMES)) for name, query in queries.items()}


def _scan(place: str, columns: Sequence[str], day: str, date: str) -> str:
    """Reads every column: a checksum has to see each value."""
    sums = ", ".join(f"checksum({ident(column)})" for column in columns)
    return f"SELECT {sums} FROM {place} WHERE {day} >= {date} AND {day} < {date} + INTERVAL '1' DAY"


def _seconds(session: Session, query: str) -> float:
    started = time.perf_counter()
    session.trino(query)
    return time.perf_counter() - started
