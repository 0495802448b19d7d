"""`lakehouse simulate`: changes the sample databases the way an application would."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lakehouse.settings import load_settings
from lakehouse.text.shown import console, say, say_json
from lakehouse_samples.bank import workload as bank_workload
from lakehouse_samples.clicks import workload as clicks_workload
from lakehouse_samples.database import owner_url
from lakehouse_samples.payroll import workload as payroll_workload
from lakehouse_samples.retail import options as retail_options
from lakehouse_samples.retail import simulator
from lakehouse_samples.unchanged import is_unchanged

app = typer.Typer(help="Change the sample databases the way an application would.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
IfUntouched = Annotated[bool, typer.Option("--if-untouched", help="Only if no workload has changed the sample yet.")]


@app.command()
def retail(
    transactions: Annotated[
        int | None,
        typer.Option(help=f"Sales to make; {retail_options.TRANSACTIONS:,} by default, no end with --rate."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sales per commit.")] = retail_options.BATCH_SIZE,
    known_customers: Annotated[float, typer.Option(help="Share of sales with a known customer.")] = 0.9,
    min_items: Annotated[int, typer.Option(help="Minimum items per sale.")] = 1,
    max_items: Annotated[int, typer.Option(help="Maximum items per sale.")] = 5,
    price_changes: Annotated[int, typer.Option(help="Product prices changed per batch.")] = 1,
    tier_changes: Annotated[int, typer.Option(help="Loyalty tiers changed per batch.")] = 1,
    returns: Annotated[int, typer.Option(help="Sold items returned (deleted) per batch.")] = 5,
    sync: Annotated[bool, typer.Option(help="Set synced_at after each batch, as an export would.")] = True,
    rate: Annotated[float | None, typer.Option(help="Sales per second, until stopped.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed on the same rows makes the same sales.")] = None,
    if_untouched: IfUntouched = False,
    as_json: AsJson = False,
) -> None:
    """Sell things: new sales, price and loyalty changes, returns; Ctrl-C stops after the current batch."""
    if transactions is None and rate is None:
        transactions = retail_options.TRANSACTIONS
    options = retail_options.Options(
        transactions=transactions,
        batch_size=batch_size,
        known_customers=known_customers,
        min_items=min_items,
        max_items=max_items,
        price_changes=price_changes,
        tier_changes=tier_changes,
        returns=returns,
        sync=sync,
        rate=rate,
        seed=seed,
    )
    url = owner_url(load_settings(), "retail")
    if _skipped("retail", url, if_untouched):
        return
    with _stop_signals() as stop, _progress_bar(transactions) as report:
        done = simulator.run(url, options, report, stop)
    _print_summary("retail", done.as_dict(), as_json)


@app.command()
def bank(
    number: Annotated[
        int | None, typer.Option("--round", min=1, help="The round to run; it must be the next one.")
    ] = None,
    if_untouched: IfUntouched = False,
    as_json: AsJson = False,
) -> None:
    """Run the next round of a known number of creates, updates and deletes of users and accounts."""
    url = owner_url(load_settings(), "bank")
    if _skipped("bank", url, if_untouched):
        return
    done = bank_workload.run(url, number)
    _print_summary("bank", done.as_dict(), as_json)


@app.command()
def payroll(
    step: Annotated[payroll_workload.Step, typer.Option(help="Which step to run.")] = payroll_workload.Step.all,
    if_untouched: IfUntouched = False,
    as_json: AsJson = False,
) -> None:
    """Hire five employees, give all five one salary, let them go."""
    url = owner_url(load_settings(), "payroll")
    if _skipped("payroll", url, if_untouched):
        return
    done = payroll_workload.run(url, step)
    _print_summary("payroll", done, as_json)


@app.command()
def clicks(
    events: Annotated[int | None, typer.Option(min=1, help="Page views; 1,000 by default, no end with --rate.")] = None,
    rate: Annotated[float | None, typer.Option(help="Page views per second, until stopped.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed on the same topic makes the same visits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at pages: events of the sample topic in Kafka; Ctrl-C stops after the current event."""
    wanted = clicks_workload.FIRST_EVENTS if events is None and rate is None else events
    with _stop_signals() as stop:
        sent = clicks_workload.produce(load_settings(), wanted, seed=seed, rate=rate, stop=stop)
    _print_summary("clicks", {"page_views": sent}, as_json)


def _skipped(source: str, url: str, if_untouched: bool) -> bool:
    if if_untouched and not is_unchanged(url, source):
        say(f"{source}: changed before, not changed again")
        return True
    return False


@contextmanager
def _stop_signals() -> Iterator[simulator.Stop]:
    """The first Ctrl-C or SIGTERM asks for an orderly end, the second one is the usual interrupt."""
    asked = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        _restore(before)

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, object]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


@contextmanager
def _progress_bar(total: int | None) -> Iterator[Callable[[simulator.Progress], None]]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    out = console(error=True)
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("sales", total=total)
        yield lambda progress: bar.update(task, completed=progress.transactions)


def _print_summary(source: str, summary: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        say_json(summary)
    else:
        say(f"{source}: " + ", ".join(_phrase(*entry) for entry in summary.items() if entry[1] is not False))


def _phrase(name: str, value: object) -> str:
    words = name.replace("_", " ")
    if isinstance(value, Mapping):
        return f"{words} " + " ".join(f"{count} {operation}" for operation, count in value.items())
    if value is True:
        return words
    return f"{words} {value:,.1f}" if isinstance(value, float) else f"{words} {value:,}"
