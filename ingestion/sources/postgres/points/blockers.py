"""Who a statement of ours waits for: sessions and prepared transactions, in words that name the way out."""

from dataclasses import dataclass

from psycopg.rows import class_row

from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import literal

MAX_NAMED = 5

# Also those that a blocker waits for itself: a queued ALTER TABLE blocks, the reader it waits for is the cause.
_SESSIONS = """
WITH RECURSIVE chain(pid, depth) AS (
  SELECT p, 1 FROM unnest(pg_blocking_pids(%(pid)s)) p
  UNION
  SELECT p, depth + 1 FROM chain CROSS JOIN LATERAL unnest(pg_blocking_pids(chain.pid)) p
  WHERE depth < 5 AND chain.pid <> 0 AND p <> %(pid)s)
SELECT c.pid, NULL AS gid, a.datname AS database, a.usename AS owner, nullif(a.application_name, '') AS application,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds, age(a.backend_xid) AS transactions
FROM (SELECT pid, min(depth) AS depth FROM chain WHERE pid <> 0 GROUP BY pid) c
LEFT JOIN pg_stat_activity a USING (pid) ORDER BY c.depth, seconds DESC NULLS LAST
"""
# A prepared transaction has no process; all its locks share a virtual transaction, the one on its own id among them.
_PREPARED = """
SELECT DISTINCT NULL::int AS pid, p.gid, p.database, p.owner, NULL AS application,
  extract(epoch FROM clock_timestamp() - p.prepared)::float8 AS seconds, NULL::int AS transactions
FROM pg_locks w JOIN pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
  AND (h.transactionid, h.database, h.relation) IS NOT DISTINCT FROM (w.transactionid, w.database, w.relation)
JOIN pg_locks own ON own.pid IS NULL AND own.locktype = 'transactionid'
  AND own.virtualtransaction = h.virtualtransaction
JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
WHERE NOT w.granted AND w.pid = ANY(%(pids)s) ORDER BY seconds DESC
"""


@dataclass(frozen=True)
class Blocker:
    """A session (`pid`) or a prepared transaction (`gid`) in the way.

    `seconds` since it began are None where our role may not see them; `transactions` have begun since it first wrote.
    """

    pid: int | None
    gid: str | None
    database: str | None
    owner: str | None
    application: str | None
    seconds: float | None
    transactions: int | None

    def described(self) -> str:
        """Who it is, and how it is ended."""
        facts = [f"{word} {value}" for word, value in (("database", self.database), ("user", self.owner)) if value]
        facts += [f"application {self.application}"] if self.application else []
        if self.seconds is not None:
            facts.append(f"open for {spoken(self.seconds)}")
        elif self.transactions is not None:
            facts.append(f"{self.transactions:,} transactions old")
        known = f" ({', '.join(facts)})" if facts else ""
        if self.gid is not None:
            gid = literal(self.gid)
            return f"prepared transaction {gid}{known}: run COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid} there"
        return f"process {self.pid}{known}: end its transaction, or run SELECT pg_terminate_backend({self.pid})"


def blockers_of(connection: SourceConnection, pid: int) -> list[Blocker]:
    """What the server process `pid` waits for, the nearest first; needs no right but to connect.

    How long another user's session has been open is shown to members of pg_read_all_stats alone.
    """
    with connection.cursor(row_factory=class_row(Blocker)) as cursor:
        sessions = cursor.execute(_SESSIONS, {"pid": pid}).fetchall()
        pids = [pid, *(blocker.pid for blocker in sessions)]
        return [*sessions, *cursor.execute(_PREPARED, {"pids": pids}).fetchall()][:MAX_NAMED]


def spoken(seconds: float) -> str:
    """`90 s`, `12 min`, `3 h 5 min`."""
    minutes = int(seconds // 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


_OLD = """
SELECT a.pid, NULL AS gid, a.datname AS database, a.usename AS owner, nullif(a.application_name, '') AS application,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds, age(a.backend_xid) AS transactions
FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
  AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - %(seconds)s * interval '1 second')
UNION ALL
SELECT NULL, p.gid, p.database, p.owner, NULL, extract(epoch FROM clock_timestamp() - p.prepared), age(p.transaction)
FROM pg_prepared_xacts p WHERE p.prepared < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY seconds DESC NULLS LAST
"""
YOUNG_TRANSACTIONS = 1000


def old_transactions(connection: SourceConnection, seconds: float) -> list[str]:
    """Transactions of the whole cluster that a new slot would wait for, open for so long, described.

    Where the role may not see since when, those count that a thousand others have begun after.
    """
    with connection.cursor(row_factory=class_row(Blocker)) as cursor:
        found = cursor.execute(_OLD, {"seconds": seconds}).fetchall()
    old = [b for b in found if b.seconds is not None or (b.transactions or 0) > YOUNG_TRANSACTIONS]
    return [blocker.described() for blocker in old][:MAX_NAMED]


def open_transactions(connection: SourceConnection) -> list[str]:
    """Transactions of the whole cluster that have written and are open, described; the oldest first."""
    with connection.cursor(row_factory=class_row(Blocker)) as cursor:
        found = cursor.execute(_OLD, {"seconds": 0}).fetchall()
    return [blocker.described() for blocker in found][:MAX_NAMED]


_ALTERING = """
SELECT DISTINCT l.pid, p.gid, coalesce(a.datname, p.database, current_database()) AS database,
  coalesce(a.usename, p.owner) AS owner, nullif(a.application_name, '') AS application,
  extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS seconds,
  age(a.backend_xid) AS transactions
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind = ANY(%(kinds)s)
JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks own ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
  AND own.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted
"""


def who_alters_types(connection: SourceConnection) -> list[str]:
    """Transactions that have altered a composite type of this database and are still open, described."""
    return _who_alters(connection, "c")


def who_alters_tables(connection: SourceConnection) -> list[str]:
    """Transactions that have locked a table of this database against readers and are still open, described."""
    return _who_alters(connection, "rp")


def _who_alters(connection: SourceConnection, kinds: str) -> list[str]:
    with connection.cursor(row_factory=class_row(Blocker)) as cursor:
        return [blocker.described() for blocker in cursor.execute(_ALTERING, {"kinds": list(kinds)})][:MAX_NAMED]
