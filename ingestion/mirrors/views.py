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
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from ingestion.mirrors.fresh_sql import Kind, spark_text, trino_text
from ingestion.mirrors.view_parts import Column, FreshView, Position
from ingestion.pipeline.repair.lake_side import Log
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import is_unchanged
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.catalog.relations import list_views
from lakehouse.catalog.views.current_views import MARK, is_fresh, past_of, view_of
from lakehouse.catalog.views.view_versions import (
    LONG,
    Metadata,
    Name,
    NextView,
    Plain,
    Since,
    current_version,
    known_metadata,
    with_version,
    write_view,
)
from lakehouse.catalog.writing.commit import move_pointer, pointers
from lakehouse.declarations import RawTable
from lakehouse.files.stored import known_fields
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

NAMED = "lakehouse.mirror"  # in the summary of a view's version: the snapshot and position that its text names
KEPT, EVERY = timedelta(hours=72), 500  # how long replaced metadata files are kept, and after how many versions
EACH = 5  # versions that a refresh and the publishes before the next one add, at most
OLD = timedelta(minutes=10)  # after which the view of an idle table names the newest cut, so that few are read


@dataclass(frozen=True)
class Mirrored:
    """A table with its mirror at a position; without one the view is to read parsed again.

    `fields` are the ids of the raw table's columns by name, as they were when `log` was made, `nulls` the key's columns
    that have nulls in the mirror. The mirror has all that the raw table had at `raw_snapshot`.
    """

    table: RawTable
    log: Log | None
    at: Position | None
    fields: Mapping[str, int] = field(default_factory=dict)
    nulls: Collection[str] = ()
    raw_snapshot: int | None = None


def next_views(settings: Settings, catalog: LakeCatalog, mirrored: Sequence[Mirrored]) -> list[NextView]:
    """Writes the next metadata of every view of these tables that is to name another state of its mirror."""
    there = list_views(catalog, [view_of(m.table.source, m.table.name) for m in mirrored])
    raws = catalog.load_tables([item.table.identifier for item in mirrored if item.log])
    found = []
    for item in mirrored:
        raw = raws.get(item.table.identifier)
        if item.log and not _is_called_so(raw, item.fields):
            continue  # whoever has renamed a column has taken the view back since, or before
        name = view_of(item.table.source, item.table.name)
        base = there.get(name)
        metadata = known_metadata(catalog.file_io, base) if base else None
        if base and metadata and MARK in metadata.get("properties", {}).get("comment", ""):
            changed = _next(metadata, item, raw, settings)
            if changed is not None:
                found.append(_written(catalog.file_io, name, base, changed, item, raw))
    return found


def _written(io: FileIO, name: Name, base: str, made: _Next, item: Mirrored, raw: Table | None) -> NextView:
    """Writes the files of a view's next metadata."""
    current, plain = current_version(made.metadata), None
    table = item.table.name if NAMED in current["summary"] else None
    if made.plain is not None:
        assert raw is not None
        plain = Plain(write_view(io, made.plain), item.table.identifier, raw.metadata_location)
    return NextView(name, base, write_view(io, made.metadata), table, LONG in current["summary"], plain)


def swap(
    connection: CatalogConnection,
    catalog: str,
    views: Sequence[NextView],
    since: Since,
    still: Collection[Name],
) -> None:
    """Points the views to their next metadata within a transaction, but for those that somebody else has replaced.

    So do those whose next text cannot follow what has come `since`. A plain text is for raw tables that are as they
    were `still` (see `unreached`).
    """
    for view in sorted(views, key=lambda found: found.view):
        if not since.holds(view):
            location = view.plain.location if view.plain and view.plain.raw in still else view.location
            move_pointer(connection, catalog, view.view, view.base, location)


def unreached(connection: CatalogConnection, catalog: str, views: Sequence[NextView]) -> set[Name]:
    """The raw tables of views with a plain text to which nothing has come, nor will before the transaction ends."""
    plains = [view.plain for view in views if view.plain]
    there = pointers(connection, catalog, [plain.raw for plain in plains], hold=True)
    return {plain.raw for plain in plains if there.get(plain.raw) == plain.raw_location}


def forget_old(io: LakeFileIO, views: Sequence[NextView]) -> None:
    """Deletes metadata files that a view named long ago: each refresh writes one. It looks after them now and then.

    The one before stays: of an idle table it is old, and a query may have read just now that it is the view's.
    """
    for view in views:
        folder, _, name = view.location.rpartition("/")
        kept = [view.location, view.base, *([view.plain.location] if view.plain else [])]
        named = {location.rpartition("/")[2] for location in kept}
        if int(name.split("-")[0]) % EVERY >= EACH:
            continue
        scheme, authority, path = io.parse_location(folder, io.properties)
        store, limit = io.fs_by_scheme(scheme, authority), datetime.now(UTC) - KEPT
        with suppress(OSError):  # there will be another time
            for found in store.get_file_info(FileSelector(path)):
                if found.mtime is not None and found.mtime < limit and found.base_name not in named:
                    store.delete_file(found.path)


@dataclass(frozen=True)
class _Next:
    """The next metadata of a view, and that with the plain text if nothing has come to the table."""

    metadata: Metadata
    plain: Metadata | None = None


def _next(metadata: Metadata, item: Mirrored, raw: Table | None, settings: Settings) -> _Next | None:
    """The view's next metadata; None if it stays as it is."""
    version = current_version(metadata)
    texts = {r["dialect"].lower(): r["sql"] for r in version["representations"]}
    if "trino" not in texts:
        return None
    past = past_of(texts["trino"])
    view = _view(metadata, version, item, settings)
    if view is None or item.at is None:
        return _Next(with_version(metadata, {"trino": past}, {})) if is_fresh(texts["trino"]) else None
    named, kind = _named(version), _kind(item, raw)
    is_as_named = named is not None and _texts(view, named, past, kind) == texts
    if named is not None and is_as_named and not _is_due(named, item.at):
        return None
    long, summary = _texts(view, item.at, past, Kind.LONG), _summary(item.at)
    if not long:
        return None
    made = with_version(metadata, long, summary)
    if kind == Kind.LONG:
        return _Next(made)
    summary |= {LONG: str(made["current-version-id"])}
    short = with_version(made, _texts(view, item.at, past, Kind.SHORT), summary)
    if kind == Kind.SHORT:
        return _Next(short)
    return _Next(short, with_version(short, _texts(view, item.at, past, Kind.PLAIN), summary))


def _kind(item: Mirrored, raw: Table | None) -> Kind:
    """The text that says all there is to know with the least work."""
    if item.at is None or item.at.regular is None:
        return Kind.LONG
    is_all = raw is not None and item.raw_snapshot is not None and is_unchanged(raw.metadata, item.raw_snapshot)
    return Kind.PLAIN if is_all else Kind.SHORT


def _texts(view: FreshView, at: Position, past: str, kind: Kind) -> dict[str, str]:
    texts = {"trino": trino_text(view, at, past, kind), "spark": spark_text(view, at, kind)}
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
