"""The catalog's database: Iceberg's own rows, and the lake's state in the schema `lakehouse` beside them.

Its connections and those to a source are two types: a function that is given both cannot take one for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NewType

import psycopg

from lakehouse.servers.outage import ROOM, UP, is_full
from lakehouse.servers.retry import Unreachable

if TYPE_CHECKING:
    from lakehouse.settings import Settings


CatalogConnection = NewType("CatalogConnection", psycopg.Connection[Any])
SourceConnection = NewType("SourceConnection", psycopg.Connection[Any])

CUTS_CHANNEL = "lakehouse_cuts"
"""A publish with a cut notifies this channel with the source's name, when it commits."""


def connect_catalog(settings: Settings, **options: str) -> CatalogConnection:
    """A connection in autocommit mode, with further libpq options; raises Unreachable (a LakehouseError)."""
    try:
        connected = psycopg.connect(settings.catalog_dsn(), autocommit=True, connect_timeout=10, **options)  # type: ignore[arg-type]
    except psycopg.OperationalError as error:
        raise unreachable(error) from None
    return CatalogConnection(connected)


def unreachable(error: BaseException | None) -> Unreachable:
    """The error for a database that does not answer."""
    reason = str(error).strip().splitlines()[0]
    remedy = ROOM if is_full(reason) else f"check LAKEHOUSE_CATALOG_URL, {UP}"
    return Unreachable(f"catalog database: {reason}; {remedy}")
