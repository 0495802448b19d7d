"""`lakehouse maintain restore`, `pin`, `unpin` and `pins`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.moments import parse_moment
from lakehouse.text.shown import print_table, say, say_json
from maintenance.actions.exclusion import Held, exclusive
from maintenance.inventory.outcome import TableName
from maintenance.inventory.pins import Pin, pin_cut, pin_table
from maintenance.inventory.pins import pins as all_pins
from maintenance.inventory.pins import unpin as take_off
from maintenance.inventory.session import Session
from maintenance.restore.table import restore as restore_table

BEFORE_ANY_LAKE = datetime(1970, 1, 1, tzinfo=UTC)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def restore(
    table: Annotated[str, typer.Argument(metavar="NAMESPACE.TABLE", help="The table.")],
    as_of: Annotated[str, typer.Option(metavar="TIME", help="ISO 8601; UTC where it names no zone.")],
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Make it the table's newest state; not for raw tables and meta.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore the state of a table at a time, as a new table or in place.

    Files that maintenance removes are kept for keep_removed_hours, so no data is copied. To remove a restored copy,
    drop it: the table's own files stay.
    """
    name, then = table_name(table), past(as_of)
    with _session() as session:
        try:
            with exclusive(session, name):
                done = restore_table(session, name, then, in_place)
        except Held as held:
            raise LakehouseError(f"{name}: {held}; run it again later") from None
    if as_json:
        say_json(done.as_dict())
    else:
        say(str(done))


def pin(
    consumer: Annotated[str, typer.Argument(help="Who reads there: a-z, 0-9 and _.")],
    source: Annotated[str | None, typer.Option(help="Pin all tables of this source's newest cut.")] = None,
    table: Annotated[str | None, typer.Option(metavar="NAMESPACE.TABLE", help="Pin this table alone.")] = None,
    snapshot: Annotated[int | None, typer.Option(help="With --table: at this snapshot rather than the newest.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601; for ever without it.")] = None,
    as_json: Json = False,
) -> None:
    """Protect a cut of a source, or one table, from expiry for a consumer.

    A pin is the Iceberg tag pin_CONSUMER: read it with FOR VERSION AS OF 'pin_CONSUMER'.
    """
    if (source is None) == (table is None) or (snapshot is not None and table is None):
        raise typer.BadParameter("give --source, or --table with or without --snapshot")
    end = None if until is None else moment(until)
    with _session() as session:
        if source is not None:
            made = pin_cut(session, consumer, source, end)
        else:
            made = pin_table(session, consumer, table_name(table or ""), snapshot, end)
    show_pins(made, as_json)


def unpin(consumer: Annotated[str, typer.Argument(help="Whose pins go.")], as_json: Json = False) -> None:
    """Remove a consumer's pins: the next expiry may drop their snapshots."""
    with _session() as session:
        show_pins(take_off(session, consumer), as_json)


def pins(as_json: Json = False) -> None:
    """List the pins."""
    with _session() as session:
        show_pins(all_pins(session), as_json)


COMMANDS = (restore, pin, unpin, pins)


def table_name(text: str) -> TableName:
    """Splits `namespace.table`; raises LakehouseError."""
    namespace, dot, name = text.partition(".")
    if not (dot and namespace and name):
        raise LakehouseError(f"{text!r} is not NAMESPACE.TABLE")
    return TableName(namespace, name)


def moment(text: str) -> datetime:
    """An ISO 8601 time, in UTC where it names no zone; returned in UTC. Raises LakehouseError."""
    try:
        return parse_moment(text)
    except ValueError as error:
        raise LakehouseError(str(error)) from None


def past(text: str) -> datetime:
    """A time in the past, after 1970; raises LakehouseError."""
    found = moment(text)
    if not BEFORE_ANY_LAKE < found <= datetime.now(UTC):
        raise LakehouseError(f"{text} is not in the past: nothing can be restored as of then; times are in UTC")
    return found


@contextmanager
def _session() -> Iterator[Session]:
    with closing(Session(load_settings())) as session:
        session.check()
        yield session


def show_pins(found: Sequence[Pin], as_json: bool) -> None:
    """Prints pins, a line each."""
    if as_json:
        say_json([pin.as_dict() for pin in found])
        return
    if not found:
        say("nothing is pinned")
        return
    rows = [
        (
            pin.consumer, pin.table, pin.snapshot_id, f"{pin.committed_at:%Y-%m-%d %H:%M:%S}",
            f"{pin.until.astimezone(UTC):%Y-%m-%d %H:%M}" if pin.until else "for ever",
        )
        for pin in found
    ]  # fmt: skip
    headings = ("consumer", "table", "snapshot", "committed (UTC)", "until (UTC)")
    print_table(headings, rows, kept_whole=headings)
