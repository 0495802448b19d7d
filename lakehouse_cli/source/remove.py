"""`lakehouse remove`: a source, or a table of it, that is ingested no longer keeps nothing for the lake."""

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import refuse_worker
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import line_by_line, say, waiting
from lakehouse_cli.source import undeclaring
from lakehouse_cli.source.declaring import accepted, agreed, refuse_changed, show_change, write_change
from lakehouse_cli.source.dropping import drop, drop_aside, droppable, refuse_more
from lakehouse_cli.source.scaffold import write_models
from lakehouse_cli.source.taking_back import by_owner, kept_by, relations_of, take_back, tell_of_connector

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations


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
    without `owner_url`, the statements are printed. What a slot of somebody else may read stays, and is told.
    """
    line_by_line()
    settings = load_settings()
    if "." in source:
        _remove_table(settings, source, drop_tables, dry_run, yes)
    else:
        _remove_source(settings, source, drop_tables, dry_run, yes)


def _remove_table(settings: Settings, name: str, drop_tables: bool, dry_run: bool, yes: bool) -> None:
    from ingestion import forget, kept_aside, nobody_ingests
    from scaffold import declaring_file, models_of, plan, without_table

    declared = _declared(settings)
    table = declared.named(name)
    file = declaring_file(settings.dbt_project_dir, table.source)
    after = without_table(file, table.source, table.name)
    show_change(settings, file, after)
    left = accepted(settings, file, after)
    gone = plan(settings.dbt_project_dir, table.source, models_of(left, table.source))
    undeclaring.show_readers(settings, table.source, gone, drop_tables, dry_run, table.name)
    keeps = kept_by(settings, table.source, relations_of(declared), table.relation, table.name)
    ingested = _is_ingested(settings, table)
    others = {each.name for each in declared.sources} - {table.source}
    found = droppable(settings, table.source, others, table.name) if drop_tables else []
    aside = kept_aside(settings, table.source, table.name) if drop_tables else {}
    if dry_run:
        by_owner(settings, table.source, keeps, dry_run)
        drop(settings, found, dry_run)
        drop_aside(settings, table.source, table.name, aside, dry_run)
        return
    if found:
        refuse_worker(settings)  # before the question, and again after it
    _agreed(f"--drop-tables drops the history of {name}" if drop_tables else "", yes)
    refuse_changed(file)
    if found:
        refuse_worker(settings)
    # a follower that still declares the table would snapshot it again, and a refresh would make its mirror
    with nobody_ingests(settings, table.source), _no_mirrors(settings, table.source, drop_tables):
        if drop_tables:
            refuse_more(found, droppable(settings, table.source, others, table.name))
        by_owner(settings, table.source, keeps, dry_run)
        if ingested:
            forget(settings, table.source, table.name, [each.name for each in left.source(table.source).tables])
        drop(settings, found, dry_run)
        drop_aside(settings, table.source, table.name, aside, dry_run)
        write_models(settings, left, [table.source])
        write_change(file, after)  # last: whoever is interrupted can run all of it again
    stays = "what its vault tables have of it stays" if drop_tables else "what was made of it stays"
    say(f"{name}: start the follower again; {'' if drop_tables else '.'.join(table.identifier) + ' and '}{stays}")
    undeclaring.refuse_readers(settings, name)


def _declared(settings: Settings) -> "Declarations":
    from scaffold import declared_alone

    with waiting("asking dbt for the declarations"):
        return declared_alone(settings)


def _is_ingested(settings: Settings, table: RawTable) -> bool:
    from ingestion.state import store

    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        return table.name in store.read_positions(states, table.source)


def _remove_source(settings: Settings, source: str, drop_tables: bool, dry_run: bool, yes: bool) -> None:
    from ingestion import forget_live, forget_source, kept_aside, list_schemas, nobody_ingests

    settings.connection(source)
    declared = relations_of(_declared(settings))
    files = undeclaring.undeclared(settings, source) if source in declared else None
    found = droppable(settings, source, declared.keys() - {source}) if drop_tables else []
    aside = kept_aside(settings, source) if drop_tables else {}
    objects, kept = list_schemas(settings, source) if drop_tables else ([], [])
    for schema in (*objects, *kept):
        say(f"what a schema meant, {schema}, {'would be' if dry_run else 'is to be'} deleted")
    if files is not None:
        undeclaring.show(settings, files)
        undeclaring.show_readers(settings, source, files.models, drop_tables, dry_run)
    if found and not dry_run:
        refuse_worker(settings)  # before the question, and again after it
    if (found or aside or files) and not dry_run:
        drop(settings, found, dry_run=True)
        drop_aside(settings, source, None, aside, dry_run=True)
        why = f"source {source!r} is declared" if files is not None else f"--drop-tables drops the history of {source}"
        _agreed(why, yes)
        if files is not None:
            undeclaring.refuse_changed(settings, files)
    if found and not dry_run:
        refuse_worker(settings)
    with ExitStack() as alone:
        if not dry_run:  # whoever declares it would read it again, and make its mirrors
            alone.enter_context(nobody_ingests(settings, source))
            alone.enter_context(_no_mirrors(settings, source, drop_tables))
            if drop_tables:
                refuse_more(found, droppable(settings, source, declared.keys() - {source}))
        keeps = take_back(settings, source, declared, dry_run)
        if keeps.is_nothing and not (found or aside or objects or kept) and files is None:
            say(f"{source}: it keeps nothing for the lake")
        if not dry_run:
            (forget_source if drop_tables else forget_live)(settings, source)
        drop(settings, found, dry_run)
        drop_aside(settings, source, None, aside, dry_run)
        tell_of_connector(settings, source)
        if files is not None and not dry_run:
            undeclaring.undeclare(settings, files)


def _no_mirrors(settings: Settings, source: str, drop_tables: bool) -> AbstractContextManager[object]:
    """Nobody writes mirrors of the source while its tables are dropped: a first one would come behind the drop."""
    from ingestion import mirrors_held

    return mirrors_held(settings, source) if drop_tables else nullcontext()


def _agreed(why: str, yes: bool) -> None:
    """Asks a person. What cannot be made again, or was edited for weeks, goes by `--yes` alone without a terminal."""
    if why and not yes and not sys.stdin.isatty():
        raise LakehouseError(f"{why}: give --yes to remove what is shown here, too")
    agreed(yes)
