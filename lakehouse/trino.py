"""Connections to Trino."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse.retry import Unreachable
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from trino.dbapi import Connection

NONE: Mapping[str, str] = MappingProxyType({})


def connect(settings: Settings, properties: Mapping[str, str] = NONE) -> Connection:
    """A DB-API connection to the lake's catalog, with session properties of that; nothing is sent before a query."""
    from trino.auth import BasicAuthentication
    from trino.dbapi import connect as trino_connect

    trino = settings.trino
    auth = BasicAuthentication(trino.user, trino.password.get_secret_value()) if trino.password else None
    return trino_connect(
        host=trino.host, port=trino.port, user=trino.user, catalog=trino.catalog, http_scheme=trino.http_scheme,
        auth=auth, source="lakehouse",
        session_properties={f"{trino.catalog}.{name}": value for name, value in properties.items()},
    )  # fmt: skip


@contextmanager
def answering(settings: Settings) -> Iterator[None]:
    """Turns a failure to reach Trino into Unreachable (a LakehouseError); what is wrong with a query passes through."""
    from trino.exceptions import HttpError, TrinoAuthError, TrinoConnectionError

    try:
        yield
    except (TrinoConnectionError, TrinoAuthError, HttpError, OSError) as error:
        where = f"{settings.trino.host}:{settings.trino.port}"
        raise Unreachable(
            f"Trino at {where} does not answer ({_reason(error)}): check LAKEHOUSE_TRINO__HOST and …__PORT, "
            "or run `lakehouse up`"
        ) from None


def _reason(error: Exception) -> str:
    """The system's own words where there are any: the client wraps them in pages."""
    text = " ".join(str(error).split())
    system = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
    return system[1] if system else text[:200]


def query(settings: Settings, sql: str, properties: Mapping[str, str] = NONE) -> list[list[Any]]:
    """All rows of one statement, run with session properties of the lake's catalog."""
    cursor = connect(settings, properties).cursor()
    cursor.execute(sql)
    return cursor.fetchall()
