"""`lakehouse export`: names the lake's tables in a second catalog."""

import signal
import threading
from functools import partial
from typing import Annotated

import typer

from lakehouse.settings import load_settings
from lakehouse.text.shown import say, say_json
from lakehouse_cli.logs import log_to_stderr


def export(
    follow: Annotated[bool, typer.Option("--follow", help="Go on, each LAKEHOUSE_EXPORT__EVERY_SECONDS.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Print the tables and their metadata files as JSON; change nothing.")
    ] = False,
) -> None:
    """Register tables in a second JDBC catalog (LAKEHOUSE_EXPORT__URL), and point it to their newest state.

    No file is copied. Mirrors and marts, unless LAKEHOUSE_EXPORT__TABLES says otherwise, as far as a reader may read
    them as a whole.
    """
    from lakehouse_serve.export import export as bring_up_to_date
    from lakehouse_serve.export import exported
    from lakehouse_serve.export import follow as keep_up_to_date

    settings = load_settings()
    if show:
        found = sorted(exported(settings).items())
        say_json([{"namespace": space, "name": name, "metadata_location": at} for (space, name), at in found])
        return
    if not follow:
        say(f"{settings.export.catalog}: {bring_up_to_date(settings)}")
        return
    log_to_stderr(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    keep_up_to_date(settings, stop, partial(say, flush=True))
