"""What is common to all actions: each has its table to itself, times itself, and fails for its table alone.

A plan is told in these words what an action has to do, how fast it does that, and what it gains.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from maintenance.actions.exclusion import Held, exclusive
from maintenance.inventory.in_use import Unknown
from maintenance.inventory.outcome import Outcome, TableName, one_line
from maintenance.inventory.session import Session

SCANNED_BYTES_A_SECOND = 100e6  # without statistics, or out of order, a reader reads what it could have passed over


class Work(NamedTuple):
    """What an action has to do: bytes to read and write, and things (files, snapshots, objects) to look at."""

    bytes: int = 0
    things: int = 0


class Rate(NamedTuple):
    """Seconds at least, bytes a second, seconds a thing."""

    seconds: float
    bytes_a_second: float
    seconds_a_thing: float


@dataclass(frozen=True)
class Need:
    """One action that a table's health asks for: why, how much work, and what it gains."""

    action: str
    reason: str
    work: Work
    gain_seconds: float = 0.0
    gain_bytes: int = 0


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
