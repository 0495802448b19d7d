"""What the catalog's rows and the metadata files say. It only reads: its sessions in the database are read-only."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Literal

from cachetools import LRUCache
from sqlalchemy import create_engine, text

from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_serve.store import Store

CACHED_BYTES = 64 << 20
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

    def document(self, kind: Kind, namespace: str, name: str) -> Document | None:
        """The metadata of a table or view as of now; None if there is none of that kind."""
        rows = self._query(
            "SELECT metadata_location, iceberg_type",
            "AND table_namespace = :namespace AND table_name = :name",
            namespace=namespace,
            name=name,
        )
        return next((self.read(location) for location, found in rows if (found or "TABLE") == kind), None)

    def read(self, location: str) -> Document:
        """A metadata file; they are never written twice. Raises FileNotFoundError."""
        with self._lock:
            known = self._documents.get(location)
        if known is None:
            content = self._store.read(location)
            known = Document(location, gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            if len(content) < CACHED_BYTES:
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
        statement = text(f"{what} FROM iceberg_tables WHERE catalog_name = :catalog {rest}")
        with self._engine.connect() as connection:
            return list(connection.execute(statement, {"catalog": self._catalog, **values}))
