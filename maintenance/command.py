"""`lakehouse maintain` and `python -m maintenance`: the same command."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lakehouse.settings import load_settings
from maintenance.outcome import Figures, Outcome
from maintenance.run import ACTIONS, Report, Result, run
from maintenance.session import Session

FIGURES = ("files", "bytes", "manifests", "snapshots")
SHOWN_FAILURES, WIDTH_IN_A_FILE = 10, 200


class Choice(StrEnum):
    """The actions, and all of them in order."""

    compact = "compact"
    expire_snapshots = "expire_snapshots"
    remove_orphan_files = "remove_orphan_files"
    drop_extended_stats = "drop_extended_stats"
    clean_dbt_temporary = "clean_dbt_temporary"
    all = "all"


def maintain(
    action: Annotated[Choice, typer.Argument(help="What to do.")] = Choice.all,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table, as namespace.table; repeatable.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only the tables of this schedule group.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    max_failed_share: Annotated[
        float, typer.Option(min=0, max=1, help="Exit non-zero when a larger share of the tables failed.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcomes as JSON.")] = False,
) -> None:
    """Compact tables, expire snapshots, remove orphan files, refresh statistics, clean up after dbt.

    What is done to which table is declared in dbt: `config.meta.maintenance`.
    """
    actions = list(ACTIONS) if action is Choice.all else [action.value]
    session = Session(load_settings(), dry_run)
    try:
        with _progress() as report:
            result = run(session, actions, table or (), group, report)
    finally:
        session.close()
    print(json.dumps(result.as_dict())) if as_json else _print(result)
    result.check(max_failed_share)


@contextmanager
def _progress() -> Iterator[Report]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("maintenance", total=None)
        yield lambda outcome: bar.update(task, advance=1, description=f"{outcome.action} {outcome.table}")


def _print(result: Result) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_IN_A_FILE)
    shown = [outcome for outcome in result.outcomes if outcome.status in ("done", "planned")]
    if shown:
        console.print(_table(shown))
    for outcome in result.failed[:SHOWN_FAILURES]:
        print(f"{outcome.action} of {outcome.table} failed: {outcome.error}")
    counts = result.as_dict()["counts"]
    print(", ".join(f"{count} {status}" for status, count in counts.items()) + " (--json says why)")


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("table", "action", "what", *FIGURES, "seconds"):
        table.add_column(heading, no_wrap=True)
    for outcome in outcomes:
        changes = (_change(outcome, field) for field in FIGURES)
        table.add_row(str(outcome.table), outcome.action, outcome.reason, *changes, f"{outcome.seconds:.2f}")
    return table


def _change(outcome: Outcome, field: str) -> str:
    before, after = (_text(figures, field) for figures in (outcome.before, outcome.after))
    return f"{before} → {after}" if before and after and before != after else before or after


def _text(figures: Figures, field: str) -> str:
    value = getattr(figures, field)
    return "" if value is None else f"{value:,}"
