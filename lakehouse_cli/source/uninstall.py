"""`lakehouse uninstall`: nothing of this installation stays in the sources, and none of its servers runs."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.embedded import is_sample
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.worker_sessions import refuse_worker
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import line_by_line, say, waiting
from lakehouse_cli.alone import alone
from lakehouse_cli.slots_left import out_of_reach, slots_left
from lakehouse_cli.source.declaring import agreed
from lakehouse_cli.source.taking_back import Relations, relations_of, take_back
from lakehouse_stack.home.pathnames import run_dir
from lakehouse_stack.processes.identity import refuse_copy

DATA = "Delete the home too: the embedded catalog and objects, so every table that is kept in them, with keys and logs."


def uninstall(
    delete_data: Annotated[bool, typer.Option("--delete-data", help=DATA)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take back slot, publication and rights in every source, declared or not, and stop the servers of this home.

    Needs the catalog, which knows the slots, except of a source that has neither slot nor publication any more. A
    source that does not answer is named, and nothing is stopped or deleted.
    Slots of sources that have no connection here any more are named, for you to drop.
    """
    from lakehouse_stack.control.start_stop import refuse_precious

    line_by_line()
    settings = load_settings()
    if delete_data:
        refuse_precious(settings)
    refuse_copy(settings.home)  # slots and servers that it knows are the original's
    sources = [name for name in settings.databases if not is_sample(settings, name)]  # samples end with their servers
    left = _slots_out_of_reach(settings)  # before the catalog is gone
    with nullcontext() if dry_run or not run_dir(settings).exists() else alone(settings):
        if not dry_run:
            _refuse_writers(settings)  # before the question, and again after it
            _ask(settings, sources, left, delete_data, yes)
        _take_back_and_end(settings, sources, delete_data, dry_run)
    for line in left:
        say(line)


def _slots_out_of_reach(settings: Settings) -> list[str]:
    if (slots := slots_left(settings)) is None:
        return [
            "the catalog does not answer: it alone knows slots of sources that have no connection here any more, so "
            "these are not named, and their servers keep WAL for them"
        ]
    return out_of_reach(settings, slots)


def _refuse_writers(settings: Settings) -> None:
    """Raises LakehouseError while somebody ingests, topics too, or a worker loads; a catalog that does not answer knows
    of nobody."""
    from ingestion.state.lease import refuse_writers

    if settings.catalog_url is not None:
        with suppress(Unreachable), connect_catalog(settings) as states:
            refuse_writers(states)
            refuse_worker(settings)


def _take_back_and_end(settings: Settings, sources: Sequence[str], delete_data: bool, dry_run: bool) -> None:
    from lakehouse_stack.control.start_stop import linked_places

    if not dry_run:
        _refuse_writers(settings)
    if _catalog_answers(settings):
        declared = _declared(settings) if sources else {}
        failed = [name for name in sources if not _taken_back(settings, name, declared, dry_run)]
    else:  # such as after an end that was interrupted
        failed = [name for name in sources if not _has_nothing(settings, name)]
    if failed:
        raise LakehouseError(f"{', '.join(failed)}: something stays there, so nothing was stopped: run this again")
    if dry_run:
        say(f"the servers of {settings.home} would be stopped{', and the home deleted' if delete_data else ''}")
        return
    linked = "".join(f", {place}" for place in linked_places(settings))
    _end(settings, delete_data)
    kept = linked if delete_data else f", {settings.home} with the data of the embedded servers{linked}"
    say(f"what is left, for you to delete: this project's folder{kept}, and the downloads in {settings.cache}")
    say("then: pip uninstall lakehouse")


def _ask(settings: Settings, sources: Sequence[str], left: Sequence[str], delete_data: bool, yes: bool) -> None:
    from lakehouse_stack.control.start_stop import linked_places

    say(f"sources that are given back all that they keep for the lake: {', '.join(sources) or 'none'}")
    if delete_data:
        say(f"deleted for good: {settings.home}")
        for place in linked_places(settings):
            say(f"stays, as links in it lead there, for you to delete: {place}")
    for line in left:
        say(line)
    if delete_data and not yes and not sys.stdin.isatty():
        raise LakehouseError("--delete-data deletes all tables for good: give --yes where nobody can be asked")
    agreed(yes)


def _declared(settings: Settings) -> Relations:
    """What the project declares of each source; nothing where it cannot be read."""
    from scaffold import declared_alone

    with suppress(LakehouseError), waiting("asking dbt for the declarations"):
        return relations_of(declared_alone(settings))
    return {}


def _catalog_answers(settings: Settings) -> bool:
    try:
        connect_catalog(settings).close()
    except LakehouseError:
        return False
    return True


def _has_nothing(settings: Settings, source: str) -> bool:
    """Whether the source has nothing by the names that the settings have; says what it has."""
    from ingestion.sources.postgres.setup import named_of

    try:
        found = named_of(settings, source) if settings.connection(source).kind == "postgres" else []
    except LakehouseError as error:
        say(f"{source}: {error}", error=True)
        return False
    if found:
        whose = "the catalog, which knows whether that is this lake's, does not answer: run `lakehouse up`"
        say(f"{source}: it has {' and '.join(found)}; {whose}", error=True)
    else:
        say(f"{source}: it keeps nothing for the lake")
    return not found


def _taken_back(settings: Settings, source: str, declared: Relations, dry_run: bool) -> bool:
    """Whether the source keeps nothing any more; says why where it does."""
    from ingestion import nobody_ingests

    try:
        with nullcontext() if dry_run else nobody_ingests(settings, source):
            keeps = take_back(settings, source, declared, dry_run)
    except LakehouseError as error:
        say(f"{source}: {error}", error=True)
        return False
    if keeps.is_nothing:
        say(f"{source}: it keeps nothing for the lake")
    by_hand = bool(keeps.due) and settings.source(source).owner_url is None
    return dry_run or not by_hand


def _end(settings: Settings, delete_data: bool) -> None:
    from lakehouse_stack.control.start_stop import delete_home, down

    if stopped := down(settings):
        say(f"stopped {', '.join(stopped)}")
    if delete_data:
        delete_home(settings)
        say(f"deleted {settings.home}")
