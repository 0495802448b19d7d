"""`lakehouse remove`: a source, or a table of it, that is ingested no longer keeps nothing for the lake."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say
from lakehouse_cli.source import undeclaring
from lakehouse_cli.source.declaring import accepted, agreed, refuse_changed, show_change, write_change
from lakehouse_cli.source.dropping import drop, droppable
from lakehouse_cli.source.scaffold import write_models


def remove(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE[.TABLE]", help="A source, declared or not, or a table that is declared."),
    ],
    drop_tables: Annotated[
        bool, typer.Option("--drop-tables", help="Drop raw, mirror, parsed and current of it too, with their history.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take back what a source keeps for the lake: slot, publication and rights. The lake keeps its tables by default.

    The declaration goes too, with the generated models that nobody has edited, once you agree to what is shown. Of a
    table: its declaration, models, place in the publication, and rights. Without a terminal nobody can be asked: a
    source's declaration and `--drop-tables` take `--yes` then. Publication and rights are the owner's to take back:
    without `owner_url`, the statements are printed.
    """
    settings = load_settings()
    if "." in source:
        _remove_table(settings, source, drop_tables, dry_run, yes)
    else:
        _remove_source(settings, source, drop_tables, dry_run, yes)


def _remove_table(settings: Settings, name: str, drop_tables: bool, dry_run: bool, yes: bool) -> None:
    from ingestion import forget, nobody_ingests
    from ingestion.sources.postgres.setup import removal_statements
    from scaffold import declared_alone, declaring_file, models_of, plan, without_table

    declared = declared_alone(settings)
    table = declared.named(name)
    file = declaring_file(settings.dbt_project_dir, table.source)
    after = without_table(file, table.source, table.name)
    show_change(settings, file, after)
    left = accepted(settings, file, after)
    gone = plan(settings.dbt_project_dir, table.source, models_of(left, table.source))
    undeclaring.show_readers(settings, table.source, gone, drop_tables, dry_run, table.name)
    is_published = _has_publication(settings, table.source)
    statements = removal_statements(settings, table.source, table.relation) if is_published else []
    ingested = _is_ingested(settings, table)
    others = {each.name for each in declared.sources} - {table.source}
    found = droppable(settings, table.source, others, table.name) if drop_tables else []
    if dry_run:
        _leave_publication(settings, table, statements, dry_run)
        drop(settings, found, dry_run)
        return
    _agreed(f"--drop-tables drops the history of {name}" if drop_tables else "", yes)
    refuse_changed(file)
    with nobody_ingests(settings, table.source):  # a follower that still declares the table would snapshot it again
        _leave_publication(settings, table, statements, dry_run)
        if ingested:
            forget(settings, table.source, table.name, [each.name for each in left.source(table.source).tables])
        drop(settings, found, dry_run)
        write_models(settings, left, [table.source])
        write_change(file, after)  # last: whoever is interrupted can run all of it again
    stays = "what its vault tables have of it stays" if drop_tables else "what was made of it stays"
    say(f"{name}: start the follower again; {'' if drop_tables else '.'.join(table.identifier) + ' and '}{stays}")
    undeclaring.refuse_readers(settings, name)


def _has_publication(settings: Settings, source: str) -> bool:
    """Whether the source is read by a slot and a publication: topics keep nothing for the lake."""
    return settings.connection(source).kind == "postgres"


def _is_ingested(settings: Settings, table: RawTable) -> bool:
    from ingestion.state import store

    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        return table.name in store.read_positions(states, table.source)


def _leave_publication(settings: Settings, table: RawTable, statements: Sequence[str], dry_run: bool) -> None:
    from ingestion.sources.postgres.setup import other_readers

    if not _has_publication(settings, table.source):
        return
    _by_owner(settings, table.source, statements, dry_run)
    if readers := other_readers(settings, table.source):
        say(
            f"{table.source}.{table.name}: its place in the publication and the rights stay, because slot "
            f"{', '.join(readers)} reads them"
        )


def _remove_source(settings: Settings, source: str, drop_tables: bool, dry_run: bool, yes: bool) -> None:
    from ingestion import forget_source
    from scaffold import declared_alone

    if _has_publication(settings, source):
        settings.source(source)
    declared = {each.name for each in declared_alone(settings).sources}
    files = undeclaring.undeclared(settings, source) if source in declared else None
    found = droppable(settings, source, declared - {source}) if drop_tables else []
    if files is not None:
        undeclaring.show(settings, files)
        undeclaring.show_readers(settings, source, files.models, drop_tables, dry_run)
    if (found or files) and not dry_run:
        drop(settings, found, dry_run=True)
        why = f"source {source!r} is declared" if files is not None else f"--drop-tables drops the history of {source}"
        _agreed(why, yes)
        if files is not None:
            undeclaring.refuse_changed(settings, files)
    slot, statements = take_back(settings, source, dry_run)
    if slot is None and not statements and not found and files is None:
        say(f"{source}: it keeps nothing for the lake")
    if found and not dry_run:
        forget_source(settings, source)
    drop(settings, found, dry_run)
    if files is not None and not dry_run:
        undeclaring.undeclare(settings, files)


def _agreed(why: str, yes: bool) -> None:
    """Asks a person. What cannot be made again, or was edited for weeks, goes by `--yes` alone without a terminal."""
    if why and not yes and not sys.stdin.isatty():
        raise LakehouseError(f"{why}: give --yes to remove what is shown here, too")
    agreed(yes)


def take_back(settings: Settings, source: str, dry_run: bool) -> tuple[str | None, list[str]]:
    """Drops the slot, and runs or prints what the owner takes back; returns slot and statements."""
    from ingestion.sources.postgres.setup import drop_slot, other_readers, removal_statements, slot_of

    if not _has_publication(settings, source):
        return None, []
    slot, statements = slot_of(settings, source), removal_statements(settings, source)
    if slot is not None:
        if not dry_run:
            drop_slot(settings, source, slot)
        say(f"{source}: slot {slot} {'would be dropped' if dry_run else 'dropped'}")
    _by_owner(settings, source, statements, dry_run)
    if others := other_readers(settings, source):
        say(f"{source}: publication and rights stay, because slot {', '.join(others)} reads them as well")
    return slot, statements


def _by_owner(settings: Settings, source: str, statements: Sequence[str], dry_run: bool) -> None:
    """Runs the statements as the owner, if its URL is known, and prints them."""
    from ingestion.sources.postgres.setup import run_as_owner

    known = settings.source(source).owner_url is not None
    if statements and known and not dry_run:
        run_as_owner(settings, source, statements)
    if statements and not known:
        say(f"-- {source}: run this as the owner of its tables")
    for statement in statements:
        say(f"{statement};")
