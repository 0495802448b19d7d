"""Connections to Dagster's database that a process keeps.

Dagster's commands connect for each of the questions that they ask all day: an idle daemon spent a third of its time on
that. A kept connection is looked at before each question, because the database may have been restarted meanwhile.
"""

from contextlib import closing
from typing import Any

import dagster as dg
import psycopg2
from sqlalchemy import Engine, Pool, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DisconnectionError

RECYCLE_SECONDS, OVERFLOW = 3_600, 20  # the defaults of `dagster-webserver`
SILENT_MILLISECONDS = 10_000  # after which a server that acknowledges nothing is gone


def keep_connections(instance: dg.DagsterInstance, statement_milliseconds: int) -> None:
    """Has this process keep the instance's connections; a statement may take so long, or with 0 as long as it does."""
    event.listen(Engine, "do_connect", _notice_silence)
    event.listen(Pool, "checkout", _check)
    instance.optimize_for_webserver(statement_milliseconds, RECYCLE_SECONDS, OVERFLOW)


def _notice_silence(dialect: Dialect, record: Any, arguments: Any, options: dict[str, Any]) -> None:
    """A kept connection to a server that has vanished would block its thread for a quarter of an hour."""
    if dialect.name == "postgresql":
        options.setdefault("tcp_user_timeout", SILENT_MILLISECONDS)


def _check(connection: Any, record: Any, proxy: Any) -> None:
    """Has the pool connect anew where the server was restarted: a run that is made by a connection and enqueued by
    another, which fails, would never be launched, and a page would show an error."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error
