"""`lakehouse run`: Dagster jobs in the foreground, one after another, recorded like any other run."""

from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.shown import say_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestration.runner import Outcome


def run(
    jobs: Annotated[list[str], typer.Argument(help="Jobs in order, such as load_retail build_marts.")],
    partition: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Derive this day of commit time (UTC) again, ignoring the watermarks."),
    ] = None,
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="First day to derive again, in one run.")
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day to derive again (inclusive).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and progress on stderr.")] = False,
) -> None:
    """Run Dagster jobs in this process, on the instance that the UI shows.

    After a failure, jobs that read the failed job's tables are skipped, and the others run. Exits 1 after one, and if a
    table is parked, as `ingest` does. Ctrl-C cancels the run.
    """
    days = _days(_date(partition), _date(first), _date(last))
    from orchestration.runs.processes.interrupts import interruptible

    with interruptible() as stop:
        from lakehouse_stack.home.instance import ensure_instance
        from orchestration.runner import run_jobs
        from orchestration.runs.partitions import DayRange

        settings = load_settings()
        ensure_instance(settings)
        outcomes = run_jobs(settings, jobs, DayRange(*days) if days else None, stop, to_stderr=json)
    if json:
        say_json([asdict(outcome) for outcome in outcomes])
    if problems := [problem for outcome in outcomes for problem in _problems(outcome)]:
        raise LakehouseError(*"\n".join(problems).split("\n"))  # dbt's failures have a line each


def _problems(outcome: "Outcome") -> "Iterator[str]":
    run = f" run {outcome.run_id[:8]}:" if outcome.run_id else ""
    if not outcome.success:
        yield f"{outcome.job}:{run} {outcome.error or 'failed, see the UI'}"
    for aside in outcome.aside:
        yield f"{outcome.job}:{run} {aside.line}"


def _date(value: datetime | None) -> date | None:
    return value.date() if value else None


def _days(partition: date | None, first: date | None, last: date | None) -> tuple[date, date] | None:
    if partition and (first or last):
        raise LakehouseError("give --partition for one day, or --from and --to for several, not both")
    if partition:
        return partition, partition
    if not first and not last:
        return None
    if not first or not last or first > last:
        raise LakehouseError("give both --from and --to, the earlier day first")
    return first, last
