"""What loads remember of themselves in table properties: read, and written for many tables at once.

After a load a model's macro `remember_load` does the same with two statements of Trino. Who runs many models every few
seconds gathers what they want remembered, and writes it in one transaction of the catalog. The values are made by the
macro `load_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import history
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.writing.commit import move_pointer

if TYPE_CHECKING:
    import psycopg
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse.catalog.lake_catalog import LakeCatalog

Name = tuple[str, str]
QUERY = "trino_query_id"
REVISED = "lakehouse.revised-at"  # of an appended table: when it was made anew, because rows that it had say more now
MADE_ANEW = "lakehouse.made-anew-at"  # of an appended table: when it was last replaced as a whole, for any reason
LOADED = "lakehouse.loaded."  # the prefix of these properties; an input's name or what else is remembered follows


@dataclass(frozen=True)
class Load:
    """What is to be remembered of a load, the snapshot that it was planned on, and the query that wrote, if one did."""

    remember: Mapping[str, str]
    base: str | None = None
    query: str | None = None


@dataclass(frozen=True)
class LoadedInput:
    """What a table has loaded of a stage: up to which moment, how many rows at that moment, the highest position.

    `read` are the snapshots of what the stage reads; empty if they were not remembered.
    """

    stage: str
    newest: str
    rows: int
    highest: str
    read: str = ""

    @property
    def mark(self) -> tuple[str, str, str, str]:
        """The values as the macros have them."""
        return self.newest, str(self.rows), self.highest, self.read


def loaded_inputs(metadata: TableMetadata) -> frozenset[LoadedInput]:
    """What the table remembers of its inputs, as far as it still descends from the snapshot it was remembered with."""
    ancestors = {str(snapshot.snapshot_id) for snapshot in history(metadata)}
    values = {
        key.removeprefix(LOADED): value.split("|")
        for key, value in metadata.properties.items()
        if key.startswith(LOADED)
    }
    return frozenset(
        LoadedInput(name.partition(".")[0], newest, int(rest[0]), *rest[1:-1])
        for name, (newest, *rest) in values.items()
        if len(rest) > 2 and rest[-1] in ancestors
    )


def remember(connection: psycopg.Connection[Any], catalog: LakeCatalog, loads: Mapping[Name, Load]) -> None:
    """Writes each value with the snapshot that it is true of.

    A table that was put back, or that another writer changes meanwhile, is left out: its next load asks again.
    """
    wanted = {name: load for name, load in loads.items() if load.remember}
    staged = []
    for name, table in sorted(catalog.load_tables(list(wanted)).items()):
        if (snapshot := loaded_snapshot(table.metadata, wanted[name])) is not None:
            staging = Staging(table)
            staging.set_properties({key: f"{value}|{snapshot}" for key, value in wanted[name].remember.items()})
            staged.append((name, table.metadata_location, staging.stage(catalog, table)))
    with connection.transaction():
        for name, before, after in staged:
            if move_pointer(connection, catalog.name, name, before, after.metadata_location):
                catalog.remember(name, after.metadata_location, after.metadata)


def loaded_snapshot(metadata: TableMetadata, load: Load) -> int | None:
    """The table's snapshot, if it descends from the one that the load was planned on and from what the load wrote."""
    ancestors = [snapshot.snapshot_id for snapshot in history(metadata)]
    if not ancestors or (load.base is not None and int(load.base) not in ancestors):
        return None
    wrote = {
        s.snapshot_id for s in metadata.snapshots if load.query and s.summary and s.summary.get(QUERY) == load.query
    }
    return ancestors[0] if wrote <= set(ancestors) else None
