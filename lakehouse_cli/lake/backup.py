"""`lakehouse backup` and `lakehouse restore-backup`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Restore the catalog from a backup, and roll it forward to the newest cut in the warehouse.

    Exits 1 if a source must be recovered before ingestion continues.
    """
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
        done = restore(load_settings(), folder, said[0] if said else None, now)
    forward = done.forward
    if as_json:
        say_json({"made_at": done.made_at.isoformat(), "objects": done.objects, **asdict(forward)})
    else:
        say(f"backup of {done.made_at:%Y-%m-%d %H:%M:%S} UTC; {done.objects} objects copied back")
        say(f"{len(forward.tables)} tables rolled forward; sources that continue: {_list(forward.going_on)}")
        if forward.gone:
            say(f"incomplete in the warehouse, removed from the catalog: {_list(forward.gone)}; rebuild them")
        if forward.removed:
            say(f"removed before the backup, their objects are not entered again: {_list(forward.removed)}")
        say("then: lakehouse erase --repeat, if anything was ever erased; lakehouse reconcile verifies the result")
    if forward.to_recover:
        lines = [
            f"{source} ({reason}): lakehouse ingest --recover {source}" for source, reason in forward.to_recover.items()
        ]
        raise LakehouseError("these sources must be recovered first: " + "; ".join(lines))


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
