"""The relations that were made of one source alone: raw, mirrors, parsed tables and current views; pure.

Hubs, links, satellites and marts hold rows of several sources, and are no source's own.
"""

from collections.abc import Collection, Iterable

from lakehouse.catalog.relations import Relation
from maintenance.inventory.outcome import TableName


def relations_of(
    relations: Iterable[Relation], source: str, others: Collection[str] = (), table: str | None = None
) -> list[Relation]:
    """Those of a source, or of one table of it, in the order in which they can be dropped: views first.

    `others` are the names of other sources, of which one may begin with this one's.
    """
    found = [each for each in relations if (name := _table_of(each.name, source, others)) and table in (None, name)]
    return sorted(found, key=lambda each: (each.kind != "view", each.name.namespace.startswith("raw_"), each.name))


def _table_of(name: TableName, source: str, others: Collection[str]) -> str | None:
    """The source's table that a relation is made of; None if it is no relation of the source."""
    if name.namespace in (f"raw_{source}", f"mirror_{source}"):
        return name.name
    if name.namespace != "parsed":
        return None
    for layer in ("parsed", "current"):
        prefix = f"{layer}_{source}__"
        longer = [other for other in others if name.name.startswith(f"{layer}_{other}__") and len(other) > len(source)]
        if name.name.startswith(prefix) and not longer:
            return name.name.removeprefix(prefix)
    return None
