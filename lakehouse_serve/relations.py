"""The tables and views that a login may read: Trino's rules, applied to what the catalog has now.

What holds for a table and its namespace holds for its live state, which is listed under `live_<namespace>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.catalog.live_tables import committed_namespace, live_namespace
from lakehouse.servers.logins import Rights
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.reading import CatalogRows, Document, Kind


class Personal(Exception):
    """The relation has columns that the login may not read; the text names them."""


@dataclass(frozen=True)
class Relations:
    """Asks the catalog's rows and the grants at each call."""

    rows: CatalogRows
    grants: Grants

    def names(self, rights: Rights, kind: Kind) -> list[tuple[str, str]]:
        """Namespace and name of those that a login with these rights may know of."""
        return [name for name in self.rows.relations(kind) if self.grants.shows(rights, *name)]

    def live_names(self, rights: Rights) -> list[tuple[str, str]]:
        """Those of the tables that are shown as they are read, beside themselves."""
        shown = self.rows.live_namespaces()
        return [(live_namespace(space), name) for space, name in self.names(rights, "TABLE") if space in shown]

    def find(self, rights: Rights, kind: Kind, namespace: str, name: str) -> Document | None:
        """The metadata; None if there is no such relation that the login may know of. Raises Personal."""
        if "\0" in namespace + name:  # Postgres has no such text
            return None
        document = self.rows.document(kind, namespace, name) if self.grants.shows(rights, namespace, name) else None
        space = committed_namespace(namespace)
        if document is None and space is not None and kind == "TABLE" and self.grants.shows(rights, space, name):
            document, namespace = self.rows.live(space, name), space
        if document and (hidden := self.grants.hidden(rights.role, namespace, name, document.columns)):
            raise Personal(", ".join(sorted(hidden)))
        return document
