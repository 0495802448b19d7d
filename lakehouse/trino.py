"""Connections to Trino."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse.settings import Settings

if TYPE_CHECKING:
    from trino.dbapi import Connection


def connect(settings: Settings) -> Connection:
    """A DB-API connection to the lake's catalog; nothing is sent before the first query."""
    from trino.auth import BasicAuthentication
    from trino.dbapi import connect as trino_connect

    trino = settings.trino
    auth = BasicAuthentication(trino.user, trino.password.get_secret_value()) if trino.password else None
    return trino_connect(
        host=trino.host, port=trino.port, user=trino.user, catalog=trino.catalog, http_scheme=trino.http_scheme,
        auth=auth, source="lakehouse",
    )  # fmt: skip


def query(settings: Settings, sql: str) -> list[list[Any]]:
    """All rows of one statement."""
    cursor = connect(settings).cursor()
    cursor.execute(sql)
    return cursor.fetchall()
