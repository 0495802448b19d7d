"""`lakehouse remove`: a source that is ingested no longer keeps nothing for the lake."""

from typing import Annotated

import typer

from lakehouse.declarations import load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.shown import say


def remove(
    source: Annotated[str, typer.Argument(help="A source that is declared no longer; its connection is still set.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, print what would be done.")] = False,
) -> None:
    """Take back what a source keeps for the lake: slot, publication and rights. The lake keeps its tables.

    Publication and rights are the owner's to take back: without `owner_url`, the statements are printed.
    """
    from ingestion.sources.postgres.setup import drop_slot, removal_statements, run_as_owner, slot_of

    settings = load_settings()
    configured = settings.source(source)
    if any(declared.name == source for declared in load_declarations(settings).sources):
        raise LakehouseError(
            f"source {source!r} is declared: remove dbt_project/models/sources/{source}.yml and the models that read it"
        )
    slot, statements = slot_of(settings, source), removal_statements(settings, source)
    by_owner = configured.owner_url is None
    if slot is None and not statements:
        say(f"{source}: it keeps nothing for the lake")
        return
    if slot is not None:
        if not dry_run:
            drop_slot(settings, source, slot)
        say(f"{source}: slot {slot} {'would be dropped' if dry_run else 'dropped'}")
    if statements and not by_owner and not dry_run:
        run_as_owner(settings, source, statements)
    if statements and by_owner:
        say(f"-- {source}: run this as the owner of its tables")
    for statement in statements:
        say(f"{statement};")
