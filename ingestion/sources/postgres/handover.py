"""The slot of a source that goes on with topics of the same database: it is read no more.

Only the slot is dropped. The publication stays, since the connector may read it, which no catalog tells.
"""

import psycopg

from ingestion.sources.postgres import connection as src
from ingestion.state.store import Stream
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.sql import literal

_HISTORY = """
SELECT (SELECT system_identifier::text FROM pg_control_system()), CASE WHEN pg_is_in_recovery()
  THEN (SELECT timeline_id FROM pg_control_checkpoint())
  ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END
"""  # a checkpoint tells a new timeline late


def check_slot_is_there(settings: Settings, name: str, stream: Stream) -> None:
    """Raises LakehouseError unless the source's URL leads to the slot that the stream was read from, in the history
    that it was read from: positions are compared with those of the topics, and the slot can be dropped afterwards."""
    where = f"source {name!r}: its url"
    with src.connect_source(settings, name) as connection:
        system, timeline = _history(connection, name)
        if system != stream.system_identifier:
            raise LakehouseError(
                f"{where} is of another database server (system identifier {system}) than its slot was read from "
                f"({stream.system_identifier}): set the url of that one; nothing has changed"
            )
        if src.read_slot(connection, stream.slot) is None:
            raise LakehouseError(
                f"{where} is of a database without its slot {stream.slot}: set the url of the database that has it, or "
                f"declare the slot again and `lakehouse ingest --recover {name}` where it is gone; nothing has changed"
            )
        if timeline != stream.timeline:
            raise LakehouseError(
                f"source {name!r}: its database is on timeline {timeline} and was read on {stream.timeline}: declare "
                f"the slot again, `lakehouse ingest --once {name}`, and move then; nothing has changed"
            )


def let_go(settings: Settings, name: str, slot: str) -> None:
    """Drops the slot if it is still there.

    Raises LakehouseError, which says how to drop it, where the role of the source's URL may not, and where something
    else reads it.
    """
    with src.connect_source(settings, name) as connection:
        try:
            if src.has_slot(connection, slot):
                src.free_slot(connection, name, slot)
                src.drop_slot(connection, slot)
        except (psycopg.Error, LakehouseError) as error:
            raise LakehouseError(
                f"source {name!r}: it has moved, and its former slot is still there and retains WAL "
                f"({str(error).splitlines()[0]}): run `SELECT pg_drop_replication_slot({literal(slot)})` in its "
                f"database, as a role with REPLICATION, then `lakehouse ingest --move {name}` again"
            ) from None


def _history(connection: SourceConnection, name: str) -> tuple[str, int]:
    """System identifier and timeline, as any role may ask for them."""
    try:
        row = connection.execute(_HISTORY).fetchone()
    except psycopg.Error as error:
        raise LakehouseError(
            f"source {name!r}: its database does not tell whether it is the one that was read "
            f"({str(error).splitlines()[0]}): grant EXECUTE on pg_control_system and pg_control_checkpoint"
        ) from None
    assert row is not None
    return str(row[0]), int(row[1])
