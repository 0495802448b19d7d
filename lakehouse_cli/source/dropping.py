"""Drops what the lake has of a source, or of a table of it, and of nothing else."""

from collections.abc import Collection, Mapping
from contextlib import closing, suppress

from lakehouse.catalog.next_names import PREFIX, is_next
from lakehouse.catalog.relations import Relation
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.shown import say
from lakehouse.text.sql import relation


def droppable(settings: Settings, source: str, others: Collection[str], table: str | None = None) -> list[Relation]:
    """What would be dropped; raises LakehouseError where another table lives on its files, or a pin keeps it."""
    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.pins import refuse_pinned
    from lakehouse.catalog.relations import list_relations
    from maintenance.inventory.in_use import all_tables, living_on
    from maintenance.inventory.of_source import relations_of

    with closing(open_catalog(settings)) as catalog:
        found = relations_of(list_relations(catalog), source, others, table)
        tables = all_tables(catalog) if found else {}
        own = {each.name for each in found if each.kind == "table"}
        refuse_pinned(f"{source}.{table}" if table else source, (tables[name] for name in own & tables.keys()))
        if others_on := living_on(tables, own):
            raise LakehouseError("; ".join(others_on))
    return found


def refuse_more(shown: Collection[Relation], found: Collection[Relation]) -> None:
    """Raises LakehouseError for what has been made since it was shown, which nobody has agreed to drop."""
    if more := sorted(str(name) for name in {each.name for each in found} - {each.name for each in shown}):
        raise LakehouseError(
            f"{', '.join(more)} was made meanwhile, and nobody agreed to drop it; nothing was changed: run this again"
        )


def drop_aside(settings: Settings, source: str, table: str | None, counts: Mapping[str, int], dry_run: bool) -> None:
    """Deletes what is kept aside of it in the tables of `meta`, of which there is that much."""
    from ingestion import forget_aside

    if counts and not dry_run:
        forget_aside(settings, source, table)
    for name, count in counts.items():
        say(f"its rows in meta.{name} {'would be deleted' if dry_run else 'deleted'}: {count:,}")


def drop(settings: Settings, found: Collection[Relation], dry_run: bool) -> None:
    """Drops them with their files, by Trino; what was dropped before an error stays so, and the rest can follow.

    Raises LakehouseError for a table that somebody has pinned since it was asked for. A second catalog names those
    that were dropped no longer.
    """
    from lakehouse.servers.trino import answering, query
    from lakehouse_serve.export import export_again

    try:
        for each in found:
            if not dry_run:
                if is_next(each.name.namespace):
                    _drop_copy(settings, each)
                else:
                    _refuse_pinned(settings, each)
                    with answering(settings):
                        query(settings, f"DROP {each.kind.upper()} IF EXISTS {relation(*each.name)}")
            say(f"{each.kind} {each.name} {'would be dropped' if dry_run else 'dropped'}", flush=True)
    finally:
        if found and not dry_run and (problem := export_again(settings)):
            say(problem, error=True)


def _drop_copy(settings: Settings, copy: Relation) -> None:
    """Takes the copy that a killed refresh has left out of the catalog, with its files if no mirror is there.

    Trino would delete the mirror's, and cannot drop a table whose files went with the mirror.
    """
    from pyiceberg.exceptions import NoSuchTableError

    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.writing.next_tables import delete_unowned
    from maintenance.inventory.in_use import RESTORED_FROM, all_tables

    mirror = f"{copy.name.namespace.removeprefix(PREFIX)}.{copy.name.name}"
    with closing(open_catalog(settings)) as catalog:
        with suppress(NoSuchTableError):
            catalog.drop_table(copy.name)
        if all(other.properties.get(RESTORED_FROM) != mirror for other in all_tables(catalog).values()):
            delete_unowned(catalog, copy)


def _refuse_pinned(settings: Settings, each: Relation) -> None:
    """Right before the drop: the question may have waited for hours."""
    from lakehouse.catalog.open import load_table, open_catalog
    from lakehouse.catalog.pins import refuse_pinned

    if each.kind == "table":
        with closing(open_catalog(settings)) as catalog:
            table = load_table(catalog, *each.name)
        refuse_pinned(str(each.name), [table] if table else [])
