"""`lakehouse pin`: keeps a cut of all sources, with the mirrors that stand there and the marts of then."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer

from lakehouse.settings import load_settings
from lakehouse.text.shown import say


def pin(
    name: Annotated[str, typer.Argument(help="What it is called: a-z, 0-9 and _.")],
    cut: Annotated[
        str | None, typer.Option(metavar="CUT", help="The newest until a time or a commit, such as retail=0/3C87757.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601; for ever without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Keep a cut from expiry: mirrors, raw tables and marts together.

    Without --cut it is the newest at which the mirrors stand. Read it with `lakehouse sql --as-of-cut pin:NAME`, or as
    the warehouse lake@pin:NAME. `lakehouse maintain pins` lists pins, `lakehouse maintain unpin NAME` removes one.
    """
    from lakehouse.declarations import load_declarations
    from lakehouse_serve.past.asked import moment_of
    from lakehouse_serve.past.moments import Moment
    from lakehouse_serve.past.states import reach, together
    from maintenance.command.restore import moment, show_pins
    from maintenance.inventory.pins import pin_states
    from maintenance.inventory.session import Session

    settings, end = load_settings(), None if until is None else moment(until)
    asked = Moment(at=datetime.now(UTC)) if cut is None else moment_of(settings, cut)
    state = together(settings, asked, load_declarations(settings).sources)
    with closing(Session(settings)) as session:
        made = pin_states(session, name, state.to_pin, end)
    for text in state.missing:
        say(f"{name}: {text}", error=True)
    for source, text in reach(state, asked).items():
        say(f"{name}: {source} {text}", error=as_json)
    if not as_json:
        say(f"{name}: {state.name}")
    show_pins(made, as_json)
