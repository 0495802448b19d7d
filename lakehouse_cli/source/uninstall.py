"""`lakehouse uninstall`: nothing of this installation stays in the sources, and none of its servers runs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.servers.embedded import is_sample
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say
from lakehouse_cli.source.declaring import agreed

DATA = "Delete the home too: the embedded catalog and objects, so every table that is kept in them, with keys and logs."


def uninstall(
    delete_data: Annotated[bool, typer.Option("--delete-data", help=DATA)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take back slot, publication and rights in every source, declared or not, and stop the servers of this home.

    Needs the catalog, which knows the slots. A source that does not answer is named, and nothing is stopped or deleted.
    """
    settings = load_settings()
    sources = [name for name in settings.databases if not is_sample(settings, name)]  # samples end with their servers
    if not dry_run:
        _ask(settings, sources, delete_data, yes)
    if failed := [name for name in sources if not _taken_back(settings, name, dry_run)]:
        raise LakehouseError(f"{', '.join(failed)}: something stays there, so nothing was stopped: run this again")
    if dry_run:
        say(f"the servers of {settings.home} would be stopped{', and the home deleted' if delete_data else ''}")
        return
    _end(settings, delete_data)
    kept = "" if delete_data else f", {settings.home} with the data of the embedded servers"
    say(f"what is left, for you to delete: this project's folder{kept}, and the downloads in {settings.cache}")
    say("then: pip uninstall lakehouse")


def _ask(settings: Settings, sources: Sequence[str], delete_data: bool, yes: bool) -> None:
    say(f"sources that are given back all that they keep for the lake: {', '.join(sources) or 'none'}")
    if delete_data:
        say(f"deleted for good: {settings.home}")
    agreed(yes)


def _taken_back(settings: Settings, source: str, dry_run: bool) -> bool:
    """Whether the source keeps nothing any more; says why where it does."""
    from lakehouse_cli.source.remove import take_back

    try:
        slot, statements = take_back(settings, source, dry_run)
    except LakehouseError as error:
        say(f"{source}: {error}", error=True)
        return False
    if slot is None and not statements:
        say(f"{source}: it keeps nothing for the lake")
    by_hand = bool(statements) and settings.source(source).owner_url is None
    return dry_run or not by_hand


def _end(settings: Settings, delete_data: bool) -> None:
    from lakehouse_stack.control.start_stop import delete_home, down

    if stopped := down(settings):
        say(f"stopped {', '.join(stopped)}")
    if delete_data:
        delete_home(settings)
        say(f"deleted {settings.home}")
