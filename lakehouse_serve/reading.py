"""What the catalog's rows and the metadata files say. It only reads: its sessions in the database are read-only."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Literal

from cachetools import LRUCache, TTLCache
from sqlalchemy import create_engine, text

from lakehouse.catalog.live_tables import only_rewritten
from lakehouse.catalog.next_names import is_next
from lakehouse.catalog.pins import TAG, properties_of
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_serve.past.moments import Position, parse_warehouse
from lakehouse_serve.past.reads import READS, Read, pace, reads_of
from lakehouse_serve.past.snapshots import Chosen
from lakehouse_serve.store import Store

CACHED_BYTES = 64 << 20
KNOWN_PINS, KNOWN_SECONDS = 100, 10  # a pin is looked for in the metadata of all tables
CHECKED_SECONDS = 1.0  # anybody may ask whether the service is well
OF_SOURCES = ("raw_", "mirror_")
Kind = Literal["TABLE", "VIEW"]


@dataclass(frozen=True)
class Document:
    """A metadata file: its text, its location, and what it holds."""

    location: str
    content: bytes

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The file's JSON. Not to be changed."""
        found: dict[str, Any] = json.loads(self.content)
        return found

    @property
    def folder(self) -> str:
        """Where the table's files are, with a slash at its end."""
        return f"{self.metadata['location'].rstrip('/')}/"

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of all columns that the table or view has or had."""
        return frozenset(field["name"] for schema in self.metadata["schemas"] for field in schema["fields"])


class CatalogRows:
    """The rows of the JDBC catalog, and the metadata files that they name."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._catalog = settings.catalog_name
        self.pace = pace(settings)
        self._store = store
        self._documents: LRUCache[str, Document] = LRUCache(CACHED_BYTES, getsizeof=lambda found: len(found.content))
        self._pins: TTLCache[str, dict[tuple[str, str], Chosen]] = TTLCache(KNOWN_PINS, KNOWN_SECONDS)
        self._answered_at = -CHECKED_SECONDS
        self._lock = Lock()
        self._engine = create_engine(
            parse_url(settings.catalog_dsn()).sqlalchemy(),
            pool_pre_ping=True,
            connect_args={"options": "-c default_transaction_read_only=on", "application_name": "lakehouse serve"},
        )

    def relations(self, kind: Kind) -> list[tuple[str, str]]:
        """Namespace and name of every table or view, in order; without copies that are being built."""
        rows = self._query("SELECT table_namespace, table_name, iceberg_type", "ORDER BY 1, 2")
        of_kind = ((namespace, name) for namespace, name, found in rows if (found or "TABLE") == kind)
        return [found for found in of_kind if not is_next(found[0])]

    def locations(self) -> dict[tuple[str, str], str]:
        """The metadata file of every table, all of one moment; without copies that are being built."""
        rows = self._query(
            "SELECT table_namespace, table_name, metadata_location", "AND iceberg_type IS DISTINCT FROM 'VIEW'"
        )
        return {(namespace, name): location for namespace, name, location in rows if not is_next(namespace)}

    def document(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """The metadata of a table or view as of now; None if there is none of that kind, and of a copy."""
        if is_next(namespace):
            return None
        rows = self._query(
            "SELECT metadata_location, iceberg_type",
            "AND table_namespace = :namespace AND table_name = :name",
            namespace=namespace,
            name=name,
        )
        return next((self.read(location) for location, found in rows if (found or "TABLE") == kind), None)

    def live_namespaces(self) -> frozenset[str]:
        """The namespaces whose tables are shown as they are read."""
        return frozenset(space for (space,) in self._ask("SELECT DISTINCT namespace FROM lakehouse.live"))

    def live(self, namespace: str, name: str) -> Document | None:
        """A table of such a namespace with what is read and not published: its live state while that holds, else the
        table as it is. None if there is none."""
        rows = self._ask(
            "SELECT t.metadata_location, l.base_location, l.base_snapshot, l.metadata_location FROM iceberg_tables t"
            ' LEFT JOIN lakehouse.live l ON l.namespace = t.table_namespace AND l."table" = t.table_name'
            " WHERE t.catalog_name = :catalog AND t.iceberg_type IS DISTINCT FROM 'VIEW'"
            " AND t.table_namespace = :namespace AND t.table_name = :name"
            " AND EXISTS (SELECT FROM lakehouse.live WHERE namespace = :namespace)",
            namespace=namespace,
            name=name,
        )
        for location, base, snapshot, shown in rows:
            committed = self.read(location)
            if shown is not None and (base == location or only_rewritten(committed.metadata, snapshot)):
                with suppress(FileNotFoundError):  # of a lake that was restored without it
                    return self.read(shown)
            return committed
        return None

    def pinned(self, pin: str) -> dict[tuple[str, str], Chosen]:
        """The tables that a pin keeps, and what of each."""
        with self._lock:
            known = self._pins.get(pin)
        if known is None:
            kept = {table: _kept(table[0], self.read(at).metadata, pin) for table, at in self.locations().items()}
            known = {table: chosen for table, chosen in kept.items() if chosen is not None}
            with self._lock:
                self._pins[pin] = known
        return known

    def reads(self) -> dict[str, Read]:
        """How far each source was read."""
        return reads_of(self._ask(READS))

    def read(self, location: str) -> Document:
        """A metadata file; they are never written twice. Raises FileNotFoundError."""
        with self._lock:
            known = self._documents.get(location)
        if known is None:
            content = self._store.read(location)
            known = Document(location, gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            if len(known.content) < CACHED_BYTES:
                with self._lock:
                    self._documents[location] = known
        return known

    def check(self) -> None:
        """Asks the database something, once a second at most. Raises SQLAlchemyError when it does not answer."""
        if time.monotonic() - self._answered_at > CHECKED_SECONDS:
            self._query("SELECT 1", "LIMIT 1")
            self._answered_at = time.monotonic()

    def close(self) -> None:
        """Closes the connections to the database."""
        self._engine.dispose()

    def _query(self, what: str, rest: str, **values: str) -> list[Any]:
        return self._rows(f"{what} FROM iceberg_tables WHERE catalog_name = :catalog {rest}", values)

    def _ask(self, statement: str, **values: str) -> list[Any]:
        """Rows of the state; none in a lake whose state has no live tables yet."""
        if self._rows("SELECT to_regclass('lakehouse.live')", {}) == [(None,)]:
            return []
        return self._rows(statement, values)

    def _rows(self, statement: str, values: dict[str, str]) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(text(statement), {"catalog": self._catalog, **values}))


def _kept(namespace: str, metadata: Mapping[str, Any], pin: str) -> Chosen | None:
    found = metadata.get("refs", {}).get(TAG + pin)
    return Chosen(found["snapshot-id"], _cut_of(namespace, metadata, pin)) if found else None


def _cut_of(namespace: str, metadata: Mapping[str, Any], pin: str) -> Position | None:
    """The cut of its source at which the pin keeps a raw table or a mirror, as its own property says."""
    named, _ = properties_of(pin)
    cuts = metadata.get("properties", {}).get(named)
    moment = parse_warehouse(f"@{cuts}", "") if cuts else None
    source = next((namespace.removeprefix(of) for of in OF_SOURCES if namespace.startswith(of)), None)
    return next((p for p in moment.positions if p.source == source), None) if moment and source else None
