"""What is common to all actions: each has its table to itself, times itself, and fails for its table alone."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from maintenance.actions.exclusion import Held, exclusive
from maintenance.inventory.in_use import Unknown
from maintenance.inventory.outcome import Outcome, TableName, one_line
from maintenance.inventory.session import Session

Body = Callable[[Session, TableName, MaintenancePolicy], Outcome]


def action(name: str) -> Callable[[Body], Body]:
    """Makes an action hold its table, time itself and turn its table's failure into an Outcome.

    A table that opts out, or that another run holds, is skipped with that reason; a dry run holds nothing. A
    LakehouseError passes through: it means that the environment is broken, for every table alike.
    """

    def wrap(body: Body) -> Body:
        @functools.wraps(body)
        def run(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
            started_at, started = datetime.now(UTC), time.perf_counter()
            try:
                outcome = _alone(body, name, session, table, policy)
            except LakehouseError:
                raise
            except Exception as error:
                outcome = Outcome(name, table, "failed", error=one_line(error))
            return replace(outcome, started_at=started_at, seconds=time.perf_counter() - started)

        return run

    return wrap


def _alone(body: Body, name: str, session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    if policy.opt_out is not None:
        return Outcome(name, table, "skipped", f"opted out: {policy.opt_out}")
    try:
        if session.dry_run:
            return body(session, table, policy)
        with exclusive(session, table):
            return body(session, table, policy)
    except (Held, Unknown) as reason:
        return Outcome(name, table, "skipped", str(reason))
