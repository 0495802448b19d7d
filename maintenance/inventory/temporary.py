"""What dbt left behind: relations and object prefixes whose names dbt gives to temporary ones.

dbt drops them itself unless it is killed. A rename (dbt's default way of replacing a table) keeps the location, so
the files of a living table may well lie below `orders__dbt_tmp-<uuid>/`: a prefix counts as left behind only when
nothing in the catalog refers to it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from maintenance.inventory.lake import Lake, Relation, StoredObject
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import reachable_files

# dbt: <model>__dbt_tmp, __dbt_tmp_<batch>, __dbt_tmp_view, __dbt_backup; Trino appends -<uuid> to a location.
TEMPORARY = re.compile(r"(?P<model>.+?)__dbt_(?:tmp|backup)(?:_[A-Za-z0-9_]*)?(?:-[0-9a-f]{32})?")


@dataclass(frozen=True)
class Leftover:
    """Objects below one temporary prefix."""

    prefix: str
    model: TableName
    objects: tuple[StoredObject, ...]

    @property
    def newest(self) -> datetime:
        """When the last of them was written."""
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


def leftovers(lake: Lake) -> dict[TableName, list[Leftover]]:
    """Model → object prefixes that no relation of the catalog lies in."""
    grouped: dict[tuple[str, TableName], list[StoredObject]] = defaultdict(list)
    for stored in lake.objects:
        if place := temporary_prefix(stored.path):
            grouped[place].append(stored)
    homes = {relation.location for relation in lake.relations}
    homes |= {table.location().rstrip("/") + "/" for table in lake.tables.values()}
    found: dict[TableName, list[Leftover]] = defaultdict(list)
    for (prefix, model), objects in grouped.items():
        used = any(home.startswith(prefix) or prefix.startswith(home) for home in homes)
        if not used and not any(lake.is_staged(stored.path) for stored in objects):
            found[model].append(Leftover(prefix, model, tuple(objects)))
    return dict(found)


def temporary_prefix(path: str) -> tuple[str, TableName] | None:
    """`(prefix/, model)` of the topmost directory of a path that has a temporary name, if there is one."""
    if "__dbt_" not in path:
        return None
    scheme, _, rest = path.partition("://")
    parts = rest.split("/")
    for depth in range(2, len(parts) - 1):  # 0 is the bucket, 1 the schema at the earliest
        if match := TEMPORARY.fullmatch(parts[depth]):
            prefix = f"{scheme}://{'/'.join(parts[: depth + 1])}/"
            return prefix, TableName(parts[depth - 1].removesuffix(".db"), match["model"])
    return None


def files_of_all_tables(lake: Lake) -> set[str]:
    """Every file that any table refers to, wherever it lies; read only when something is about to be deleted."""
    return set().union(*(reachable_files(table) for table in lake.tables.values()))


def read_metadata(io: PyArrowFileIO, location: str) -> dict[str, Any] | None:
    """A table's or view's metadata file; None when it is gone."""
    try:
        with io.new_input(location).open() as stream:
            content = stream.read()
    except FileNotFoundError:
        return None
    return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)


def changed_at(metadata: dict[str, Any]) -> datetime:
    """When a relation last changed: a table's last update, a view's newest version."""
    stamps = [version["timestamp-ms"] for version in metadata.get("versions", [])]
    return datetime.fromtimestamp(max([metadata.get("last-updated-ms", 0), *stamps]) / 1000, tz=UTC)


def view_text(metadata: dict[str, Any]) -> str:
    """The SQL of a view's current version."""
    return " ".join(
        representation.get("sql", "")
        for version in metadata.get("versions", [])
        if version["version-id"] == metadata.get("current-version-id")
        for representation in version["representations"]
    )
