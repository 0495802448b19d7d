"""What all actions have in common: an exclusive lock on the table, timing, and failures that concern one table only."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from maintenance.actions.exclusion import Held, exclusive
from maintenance.actions.need import Body
from maintenance.actions.registry import BY_NAME
from maintenance.inventory.in_use import Unknown
from maintenance.inventory.outcome import Outcome, TableName, one_line
from maintenance.inventory.session import Session


def action(name: str) -> Callable[[Body], Body]:
    """Makes a function an action: it locks its table, measures its time and turns an error into an Outcome.

    A table whose policy opts out or lacks the action's part, or that another run has locked, is skipped. A dry run
    takes no lock. A LakehouseError is raised: it means that the environment is broken for all tables.
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
    if not BY_NAME[name].is_asked_for(policy):
        return Outcome(name, table, "skipped", f"the policy has no {BY_NAME[name].part} part")
    try:
        if session.dry_run:
            return body(session, table, policy)
        with exclusive(session, table):
            return body(session, table, policy)
    except (Held, Unknown) as reason:
        return Outcome(name, table, "skipped", str(reason))
