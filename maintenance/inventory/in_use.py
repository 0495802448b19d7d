"""The files that other tables refer to, which may be below this table's location, and those of its live state.

That happens after `register_table`, `add_files` and a restore as a copy. Of tables at the same location, and of copies,
all snapshots are read. Of all other tables only the newest snapshot and those of tags and branches are read, because
the whole history of the lake would cost more than all other work on a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.open import load_table
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import ident, literal
from maintenance.inventory.lake import READERS, directory, list_relations
from maintenance.inventory.outcome import TableName, one_line
from maintenance.inventory.reachable import files_of, metadata_files, reachable_files

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from maintenance.inventory.session import Session

_LIVE = text(
    "SELECT metadata_location FROM lakehouse.live"
    ' WHERE namespace = :namespace AND "table" = :name AND metadata_location IS NOT NULL'
)
RESTORED_FROM = "lakehouse.restored-from"  # property of a restored copy: the table whose files it refers to


class Unknown(LakehouseError):
    """A table cannot be read, so its references are unknown and nothing may be deleted."""

    def __init__(self, table: TableName, error: Exception) -> None:
        super().__init__(
            f"{table} cannot be read, so its references are unknown and nothing is deleted ({one_line(error)})"
        )


def elsewhere(session: Session, table: TableName) -> set[str]:
    """The files that other tables and the table's live state refer to; raises Unknown if one cannot be read."""
    own = session.load(table)
    used: set[str] = set().union(*(files for name, files in named(session).items() if name != table))
    for name, other in all_tables(session.catalog).items():
        if name != table and _is_near(other, own, table):
            used |= reachable_files(other)
    return used | (_live(session.catalog, table, own) if own is not None else set())


def named(session: Session) -> dict[TableName, set[str]]:
    """By table, the files of the snapshots that its branches and tags name, read once for all; raises Unknown."""
    return session.once(
        "lake.named", lambda: {name: _files_named(name, table) for name, table in all_tables(session.catalog).items()}
    )


def _live(catalog: SqlCatalog, name: TableName, own: Table) -> set[str]:
    """The files of the table as it is shown before it is published; a follower that was killed has left them too."""
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    with catalog.engine.connect() as connection:
        if not inspect(connection).has_table("live", "lakehouse"):
            return set()
        found = connection.execute(_LIVE, {"namespace": name.namespace, "name": name.name})
        locations = [str(location) for (location,) in found]
    used: set[str] = set()
    for location in locations:
        try:
            metadata = FromInputFile.table_metadata(own.io.new_input(location))
            shown = Table(own.name(), metadata, location, own.io, catalog)
            current = shown.current_snapshot()
            used |= metadata_files(shown) | set(files_of(shown, [current] if current else []))
        except FileNotFoundError:  # then it is not shown either
            continue
        except Exception as error:
            raise Unknown(name, error) from None
    return used


def living_on(every: Mapping[TableName, Table], tables: Collection[tuple[str, str]]) -> list[str]:
    """For each other table of the lake that lives on files of these `tables`: which one that is, and how to end it.

    It is a restored copy, is at or below their location, or names files there. The copy in which the next state of one
    of them is built does not count. Raises Unknown if a table cannot be read.
    """
    wanted = {TableName(*table) for table in tables}
    own = {name: directory(every[name].location()) for name in sorted(wanted & every.keys())}
    others = sorted(every.keys() - wanted - {TableName(*next_name(name)) for name in wanted})
    found = ((name, _lives_on(name, every[name], wanted, own)) for name in others)
    return [_how_to_end(of, name, every[name]) for name, of in found if of is not None]


def _lives_on(
    name: TableName, other: Table, wanted: Collection[TableName], own: Mapping[TableName, str]
) -> TableName | None:
    """The one of the tables on whose files another one lives; `own` are their locations."""
    origin = other.properties.get(RESTORED_FROM)
    if of := next((table for table in wanted if str(table) == origin), None):
        return of
    location = directory(other.location())
    if of := next((table for table, below in own.items() if location.startswith(below)), None):
        return of
    files, below = _files_named(name, other), tuple(own.values())
    used = next((path for path in files if path.startswith(below)), None) if below else None
    return next((table for table, below in own.items() if used.startswith(below)), None) if used else None


def _how_to_end(of: TableName, name: TableName, other: Table) -> str:
    """A restored copy can be dropped, which leaves the files; any other table would take them along."""
    if RESTORED_FROM in other.properties:
        return f"{of}: {name} is a restored copy: drop it first"
    call = f"CALL {ident(other.catalog.name)}.system.unregister_table({literal(name.namespace)}, {literal(name.name)})"
    return f"{of}: {name} lives on its files, and DROP TABLE would delete them: run {call} first"


def all_tables(catalog: SqlCatalog) -> dict[TableName, Table]:
    """Every table with an existing metadata file; without it its files are useless."""
    names = [relation.name for relation in list_relations(catalog) if relation.kind == "table"]
    with ThreadPoolExecutor(READERS) as pool:
        loaded = pool.map(lambda name: _load(catalog, name), names)
    return {name: table for name, table in zip(names, loaded, strict=True) if table is not None}


def _load(catalog: SqlCatalog, name: TableName) -> Table | None:
    try:
        return load_table(catalog, *name)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise Unknown(name, error) from None


def _is_near(other: Table, own: Table | None, table: TableName) -> bool:
    if other.properties.get(RESTORED_FROM) == str(table):
        return True
    return own is not None and directory(other.location()) == directory(own.location())


def _files_named(name: TableName, table: Table) -> set[str]:
    ids = {reference.snapshot_id for reference in table.metadata.refs.values()}
    try:
        return set(files_of(table, [s for s in table.metadata.snapshots if s.snapshot_id in ids]))
    except Exception as error:  # a broken file raises many kinds of errors
        raise Unknown(name, error) from None
