"""The tables and views that a role may read: Trino's rules, applied to what the catalog has now.

What holds for a table holds for its live state, which is listed under `live_<namespace>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.catalog.live_tables import committed_namespace, live_namespace
from lakehouse.servers.logins import Role
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.reading import CatalogRows, Document, Kind


class Personal(Exception):
    """The relation has columns that the role may not read; the text names them."""


@dataclass(frozen=True)
class Relations:
    """Asks the catalog's rows and the grants at each call."""

    rows: CatalogRows
    grants: Grants

    def names(self, role: Role, kind: Kind) -> list[tuple[str, str]]:
        """Namespace and name of those that the role may know of."""
        return [name for name in self.rows.relations(kind) if self.grants.shows(role, *name)]

    def live_names(self, role: Role) -> list[tuple[str, str]]:
        """Those of the tables that are shown as they are read, beside themselves."""
        shown = self.rows.live_namespaces()
        return [(live_namespace(space), name) for space, name in self.names(role, "TABLE") if space in shown]

    def find(self, role: Role, kind: Kind, namespace: str, name: str) -> Document | None:
        """The metadata; None if there is no such relation that the role may know of. Raises Personal."""
        if "\0" in namespace + name:  # Postgres has no such text
            return None
        document = self.rows.document(kind, namespace, name) if self.grants.shows(role, namespace, name) else None
        space = committed_namespace(namespace)
        if document is None and space is not None and kind == "TABLE" and self.grants.shows(role, space, name):
            document, namespace = self.rows.live(space, name), space
        if document and (hidden := self.grants.hidden(role, namespace, name, document.columns)):
            raise Personal(", ".join(sorted(hidden)))
        return document
