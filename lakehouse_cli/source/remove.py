"""`lakehouse remove`: a source, or a table of it, that is ingested no longer keeps nothing for the lake."""

from collections.abc import Sequence
from typing import Annotated

import typer

from lakehouse.declarations import load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say
from lakehouse_cli.source.declaring import agreed, show_change, write_change
from lakehouse_cli.source.scaffold import scaffold_source


def remove(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE[.TABLE]", help="A source that is declared no longer, or a table that still is."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take back what a source keeps for the lake: slot, publication and rights. The lake keeps its tables.

    Of a table: its declaration, its generated models, its place in the publication, and rights. Publication and rights
    are the owner's to take back: without `owner_url`, the statements are printed.
    """
    settings = load_settings()
    if "." in source:
        _remove_table(settings, source, dry_run, yes)
    else:
        _remove_source(settings, source, dry_run)


def _remove_table(settings: Settings, name: str, dry_run: bool, yes: bool) -> None:
    from ingestion import forget, source_status
    from ingestion.sources.postgres.setup import removal_statements
    from scaffold import declared_alone, declaring_file, without_table

    declared = declared_alone(settings)
    table = declared.named(name)
    file = declaring_file(settings.dbt_project_dir, table.source)
    after = without_table(file.read_text(), table.source, table.name)
    show_change(settings, file, after)
    statements = removal_statements(settings, table.source, table.relation)
    ingested = table.name in {each.name for each in source_status(settings, table.source).tables}
    if not dry_run:
        agreed(yes)
    _by_owner(settings, table.source, statements, dry_run)
    if dry_run:
        return
    declared = write_change(settings, file, after)
    scaffold_source(settings, declared, table.source)
    if ingested:
        forget(settings, table.source, table.name, [each.name for each in declared.source(table.source).tables])
    say(f"{name}: start the follower again; {'.'.join(table.identifier)} and what was made of it stay in the lake")


def _remove_source(settings: Settings, source: str, dry_run: bool) -> None:
    from ingestion.sources.postgres.setup import drop_slot, removal_statements, slot_of

    settings.source(source)
    if any(declared.name == source for declared in load_declarations(settings).sources):
        raise LakehouseError(
            f"source {source!r} is declared: remove dbt_project/models/sources/{source}.yml and the models that read it"
        )
    slot, statements = slot_of(settings, source), removal_statements(settings, source)
    if slot is None and not statements:
        say(f"{source}: it keeps nothing for the lake")
        return
    if slot is not None:
        if not dry_run:
            drop_slot(settings, source, slot)
        say(f"{source}: slot {slot} {'would be dropped' if dry_run else 'dropped'}")
    _by_owner(settings, source, statements, dry_run)


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
