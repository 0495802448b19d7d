"""Connections to the sample databases that turn database errors into one line with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from lakehouse.errors import LakehouseError
from lakehouse.servers.embedded import refuse_namesake
from lakehouse.settings import Settings

CONNECT_TIMEOUT_SECONDS = 10


def owner_url(settings: Settings, source: str) -> str:
    """The URL of the role that owns the sample's tables and may write to them; raises LakehouseError for a source that
    has its name alone."""
    refuse_namesake(settings, source)
    url = settings.source(source).owner_url
    if url is None:
        raise LakehouseError(
            f"source {source!r}: changing the sample needs the role that owns its tables: "
            f"set LAKEHOUSE_SOURCES__{source.upper()}__OWNER_URL"
        )
    return url.get_secret_value()


@contextmanager
def session(url: str, source: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit mode, with explicit transaction blocks.

    Raises LakehouseError for database errors inside the block.
    """
    try:
        with psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            application_name="lakehouse samples",
        ) as connection:
            yield connection
    except psycopg.Error as error:
        raise LakehouseError(f"source {source!r}: {_first_line(error)}; {_remedy(error, source)}") from error


def _remedy(error: psycopg.Error, source: str) -> str:
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
        return "its tables are not loaded: run `lakehouse samples`"
    if isinstance(error, errors.InsufficientPrivilege):
        return f"LAKEHOUSE_SOURCES__{source.upper()}__OWNER_URL must name the role that owns the tables"
    if error.sqlstate is None:  # no server has answered at this URL
        return f"run `lakehouse up`, or check LAKEHOUSE_SOURCES__{source.upper()}__OWNER_URL"
    return "the step was rolled back; fix the cause and run it again"


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".;: ") if lines else type(error).__name__
