"""Temporary relations and object prefixes of dbt, recognised by their names.

dbt drops them unless it is killed. A rename (dbt's default way to replace a table) keeps the location, so a live table
may have its files below `orders__dbt_tmp-<uuid>/`: a prefix is a leftover only if no relation is below it. So may one
that was built beside the table that readers see, below `marts_next/`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from lakehouse.catalog.next_names import SUFFIX, is_next
from lakehouse.catalog.objects import StoredObject
from lakehouse.catalog.relations import Relation, directory
from maintenance.inventory.lake import Lake
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import reachable_files

# dbt: <model>__dbt_tmp, __dbt_tmp_<batch>, __dbt_tmp_view, __dbt_backup; Trino appends -<uuid> to a location.
TEMPORARY = re.compile(r"(?P<model>.+?)__dbt_(?:tmp|backup)(?:_[A-Za-z0-9_]*)?(?:-[0-9a-f]{32})?")

BUILT = re.compile(r"(?P<model>[^-]+)(?:-[0-9a-f]{32})?")


@dataclass(frozen=True)
class Leftover:
    """Objects below one temporary prefix."""

    prefix: str
    model: TableName
    objects: tuple[StoredObject, ...]

    @property
    def newest(self) -> datetime:
        """The time of the newest object."""
        return max(stored.modified for stored in self.objects)


def model_of(relation: TableName) -> TableName | None:
    """The model that a temporary relation belongs to; None for any other relation."""
    match = TEMPORARY.fullmatch(relation.name)
    return TableName(relation.namespace, match["model"]) if match else None


def temporary_relations(lake: Lake) -> dict[TableName, list[Relation]]:
    """Model → its temporary relations."""
    found: dict[TableName, list[Relation]] = defaultdict(list)
    for relation in lake.relations:
        if model := model_of(relation.name):
            found[model].append(relation)
    return dict(found)


def leftovers(lake: Lake, warehouse: str) -> dict[TableName, list[Leftover]]:
    """Model → temporary object prefixes without a relation, and those of builds that were not published."""
    root = directory(warehouse)
    grouped: dict[tuple[str, TableName], list[StoredObject]] = defaultdict(list)
    for stored in lake.objects:
        if prefix_and_model := unpublished_prefix(stored.path, root) or temporary_prefix(stored.path):
            grouped[prefix_and_model].append(stored)
    homes = {relation.location for relation in lake.relations}
    homes |= {directory(table.location()) for table in lake.tables.values()}
    found: dict[TableName, list[Leftover]] = defaultdict(list)
    for (prefix, model), objects in grouped.items():
        used = any(home.startswith(prefix) or prefix.startswith(home) for home in homes)
        if not used and not any(lake.is_staged(stored.path) for stored in objects):
            found[model].append(Leftover(prefix, model, tuple(objects)))
    return dict(found)


def temporary_prefix(path: str) -> tuple[str, TableName] | None:
    """`(prefix/, model)` of the topmost directory with a temporary name in a path, if there is one."""
    if "__dbt_" not in path:
        return None
    scheme, _, rest = path.partition("://")
    parts = rest.split("/")
    for depth in range(2, len(parts) - 1):  # 0 is the bucket, 1 the schema at the earliest
        if match := TEMPORARY.fullmatch(parts[depth]):
            prefix = f"{scheme}://{'/'.join(parts[: depth + 1])}/"
            return prefix, TableName(parts[depth - 1].removesuffix(".db"), match["model"])
    return None


def unpublished_prefix(path: str, root: str) -> tuple[str, TableName] | None:
    """`(prefix/, model)` of a directory in which a model was built beside the one that readers see (`next_tables`).

    A published one is a table's location from then on. One that failed its tests belongs to no table.
    """
    schema, _, rest = path.removeprefix(root).partition("/")
    name, is_folder, _ = rest.partition("/")
    namespace = schema.removesuffix(".db")
    if not (is_folder and path.startswith(root) and is_next(namespace) and namespace.endswith(SUFFIX)):
        return None
    match = TEMPORARY.fullmatch(name) or BUILT.fullmatch(name)
    return (f"{root}{schema}/{name}/", TableName(namespace.removesuffix(SUFFIX), match["model"])) if match else None


def files_of_all_tables(lake: Lake) -> set[str]:
    """All files that any table refers to; read only before a deletion."""
    return set().union(*(reachable_files(table) for table in lake.tables.values()))
