"""A consistent point: a temporary slot whose exported snapshot stays readable, and the tables locked as they were.

From the point on the stream takes over: a transaction that the snapshot does not contain has a commit LSN at or above
it. The slot comes first, as making it may take as long as others' transactions are open, and a lock held meanwhile
would queue the application's own DDL, and behind that its reads. The locks come after; where a table was altered in
between, a later reader of the snapshot would see it as altered, or empty, so the point is made anew.
"""

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString

import psycopg

from ingestion.schema.positions import Lsn
from ingestion.sources.base import NotThere, Point
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.points.patience import Blocked, Patience, one_of
from ingestion.sources.postgres.standby import hasten, primary_of, source_now
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, relation

BRIEFLY: LiteralString = (
    "SET LOCAL lock_timeout = '2s'"  # how long the locks that are held already wait for the next one
)
RETRY_SECONDS = 0.2
GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege)

# Whatever alters a table, a partition or a child writes one of these rows anew; a rewrite gives it another file.
_DEFINITIONS = """
WITH RECURSIVE family(oid) AS (
  SELECT c.oid FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
  UNION SELECT i.inhrelid FROM family f JOIN pg_inherits i ON i.inhparent = f.oid)
SELECT c.oid::bigint, c.relname, c.xmin::text, pg_relation_filenode(c.oid)::bigint,
  (SELECT string_agg(concat_ws(' ', a.attnum, a.xmin), ',' ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0),
  (SELECT string_agg(concat_ws(' ', i.inhparent, i.xmin), ',' ORDER BY i.inhparent) FROM pg_inherits i
   WHERE i.inhrelid = c.oid)
FROM family f JOIN pg_class c ON c.oid = f.oid ORDER BY c.oid
"""


@contextmanager
def consistent_point(
    settings: Settings,
    source: str,
    tables: Sequence[RawTable],
    patience: Patience | None = None,
    before_try: Callable[[], None] = lambda: None,
) -> Iterator[Point[Lsn]]:
    """A point whose snapshot stays readable, and whose tables stay as they are, inside the `with` block.

    `before_try` is called before each try, so that its caller can find schema changes around the point.

    Waits for transactions that are older than the point, and for who has a table locked, holding nothing but an
    unfinished slot; raises Blocked when the patience is at its end, NotThere for a table that has gone meanwhile.
    """
    waits, begun = one_of(patience, settings, source), time.monotonic()
    while True:
        with ExitStack() as held:
            holder = held.enter_context(connect_source(settings, source))
            exporter = held.enter_context(connect_source(settings, source, replication=True))
            before = _definitions(holder, tables)
            before_try()
            point = _export(settings, source, exporter, waits)
            if _lock(holder, tables) and _definitions(holder, tables) == before:
                yield replace(point, check=partial(_check_held, source, holder))
                return
        # Who asks for a lock against readers has a transaction id by then: the next slot waits for it, and names it.
        if waits.stop.wait(RETRY_SECONDS) or (waits.seconds or math.inf) < time.monotonic() - begun:
            raise Blocked(f"source {source!r}: its tables are altered faster than they can be read; nothing was lost")


def _lock(holder: SourceConnection, tables: Sequence[RawTable]) -> bool:
    """Locks all of them in a transaction; false where somebody else keeps one locked."""
    holder.execute("BEGIN READ ONLY")
    holder.execute(BRIEFLY)
    for table in tables:
        try:
            _share(holder, relation(*table.relation))
        except psycopg.errors.LockNotAvailable:
            return False
        except GONE as error:
            reason = error.diag.message_primary
            raise NotThere(f"source {table.source!r}, table {table.name!r}: {reason}; nothing was lost") from None
    return True


def _share(holder: SourceConnection, quoted: str) -> None:
    """LOCK TABLE demands SELECT on the whole table; a query plans, and so locks partitions too, with columns alone."""
    if holder.execute("SELECT has_table_privilege(%s, 'SELECT')", (quoted,)).fetchone() == (True,):
        holder.execute(f"LOCK TABLE {quoted} IN ACCESS SHARE MODE")
        return
    holder.execute("SET LOCAL row_security = on")  # a policy is for the one who reads to refuse
    holder.execute(f"SELECT FROM {quoted} LIMIT 0")


def _check_held(source: str, holder: SourceConnection) -> None:
    """A session that was ended holds no lock; a standby ends it for what its primary has done to the tables."""
    try:
        holder.execute("SELECT")
    except psycopg.Error as error:
        raise LakehouseError(
            f"source {source!r}: the session that kept its tables as they are was ended while they were read "
            f"({' '.join(str(error).split())}); what was read is not published, and is read again"
        ) from None


def _export(settings: Settings, source: str, exporter: SourceConnection, patience: Patience) -> Point[Lsn]:
    name = f"lakehouse_snapshot_{uuid.uuid4().hex}"  # slots of all databases of a cluster share their names
    command = f"CREATE_REPLICATION_SLOT {ident(name)} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
    what, waited = "a consistent point (a new slot waits for every older transaction)", timedelta()
    with connect_source(settings, source) as clock, primary_of(settings, source, clock) as primary:
        begun_at = source_now(source, clock, primary).at
        if primary is clock:
            result = patience.execute(exporter, command, what)
            waited = timedelta(seconds=patience.waited)
        else:
            result = patience.execute(exporter, command, what, hasten(primary))
    if result.ntuples != 1:
        raise LakehouseError(f"source {source!r}: no consistent point: the server answered without one")
    lsn, snapshot = result.get_value(0, 1), result.get_value(0, 2)
    assert lsn is not None and snapshot is not None
    # No later than the point itself, so that no change behind it is of an earlier time.
    return Point(Lsn.parse(lsn.decode()), snapshot.decode(), begun_at + waited)


def _definitions(connection: SourceConnection, tables: Sequence[RawTable]) -> list[tuple[Any, ...]]:
    schemas, names = zip(*(table.relation for table in tables), strict=True)
    return connection.execute(_DEFINITIONS, (list(schemas), list(names))).fetchall()
