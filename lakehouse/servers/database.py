"""The catalog's database: Iceberg's own rows, and the lake's state in the schema `lakehouse` beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from lakehouse.servers.retry import Unreachable

if TYPE_CHECKING:
    from lakehouse.settings import Settings


def connect_catalog(settings: Settings, **options: str) -> psycopg.Connection[Any]:
    """A connection in autocommit mode, with further libpq options; raises Unreachable (a LakehouseError)."""
    try:
        return psycopg.connect(settings.catalog_dsn(), autocommit=True, connect_timeout=10, **options)  # type: ignore[arg-type]
    except psycopg.OperationalError as error:
        raise unreachable(error) from None


def unreachable(error: BaseException | None) -> Unreachable:
    """What to tell when the database does not answer."""
    reason = str(error).strip().splitlines()[0]
    return Unreachable(f"catalog database: {reason}; check LAKEHOUSE_CATALOG_URL or run `lakehouse up`")
