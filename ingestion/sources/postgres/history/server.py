"""Which running server answers: behind a pooler or a load balancer, two connections may reach two servers."""

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection

STARTED = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"


def started_at(connection: SourceConnection) -> int:
    """When the server was started, in microseconds, which tells it from any other; on a walsender's connection too."""
    result = connection.pgconn.exec_(STARTED.encode())
    value = result.get_value(0, 0) if result.ntuples == 1 else None
    if value is None:
        raise psycopg.OperationalError(result.error_message.decode().strip() or "no answer")
    return int(value)


def check_same_server(source: str, checked: int, answering: int) -> None:
    """Raises LakehouseError when another server answers than the one whose history was checked."""
    if answering != checked:
        raise LakehouseError(
            f"source {source!r}: another server answered than the one that was checked, or it was restarted in "
            "between; nothing was written; if it happens again, let the source's URL lead to the primary alone"
        )
