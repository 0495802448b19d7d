"""`lakehouse backup` and `lakehouse restore-backup`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lakehouse.declarations import load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import busy, console, say, say_json

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The backup's folder, on another disk than the lake.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def backup(
    folder: Folder,
    catalog_only: Annotated[
        bool, typer.Option("--catalog-only", help="Omit the warehouse: it is backed up by other means.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Back up the catalog's database and the warehouse's objects; later runs copy only new objects.

    Nothing has to stop.
    """
    from lakehouse_backup.run import make_backup

    with busy(console(error=True), "backing up") as now:
        made = make_backup(load_settings(), folder, catalog_only, now)
    if as_json:
        say_json(asdict(made))
    else:
        say(f"{made.tables} tables and views; {made.objects} objects copied, {made.bytes:,} bytes: {folder}")


def restore_backup(
    folder: Folder,
    warehouse: Annotated[
        bool, typer.Option("--warehouse", help="The warehouse was lost too: copy back the objects that it lacks.")
    ] = False,
    warehouse_restored: Annotated[
        bool,
        typer.Option(
            "--warehouse-restored", help="The warehouse came back by other means, and may lack its newest objects."
        ),
    ] = False,
    warehouse_kept: Annotated[
        bool,
        typer.Option(
            "--warehouse-kept", help="The warehouse has lost nothing. The default unless the backup is --catalog-only."
        ),
    ] = False,
    replace_other_lake: Annotated[
        bool,
        typer.Option("--replace-other-lake", help="Replace the catalog even if it has tables of another lake."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Restore the catalog from a backup, and roll it forward to the newest cut in the warehouse.

    Exits 1 if a source must be recovered before ingestion continues.
    """
    from erasure.run import remembered
    from lakehouse_backup.run import Warehouse
    from lakehouse_backup.run import restore_backup as restore

    options = (warehouse, Warehouse.LOST), (warehouse_restored, Warehouse.RESTORED), (warehouse_kept, Warehouse.KEPT)
    said = [fate for is_given, fate in options if is_given]
    if len(said) > 1:
        raise typer.BadParameter(f"give one of {', '.join(fate.value for fate in said)}")
    if not yes:
        if not sys.stdin.isatty():
            raise LakehouseError("this replaces the catalog's database: add --yes")
        typer.confirm(f"Replace the catalog's database with that of {folder}?", abort=True)
    with busy(console(error=True), "restoring") as now:
        done = restore(settings := load_settings(), folder, said[0] if said else None, now, replace_other_lake)
    forward, erasures = done.forward, len(remembered(settings))
    if as_json:
        told = {"made_at": done.made_at.isoformat(), "objects": done.objects, **asdict(forward)}
        say_json(told | {"erasures_to_repeat": erasures})
    else:
        say(f"backup of {done.made_at:%Y-%m-%d %H:%M:%S} UTC; {done.objects} objects copied back")
        say(f"{len(forward.tables)} tables rolled forward; sources that continue: {_list(forward.going_on)}")
        if forward.gone:
            say(f"incomplete in the warehouse, removed from the catalog: {_list(forward.gone)}; rebuild them")
        if forward.unread:
            say(
                f"of a type or format that is not known here, left at their newest whole metadata file in the "
                f"catalog: {_list(forward.unread)}; read them with the engine that wrote them"
            )
        if forward.stayed:
            say(f"at the location of another table, left as they were in the backup: {_list(forward.stayed)}")
        if forward.removed:
            say(f"removed before the backup, their objects are not entered again: {_list(forward.removed)}")
        repeat = f"lakehouse erase --repeat, for {erasures} erasures; " if erasures else ""
        say(f"then: {repeat}lakehouse reconcile verifies the result")
        behind = "stay behind, each table at a moment of its own, until a follower, or"
        say(f"mirrors and current views {behind} `lakehouse mirror SOURCE`, refreshes them: join none before")
    if forward.to_recover:
        gone = forward.to_recover.keys() - _declared(settings, forward.to_recover)
        lines = [_remedy(source, reason, source not in gone) for source, reason in forward.to_recover.items()]
        raise LakehouseError("these sources must be recovered first: " + "; ".join(lines))


def _declared(settings: Settings, sources: Iterable[str]) -> set[str]:
    """Those of the sources that are declared; all of them where the declarations cannot be read."""
    try:
        return {source.name for source in load_declarations(settings).sources}
    except LakehouseError:
        return {*sources}


def _remedy(source: str, reason: str, is_declared: bool) -> str:
    if is_declared:
        return f"{source} ({reason}): lakehouse ingest --recover {source}"
    return f"{source} ({reason}), which is not declared: lakehouse remove {source} --drop-tables, or declare it again"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
