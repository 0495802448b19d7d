"""`lakehouse maintain` and `python -m maintenance`: the same commands.

Without a subcommand it plans and runs actions; each action can also be run by name, on all tables that declare it.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.migrations import refuse_former_state
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import console, say, say_json
from maintenance.actions.registry import ACTIONS
from maintenance.command import restore as restore_command
from maintenance.command.show import print_outcomes, print_plan, print_status
from maintenance.inventory.session import Session
from maintenance.planning.survey import survey
from maintenance.runner.maintain import maintain as plan_and_act
from maintenance.runner.run import Report, run

Tables = Annotated[list[str] | None, typer.Option("--table", help="Only this table, as namespace.table; repeatable.")]
Group = Annotated[str | None, typer.Option(help="Only the tables of this schedule group.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
Share = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Exit non-zero above this share of failed tables; declared in vars.maintenance."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Time for the run, instead of the groups' budgets and windows.")
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def maintain(
    context: typer.Context,
    table: Tables = None,
    group: Group = None,
    budget_minutes: Minutes = None,
    dry_run: DryRun = False,
    max_failed_share: Share = None,
    as_json: Json = False,
) -> None:
    """Maintain the lake's tables; without a command: measure them, plan worthwhile actions, run them within a budget.

    The actions of a table are declared in dbt, in config.meta.maintenance; budgets and settings of all tables in
    vars.maintenance of dbt_project.yml. Options of a command follow it.
    """
    if (command := context.invoked_subcommand) is not None:
        if table or group or dry_run or as_json or (budget_minutes, max_failed_share) != (None, None):
            raise typer.BadParameter(f"options follow the command: see {command} --help")
        return
    with _session(load_settings(), dry_run) as session, _progress() as report, _interrupts_told():
        done = plan_and_act(session, table or (), group, budget_minutes, report)
    if as_json:
        say_json(done.as_dict())
    else:
        print_plan(done.plan, dry_run)
        if not dry_run or done.result.failed:
            print_outcomes(done.result)
    done.result.check(done.max_failed_share if max_failed_share is None else max_failed_share)


@app.command()
def status(table: Tables = None, group: Group = None, as_json: Json = False) -> None:
    """Show each table's files, deletes, snapshots, metadata, orphans, last action and estimated gain."""
    with _session(load_settings(), dry_run=True) as session:
        seen = survey(session, table or (), group)
    say_json(seen.as_dict()) if as_json else print_status(seen)


def _by_name(*actions: str) -> Callable[..., None]:
    def command(
        table: Tables = None,
        group: Group = None,
        dry_run: DryRun = False,
        max_failed_share: Share = None,
        as_json: Json = False,
    ) -> None:
        settings = load_settings()
        with _session(settings, dry_run) as session, _progress() as report, _interrupts_told():
            result = run(session, actions, table or (), group, report)
        say_json(result.as_dict()) if as_json else print_outcomes(result)
        declared = project_maintenance(settings.dbt_project_dir).max_failed_share
        result.check(declared if max_failed_share is None else max_failed_share)

    return command


for action in ACTIONS:
    app.command(action.name, help=f"{action.does[0].upper()}{action.does[1:]}.")(_by_name(action.name))
for subcommand in restore_command.COMMANDS:
    app.command(subcommand.__name__)(subcommand)
app.command("all", help="Run all actions on all tables, without a plan.")(
    _by_name(*(action.name for action in ACTIONS))
)


def _session(settings: Settings, dry_run: bool) -> closing[Session]:
    if dry_run:
        refuse_former_state(settings)
    return closing(Session(settings, dry_run))


@contextmanager
def _interrupts_told() -> Iterator[None]:
    """Explains on Ctrl-C why the command does not end at once."""

    def tell(number: int, frame: FrameType | None) -> None:
        say("interrupted: finishing and recording the current steps; starting no more", error=True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress() -> Iterator[Report]:
    out = console(error=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("maintenance", total=None)
        yield lambda outcome: bar.update(task, advance=1, description=f"{outcome.action} {outcome.table}")
