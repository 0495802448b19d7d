"""`lakehouse watch`: tells people what needs attention, and Prometheus the numbers."""

import signal
import threading
from typing import Annotated

import typer

from lakehouse.settings import load_settings
from lakehouse.text.shown import say, say_json
from lakehouse_cli.logs import log_to_stderr


def watch(
    once: Annotated[bool, typer.Option("--once", help="look once, print what needs attention, tell nobody")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for machines; with --once")] = False,
) -> None:
    """Tell the declared targets about failures, lag and dangers, also while Dagster is down.

    With --once it exits 1 if anything needs attention.
    """
    from lakehouse_watch.watch import look_once
    from lakehouse_watch.watch import watch as keep_watching

    if as_json and not once:
        raise typer.BadParameter("--json needs --once")
    settings = load_settings()
    if once:
        found = look_once(settings)
        if as_json:
            say_json([{"key": o.key, "severity": o.severity, "summary": o.summary, "to_do": o.to_do} for o in found])
        for occasion in [] if as_json else found:
            say(f"{occasion.severity:<7} {occasion.summary}: {occasion.to_do}")
        raise typer.Exit(bool(found))
    log_to_stderr(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    keep_watching(settings, stop)
