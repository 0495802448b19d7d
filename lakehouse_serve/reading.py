"""What the catalog's rows and the metadata files say. It only reads: its sessions in the database are read-only."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Literal

from cachetools import LRUCache, TTLCache
from sqlalchemy import create_engine, text

from lakehouse.catalog.live_tables import only_rewritten
from lakehouse.catalog.next_names import is_next
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_serve.store import Store

CACHED_BYTES = 64 << 20
KNOWN_TAGS, KNOWN_SECONDS = 100, 10  # a tag is looked for in the metadata of all tables
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
        self._store = store
        self._documents: LRUCache[str, Document] = LRUCache(CACHED_BYTES, getsizeof=lambda found: len(found.content))
        self._tags: TTLCache[str, dict[tuple[str, str], int]] = TTLCache(KNOWN_TAGS, KNOWN_SECONDS)
        self._lock = Lock()
        self._engine = create_engine(
            parse_url(settings.catalog_dsn()).sqlalchemy(),
            pool_pre_ping=True,
            connect_args={"options": "-c default_transaction_read_only=on", "application_name": "lakehouse serve"},
        )

    def relations(self, kind: Kind) -> list[tuple[str, str]]:
        """Namespace and name of every table or view, in order."""
        rows = self._query("SELECT table_namespace, table_name, iceberg_type", "ORDER BY 1, 2")
        return [(namespace, name) for namespace, name, found in rows if (found or "TABLE") == kind]

    def locations(self) -> dict[tuple[str, str], str]:
        """The metadata file of every table, all of one moment; without copies that are being built."""
        rows = self._query(
            "SELECT table_namespace, table_name, metadata_location", "AND iceberg_type IS DISTINCT FROM 'VIEW'"
        )
        return {(namespace, name): location for namespace, name, location in rows if not is_next(namespace)}

    def document(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """The metadata of a table or view as of now; None if there is none of that kind."""
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

    def tagged(self, tag: str) -> dict[tuple[str, str], int]:
        """The tables that have a tag, and the snapshot that it names in each."""
        with self._lock:
            known = self._tags.get(tag)
        if known is None:
            refs = {table: self.read(at).metadata.get("refs", {}) for table, at in self.locations().items()}
            known = {table: found[tag]["snapshot-id"] for table, found in refs.items() if tag in found}
            with self._lock:
                self._tags[tag] = known
        return known

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
        """Asks the database something. Raises SQLAlchemyError when it does not answer."""
        self._query("SELECT 1", "LIMIT 1")

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
