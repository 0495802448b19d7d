"""A transaction as the owner of a source, by its `owner_url`."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings

LOCK_TIMEOUT = "10s"


@contextmanager
def as_owner(settings: Settings, source: str, failed: str) -> Iterator[SourceConnection]:
    """Commits what the block does, or nothing: raises LakehouseError that says what `failed` and why.

    The source has an `owner_url`.
    """
    url = settings.source(source).owner_url
    assert url is not None
    try:
        with _connect(settings, source, url.get_secret_value()) as owner:
            owner.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")  # what waits behind our locks waits no longer
            yield owner
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise LakehouseError(f"source {source!r}: as the owner, {failed}: {reason}") from None


def _connect(settings: Settings, source: str, url: str) -> SourceConnection:
    try:  # a database may be in SQL_ASCII
        return SourceConnection(psycopg.connect(url, connect_timeout=10, client_encoding="UTF8"))
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, "owner_url") from None
