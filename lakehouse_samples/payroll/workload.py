"""The payroll workload: five inserts, five updates and five deletes, each step in one transaction."""

from enum import StrEnum

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse_samples.database import session

NEWCOMERS = 5


class Step(StrEnum):
    """A step of the workload, or all of them."""

    insert = "insert"
    update = "update"
    delete = "delete"
    all = "all"


STATEMENTS = {
    Step.insert: """
        INSERT INTO employee (name, salary)
        SELECT 'Manjaz' || number, number * 200 FROM generate_series(1, 5) AS number
        WHERE NOT EXISTS (SELECT FROM employee WHERE name LIKE 'Manjaz%')""",
    Step.update: "UPDATE employee SET salary = 4000 WHERE name LIKE 'Manjaz%'",
    Step.delete: "DELETE FROM employee WHERE name LIKE 'Manjaz%'",
}
REFUSALS = {
    Step.insert: "the five newcomers are there already: run `lakehouse simulate payroll --step delete` first",
    Step.update: "there are no newcomers to update: run `lakehouse simulate payroll --step insert` first",
    Step.delete: "there are no newcomers to delete: run `lakehouse simulate payroll --step insert` first",
}


def run(url: str, step: Step) -> dict[str, int]:
    """Runs one step or all three; returns the number of changed rows per step. Raises LakehouseError."""
    steps = tuple(STATEMENTS) if step is Step.all else (step,)
    with session(url, "payroll") as connection:
        return {one.value: _run_step(connection, one) for one in steps}


def _run_step(connection: psycopg.Connection, step: Step) -> int:
    with connection.transaction():
        changed = connection.execute(STATEMENTS[step].encode()).rowcount
        if changed != NEWCOMERS:
            raise LakehouseError(f"source 'payroll': {REFUSALS[step]}")
    return changed
