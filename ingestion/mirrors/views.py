"""Makes current views fresh: with each refresh they name the mirror's new snapshot and position.

A view is dbt's. What it is made of, how it is read and whose rights it has stays as dbt made it; a version is added
whose text reads the mirror and the tail of raw. Whoever replaces the view meanwhile wins: dbt's text is right by
itself, and the next refresh makes it fresh again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow.fs import FileSelector
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from ingestion.mirrors.fresh_sql import spark_text, trino_text
from ingestion.mirrors.view_parts import Column, FreshView, Position
from ingestion.pipeline.repair.lake_side import Log
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.catalog.relations import list_views
from lakehouse.catalog.views.current_views import MARK, is_fresh, past_of, view_of
from lakehouse.catalog.views.view_versions import (
    LONG,
    Metadata,
    NextView,
    current_version,
    known_metadata,
    with_version,
    write_view,
)
from lakehouse.catalog.writing.commit import move_pointer
from lakehouse.declarations import RawTable
from lakehouse.files.stored import known_fields
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

NAMED = "lakehouse.mirror"  # in the summary of a view's version: the snapshot and position that its text names
KEPT, EVERY = timedelta(hours=72), 500  # how long replaced metadata files are kept, and after how many versions
EACH = 2  # versions that a refresh adds, at most
OLD = timedelta(minutes=10)  # after which the view of an idle table names the newest cut, so that few are read


@dataclass(frozen=True)
class Mirrored:
    """A table with its mirror at a position; without one the view is to read parsed again.

    `fields` are the ids of the raw table's columns by name, as they were when `log` was made, `nulls` the key's columns
    that have nulls in the mirror.
    """

    table: RawTable
    log: Log | None
    at: Position | None
    fields: Mapping[str, int] = field(default_factory=dict)
    nulls: Collection[str] = ()


def next_views(settings: Settings, catalog: LakeCatalog, mirrored: Sequence[Mirrored]) -> list[NextView]:
    """Writes the next metadata of every view of these tables that is to name another state of its mirror."""
    there = list_views(catalog, [view_of(m.table.source, m.table.name) for m in mirrored])
    raws = catalog.load_tables([item.table.identifier for item in mirrored if item.log])
    found = []
    for item in mirrored:
        if item.log and not _is_called_so(raws.get(item.table.identifier), item.fields):
            continue  # whoever has renamed a column has taken the view back since, or before
        name = view_of(item.table.source, item.table.name)
        base = there.get(name)
        metadata = known_metadata(catalog.file_io, base) if base else None
        if base and metadata and MARK in metadata.get("properties", {}).get("comment", ""):
            changed = _next(metadata, item, settings)
            if changed is not None:
                short_of = item.table.name if LONG in current_version(changed)["summary"] else None
                found.append(NextView(name, base, write_view(catalog.file_io, changed), short_of))
    return found


def swap(
    connection: CatalogConnection, catalog: str, views: Sequence[NextView], irregular: Collection[str] | None
) -> None:
    """Points the views to their next metadata within a transaction, but for those that somebody else has replaced.

    A short text is not for tables that are `irregular` by now (None: it is not known which): theirs stay as they are.
    """
    for view in sorted(views, key=lambda found: found.view):
        if view.short_of is None or (irregular is not None and view.short_of not in irregular):
            move_pointer(connection, catalog, view.view, view.base, view.location)


def forget_old(io: LakeFileIO, views: Sequence[NextView]) -> None:
    """Deletes metadata files that a view named long ago: each refresh writes one. It looks after them now and then.

    The one before stays: of an idle table it is old, and a query may have read just now that it is the view's.
    """
    for view in views:
        folder, _, name = view.location.rpartition("/")
        named = {name, view.base.rpartition("/")[2]}
        if int(name.split("-")[0]) % EVERY >= EACH:
            continue
        scheme, authority, path = io.parse_location(folder, io.properties)
        store, limit = io.fs_by_scheme(scheme, authority), datetime.now(UTC) - KEPT
        with suppress(OSError):  # there will be another time
            for found in store.get_file_info(FileSelector(path)):
                if found.mtime is not None and found.mtime < limit and found.base_name not in named:
                    store.delete_file(found.path)


def _next(metadata: Metadata, item: Mirrored, settings: Settings) -> Metadata | None:
    """The view's next metadata; None if it stays as it is."""
    version = current_version(metadata)
    texts = {r["dialect"].lower(): r["sql"] for r in version["representations"]}
    if "trino" not in texts:
        return None
    past = past_of(texts["trino"])
    view = _view(metadata, version, item, settings)
    if view is None or item.at is None:
        return with_version(metadata, {"trino": past}, {}) if is_fresh(texts["trino"]) else None
    named, is_short = _named(version), item.at.regular is not None
    is_as_named = named is not None and _texts(view, named, past, is_short) == texts
    if named is not None and is_as_named and not _is_due(named, item.at):
        return None
    long, summary = _texts(view, item.at, past, False), _summary(item.at)
    if not long:
        return None
    made = with_version(metadata, long, summary)
    if not is_short:
        return made
    return with_version(made, _texts(view, item.at, past, True), summary | {LONG: str(made["current-version-id"])})


def _texts(view: FreshView, at: Position, past: str, is_short: bool) -> dict[str, str]:
    texts = {"trino": trino_text(view, at, past, short=is_short), "spark": spark_text(view, at, short=is_short)}
    return {dialect: text for dialect, text in texts.items() if text} if texts["trino"] else {}


def _is_called_so(raw: Table | None, fields: Mapping[str, int]) -> bool:
    """Whether these fields of a table bear these names."""
    named = {field.name: field.field_id for field in raw.schema().fields} if raw else {}
    return all(named.get(name) == number for name, number in fields.items())


def _view(metadata: Metadata, version: Mapping[str, Any], item: Mirrored, settings: Settings) -> FreshView | None:
    """What the view reads; None if it has columns that the mirror lacks, or would have to round."""
    if item.log is None:
        return None
    schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    shown = Schema.model_validate(schemas[version["schema-id"]])
    own = {column.lake_name.lower(): column for column in item.log.columns}
    if not all(field.name.lower() in own for field in shown.fields):
        return None
    columns = [Column(own[field.name.lower()], field.name, field.field_type) for field in shown.fields]
    if any(isinstance(c.type, FloatType) and isinstance(c.source.lake_type, DoubleType) for c in columns):
        return None
    catalogs, table = (settings.trino.catalog, settings.catalog_name), item.table
    return FreshView(*catalogs, table.source, table.name, columns, item.log.key, item.nulls)


def _is_due(named: Position, at: Position) -> bool:
    """Whether the view names another snapshot or tag, or its long text has many cuts to look through."""
    if at.regular is not None:
        return (named.snapshot, named.regular) != (at.snapshot, at.regular)
    return named.snapshot != at.snapshot or at.seen - named.seen > OLD


def _summary(at: Position) -> dict[str, str]:
    return {NAMED: json.dumps(asdict(at) | {"seen": at.seen.isoformat()})}


def _named(version: Mapping[str, Any]) -> Position | None:
    stored = version.get("summary", {}).get(NAMED)
    if stored is None:
        return None
    found = known_fields(Position, json.loads(stored))
    return Position(**found | {"seen": datetime.fromisoformat(found["seen"])})
