"""Who may read which table: Trino's roles, applied to whole tables.

Trino hides a column; a client that reads files cannot be kept from one. So a table with columns that are hidden from
readers is refused to them as a whole. Logins and rules are read again when their files change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from lakehouse.declarations.access.rules import RELATIONS, Relation, read_relations
from lakehouse.servers.logins import GROUPS, PASSWORDS, Login, Rights, Role, hash_password, matches, read_logins
from lakehouse_serve.access.tokens import Grant

Stamp = tuple[int, ...]
NOBODYS = hash_password("")


class Read(NamedTuple):
    """What the files say, and when they were changed."""

    logins: dict[str, Login]
    relations: dict[tuple[str, str], Relation]
    stamp: Stamp


class Grants:
    """The logins and relations of a folder that Trino reads too. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = Read({}, {}, ())
        self._lock = Lock()  # else a slow thread would put back what it read before a password was withdrawn

    def rights(self, grant: Grant) -> Rights | None:
        """Those of whom it was issued to; None if the login is gone, or has another password by now."""
        self.refresh()
        found = self._read.logins.get(grant.login)
        return found.rights if found and _mark(found) == grant.mark else None

    def mark(self, login: str, password: str) -> str | None:
        """What the login's grants carry; None if login and password do not belong together."""
        self.refresh()
        found = self._read.logins.get(login)
        hashed = found.hashed if found else NOBODYS  # so that the time it takes does not tell which logins there are
        return _mark(found) if matches(hashed, password) and found else None

    def shows(self, rights: Rights, namespace: str, name: str) -> bool:
        """Whether a login with these rights may know of the relation."""
        if not rights.covers(namespace):
            return False
        relation = self._read.relations.get((namespace, name))
        return rights.role == "writer" or (relation is not None and relation.least in {"reader", rights.role})

    def names(self, namespace: str, name: str) -> bool:
        """Whether the rules name the relation, be it closed or not."""
        return (namespace, name) in self._read.relations

    def hidden(self, role: Role, namespace: str, name: str, columns: Collection[str]) -> frozenset[str]:
        """The columns of a relation that the role may not read; it may read the relation if there are none."""
        relation = self._read.relations.get((namespace, name))
        if role != "reader" or relation is None:
            return frozenset()
        return relation.personal & {column.lower() for column in columns}

    def refresh(self) -> None:
        """Reads logins and relations again if their files have changed; whoever asks for a login does so by itself."""
        with self._lock:
            stamp = tuple(_modified(self._folder / name) for name in (PASSWORDS, GROUPS, RELATIONS))
            if stamp != self._read.stamp:
                relations = {(found.schema, found.name): found for found in read_relations(self._folder)}
                self._read = Read(read_logins(self._folder), relations, stamp)


def _mark(login: Login) -> str:
    return hashlib.sha256(login.hashed.encode()).hexdigest()[:16]


def _modified(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0
