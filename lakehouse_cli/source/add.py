"""`lakehouse add`: one more table of a source that is declared, with its models."""

from typing import Annotated

import typer

from lakehouse.declarations import source_and_table
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.shown import say
from lakehouse_cli.source.declaring import accepted, agreed, show_change, write_change
from lakehouse_cli.source.scaffold import write_models


def add(
    table: Annotated[str, typer.Argument(metavar="SOURCE.[SCHEMA.]TABLE", help="A table of the source's database.")],
    vault: Annotated[
        bool | None,
        typer.Option("--vault/--no-vault", help="With a vault or without; default: as the source's other tables."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Declare one more table of a source, as its database has it, and write its models.

    The proposal is shown as a difference to the declarations, and written once you agree; without a terminal at once.
    """
    from scaffold import declared_alone, declaring_file, propose_addition, with_table

    settings = load_settings()
    declared = declared_alone(settings)
    source, name = source_and_table(table)
    if source in settings.sources and source not in {each.name for each in declared.sources}:
        raise LakehouseError(f"source {source!r} declares no table yet: `lakehouse scaffold {source} --tables {name}`")
    entry = propose_addition(settings, declared, source, name, vault)
    file = declaring_file(settings.dbt_project_dir, source)
    after = with_table(file, source, entry)
    show_change(settings, file, after)
    if dry_run:
        return
    agreed(yes)
    declared = accepted(settings, file, after)
    write_change(file, after)
    write_models(settings, declared, [source])
    say(f"then: `lakehouse prepare {source}`; what follows it loads the table, or `lakehouse run load_{source}` does")
