"""Plan and act: measures the tables, ranks what they need, and does it within the budgets of their schedule groups.

A few tables are maintained at a time, in one Spark session. The steps of a table run in order, because one action
removes what the previous one released. A step that does not fit into the remaining time is put off.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from maintenance.actions.clean_dbt_temporary import NAME as CLEAN
from maintenance.actions.clean_dbt_temporary import READING
from maintenance.inventory.outcome import Outcome, TableName, plainly
from maintenance.inventory.session import Session
from maintenance.planning.history import Act, record
from maintenance.planning.plan import Allowance, Plan, Step, allowances, make_plan
from maintenance.planning.rates import learn
from maintenance.planning.survey import Survey, survey
from maintenance.runner.result import Result, sorted_result
from maintenance.runner.run import ACTIONS, Report, a_few_at_a_time, hindrances_for

MEASURE = "measure"


@dataclass(frozen=True)
class Prepared:
    """A run before its first step: the plan, and the time of each group since `began` (monotonic clock).

    `unmeasured` are failures to measure a table, and tables that keep an action from all; `mended` is what failed so in
    an earlier run and does not any more.
    """

    plan: Plan
    allowed: dict[str, Allowance]
    unmeasured: tuple[Outcome, ...]
    max_failed_share: float
    began: float
    mended: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Run:
    """A plan and its result. `max_failed_share` is the declared one."""

    plan: Plan
    result: Result
    max_failed_share: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"plan": self.plan.as_dict(), **self.result.as_dict()}


def maintain(
    session: Session,
    names: Iterable[str] = (),
    group: str | None = None,
    budget_minutes: float | None = None,
    report: Report = lambda outcome: None,
) -> Run:
    """Plans for the tables of these names and this group, and runs the plan unless the session is a dry run.

    `budget_minutes` override the groups' budgets and windows. `report` is called with each outcome.
    Raises LakehouseError for a broken environment, a wrong declaration, or unknown names.
    """
    prepared = prepare(session, names, group, budget_minutes)
    outcomes: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    try:
        for outcome in prepared.unmeasured:
            keep(outcome)
        if not session.dry_run:
            act(session, prepared.plan.steps, prepared, keep)
            session.forget_lake()
    finally:  # also records the finished steps of an interrupted run
        run = finish(session, prepared, outcomes)
    return run


def prepare(
    session: Session, names: Iterable[str] = (), group: str | None = None, budget_minutes: float | None = None
) -> Prepared:
    """Measures the tables and plans; the time budget starts here. Raises what `maintain` raises."""
    began = time.monotonic()
    names = tuple(names)
    seen = survey(session, names, group)
    unmeasured = {outcome.table: outcome for outcome in (*hindrances_for(session, CLEAN, names), *_unmeasured(seen))}
    allowed = allowances(seen.project, session.now, budget_minutes)
    plan = make_plan(seen.cases, allowed, learn(seen.acts))
    return Prepared(
        plan, allowed, tuple(unmeasured.values()), seen.project.max_failed_share, began, tuple(_mended(session, seen))
    )


def finish(session: Session, prepared: Prepared, outcomes: Iterable[Outcome]) -> Run:
    """All outcomes of the run, written to the history unless it was a dry run."""
    outcomes = list(outcomes)
    if not session.dry_run:
        record(
            session,
            [*outcomes, *prepared.mended],
            {(step.table.name, step.action): step for step in prepared.plan.steps},
        )
    return Run(prepared.plan, sorted_result(outcomes), prepared.max_failed_share)


def act(session: Session, steps: Iterable[Step], prepared: Prepared, report: Report) -> list[Outcome]:
    """Runs the steps, tables in the order of their best step, until their group's time is over.

    After an interrupt the current steps finish and no other starts.
    """
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def work(table_steps: list[Step], stopped: threading.Event) -> None:
        for step in table_steps:
            if stopped.is_set():
                return
            outcome = _take(session, step, prepared)
            with lock:
                report(outcome)
                outcomes.append(outcome)

    a_few_at_a_time(work, by_table(steps))
    return outcomes


def by_table(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps of each table in the order of the actions; the tables in the order of their first step."""
    found: dict[TableName, list[Step]] = defaultdict(list)
    for step in steps:
        found[step.table.name].append(step)
    order = list(ACTIONS)
    return [sorted(group, key=lambda step: order.index(step.action)) for group in found.values()]


def _take(session: Session, step: Step, prepared: Prepared) -> Outcome:
    allowance = prepared.allowed[step.table.policy.schedule_group]
    left = allowance.seconds - (time.monotonic() - prepared.began)
    if step.expected_seconds > left:
        reason = allowance.why_put_off(step.expected_seconds, left)
        return Outcome(step.action, step.table.name, "skipped", reason)
    started_at = datetime.now(UTC)
    try:
        outcome = ACTIONS[step.action](session, step.table.name, step.table.policy)
    except Exception as error:  # Trino may be down: steps that need only Spark, and other tables, continue
        return Outcome(step.action, step.table.name, "failed", error=plainly(error), started_at=started_at)
    try:
        session.refresh(step.table.name)  # the next step may not read what this one removed
    except Exception as error:
        return replace(outcome, reason=f"{outcome.reason}; then the table could not be read: {plainly(error)}")
    return outcome


def _unmeasured(seen: Survey) -> Iterator[Outcome]:
    for case in seen.cases:
        if case.error is not None:
            yield Outcome(MEASURE, case.table.name, "failed", error=case.error)


def _mended(session: Session, seen: Survey) -> Iterator[Outcome]:
    """What is recorded of success: that a table can be read and measured is not, unless it could not be before."""
    newest = {(act.table, act.action): act for act in reversed(seen.acts)}
    measured = {str(case.table.name): case.table.name for case in seen.cases if case.health is not None}
    yield from _again(MEASURE, newest, measured)
    if any(action == READING for _, action in newest):
        yield from _again(READING, newest, {str(name): name for name in session.lake().tables})


def _again(action: str, newest: Mapping[tuple[str, str], Act], sound: Mapping[str, TableName]) -> Iterator[Outcome]:
    for (table, what), act in newest.items():
        if what == action and act.status == "failed" and table in sound:
            yield Outcome(action, sound[table], "done", "succeeds again")
