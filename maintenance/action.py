"""What is common to all actions: each times itself, and its failure is its table's alone."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace

from lakehouse.errors import LakehouseError
from lakehouse.policies import MaintenancePolicy
from maintenance.outcome import Outcome, TableName, one_line
from maintenance.session import Session

Body = Callable[[Session, TableName, MaintenancePolicy], Outcome]


def action(name: str) -> Callable[[Body], Body]:
    """Makes an action time itself and turn its table's failure into an Outcome.

    A LakehouseError passes through: it means that the environment is broken, for every table alike.
    """

    def wrap(body: Body) -> Body:
        @functools.wraps(body)
        def run(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
            started = time.perf_counter()
            try:
                outcome = body(session, table, policy)
            except LakehouseError:
                raise
            except Exception as error:
                outcome = Outcome(name, table, "failed", error=one_line(error))
            return replace(outcome, seconds=time.perf_counter() - started)

        return run

    return wrap
