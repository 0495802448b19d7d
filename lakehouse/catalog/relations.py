"""Tables and views of the catalog and their metadata files; PyIceberg lists no views."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lakehouse.catalog.locations import one_spelling

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO


Layer = Literal["raw", "mirror"]


class TableName(NamedTuple):
    """An Iceberg table's identifier."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


LISTED: dict[Layer, TableName] = {"raw": TableName("meta", "cuts"), "mirror": TableName("meta", "mirrors")}
"""The tables that list the cuts of raw tables, and those at which mirrors stand."""
BEGUN_AT = "lakehouse.begun-at"  # property of a raw table: when it was made, after every cut of one of its name before


def begun_at(properties: Mapping[str, str]) -> datetime | None:
    """When a raw table with these properties was begun; None for one of a release that did not say so."""
    begun = properties.get(BEGUN_AT)
    return datetime.fromisoformat(begun) if begun else None


def raw_tables_of(name: str) -> list[TableName]:
    """The raw tables that `<source>__<table>` can mean: names of sources and tables may have `__` in them, too."""
    places = (at for at in range(1, len(name)) if name.startswith("__", at))
    return [TableName(f"raw_{name[:at]}", name[at + 2 :]) for at in places]


@dataclass(frozen=True)
class Relation:
    """A table or view as the catalog has it."""

    name: TableName
    kind: Literal["table", "view"]
    metadata_location: str

    @property
    def location(self) -> str:
        """The location of its metadata and, with all writers in use, of its data."""
        return directory(self.metadata_location.rpartition("/metadata/")[0])


def list_relations(catalog: SqlCatalog) -> tuple[Relation, ...]:
    """All tables and views of the catalog."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    rows = select(
        IcebergTables.table_namespace,
        IcebergTables.table_name,
        IcebergTables.iceberg_type,
        IcebergTables.metadata_location,
    ).where(IcebergTables.catalog_name == catalog.name)
    with Session(catalog.engine) as session:
        return tuple(
            Relation(TableName(namespace, name), "view" if kind == "VIEW" else "table", location or "")
            for namespace, name, kind, location in session.execute(rows)
        )


def list_views(catalog: SqlCatalog, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The metadata files of those of the names that are views."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select, tuple_
    from sqlalchemy.orm import Session

    if not names:
        return {}
    wanted = tuple_(IcebergTables.table_namespace, IcebergTables.table_name).in_(list(names))
    rows = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name, IcebergTables.iceberg_type == "VIEW", wanted
    )
    with Session(catalog.engine) as session:
        return {(namespace, name): location or "" for namespace, name, location in session.execute(rows)}


def directory(location: str) -> str:
    """A location as it is compared: in one spelling, with exactly one slash at its end, so that `stores/` is no prefix
    of `stores_old/`."""
    return one_spelling(location.rstrip("/")) + "/"


def read_metadata(io: FileIO, location: str) -> dict[str, Any] | None:
    """A table's or view's metadata file; None if it does not exist."""
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
    version = _current_version(metadata)
    return " ".join(representation.get("sql", "") for representation in version.get("representations", ()))


def view_columns(metadata: dict[str, Any]) -> frozenset[str]:
    """The names of a view's columns in its current version."""
    wanted = _current_version(metadata).get("schema-id")
    schemas = (schema for schema in metadata.get("schemas", ()) if schema.get("schema-id") == wanted)
    return frozenset(field["name"] for schema in schemas for field in schema["fields"])


def _current_version(metadata: dict[str, Any]) -> dict[str, Any]:
    current = metadata.get("current-version-id")
    return next((version for version in metadata.get("versions", ()) if version["version-id"] == current), {})
