"""The relations that were made of one source alone: raw, mirrors, copies that a killed refresh of them has left, parsed
tables and current views; pure.

Hubs, links, satellites and marts hold rows of several sources, and are no source's own.
"""

from collections.abc import Collection, Iterable

from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.relations import Relation, raw_tables_of
from lakehouse.errors import LakehouseError
from maintenance.inventory.outcome import TableName


def relations_of(
    relations: Iterable[Relation], source: str, others: Collection[str] = (), table: str | None = None
) -> list[Relation]:
    """Those of a source, or of one table of it, in the order in which they can be dropped: views first.

    `others` are the names of other sources. Raises LakehouseError for a relation that may be made of this source or of
    another one.
    """
    there = list(relations)
    raw = {each.name for each in there if each.name.namespace.startswith("raw_")}
    found = [each for each in there if _is_of(each.name, source, others, table, raw)]
    return sorted(found, key=lambda each: (each.kind != "view", each.name.namespace.startswith("raw_"), each.name))


def _is_of(
    name: TableName, source: str, others: Collection[str], table: str | None, raw: Collection[TableName]
) -> bool:
    """Whether a relation is made of the source, or of that table of it."""
    mirror = (f"mirror_{source}", name.name)
    if name.namespace == f"raw_{source}" or name in (mirror, next_name(mirror)):
        return table in (None, name.name)
    layer, _, rest = name.name.partition("_")
    if name.namespace != "parsed" or layer not in ("parsed", "current"):
        return False
    meant = raw_tables_of(rest)
    there = [found for found in meant if found in raw]
    if not any(found.namespace == f"raw_{source}" and table in (None, found.name) for found in there or meant):
        return False
    if len(there) > 1:
        made_of = " and of ".join(map(str, there))
        raise LakehouseError(
            f"{name} can be of {made_of}: drop it, or the raw table that it is not made of, and run this again"
        )
    return bool(there) or not any(found.namespace.removeprefix("raw_") in others for found in meant)
