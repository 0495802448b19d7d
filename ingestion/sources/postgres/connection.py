"""Connections to a source database, and what is checked there before a cycle reads anything.

Every check here guards against a way of losing rows without an error: Postgres only warns about a missing
publication, forgets a slot, or answers from another cluster after a restore.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.rows import dict_row

from ingestion.schema.positions import Lsn
from ingestion.sources.base import SourceNow
from ingestion.sources.postgres.history.server import check_same_server, started_at
from ingestion.sources.postgres.history.signature import confirmed_below, is_signed, signed
from ingestion.sources.postgres.unprepared import fill_sample
from ingestion.state.store import Cluster
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.sql import ident, literal
from lakehouse.text.urls import parse_url

# Values arrive as text, so everything that changes how Postgres prints a value is pinned; all but lc_monetary, which
# decides what a value of money is: an integer in the smallest unit of its currency. The role's is one for every
# connection. `row_security = off` turns a policy that would silently filter rows into an error; ADBC knows types by
# the names of their functions, and none that is quoted.
PINNED = {
    "DateStyle": "ISO,YMD",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "xmloption": "content",
    "row_security": "off",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "lock_timeout": "60000",
    "idle_in_transaction_session_timeout": "0",
}


log = logging.getLogger("lakehouse.standbys")

Execute = Callable[[SourceConnection, str, str], PGresult]
APPLICATION = "lakehouse"
FAILOVER_SLOTS = 170_000
# Up to where a standby has replayed the WAL, or a primary has written it.
WAL_END = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"
OWN_READER_PATIENCE_SECONDS = 0.5
# The process of a pid if it is a connection of ours, which has the name that this one has.
_OURS = (
    "FROM pg_stat_activity WHERE pid = %s AND usename = current_user"
    " AND application_name = current_setting('application_name')"
)
# On RDS the right comes with a role, and the role's own attribute stays unset.
MAY_REPLICATE = """
SELECT rolreplication OR rolsuper OR EXISTS (SELECT FROM pg_roles AS g
  WHERE g.rolname = 'rds_replication' AND pg_has_role(current_user, g.oid, 'MEMBER'))
FROM pg_roles WHERE rolname = current_user
"""
KEEPALIVES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}


def source_url(settings: SourceSettings, **session: str) -> str:
    """The run-time role's URL with every session setting pinned that changes how values are printed, and `session`."""
    url = parse_url(settings.url.get_secret_value())
    given = dict(url.options)
    pinned = " ".join(f"-c {name}={value}" for name, value in (PINNED | session).items())
    given["options"] = f"{given.get('options', '')} {pinned}".strip()
    given["client_encoding"] = "UTF8"
    given.setdefault("application_name", APPLICATION)
    given.setdefault("connect_timeout", "10")
    for name, seconds in KEEPALIVES.items():  # a network that swallows everything is found out within a minute
        given.setdefault(name, seconds)
    given |= {"host": url.host, "port": str(url.port), "user": url.user, "password": url.password}
    given["dbname"] = url.database
    return "postgresql://?" + urlencode({key: value for key, value in given.items() if value}, quote_via=quote)


def connect_source(
    settings: Settings, source: str, *, replication: bool = False, primary: bool = False
) -> SourceConnection:
    """A connection in autocommit mode; raises Unreachable (a LakehouseError) that names the source and the remedy.

    With `primary`, to the primary where the source is a standby.
    """
    configured, key = settings.source(source), "url"
    if primary and configured.primary_url is not None:
        configured, key = configured.model_copy(update={"url": configured.primary_url}), "primary_url"
    try:
        url = source_url(configured)
    except LakehouseError as error:
        raise LakehouseError(f"source {source!r}: {error}") from None
    try:
        connected = psycopg.connect(f"{url}&replication=database" if replication else url, autocommit=True)
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, key) from None
    _check_pinned(source, connected)
    return SourceConnection(connected)


def _check_pinned(source: str, connection: psycopg.Connection[Any]) -> None:
    """Raises LakehouseError where the settings above have not arrived; on a walsender's connection, too.

    Policies would filter rows in silence then, and floats come with fewer digits. Each is asked: PgBouncer from 1.20 on
    passes those on that a server reports by itself, as DateStyle, and drops the others.
    """
    names = ", ".join(literal(name.lower()) for name in PINNED)
    asked = f"SELECT name, setting FROM pg_catalog.pg_settings WHERE lower(name) IN ({names}) ORDER BY lower(name)"
    result = connection.pgconn.exec_(asked.encode())
    if not result.ntuples:
        connection.close()
        raise LakehouseError(f"source {source!r}: its settings cannot be read: {result.error_message.decode().strip()}")
    pinned = {name.lower(): value for name, value in PINNED.items()}
    for row in range(result.ntuples):
        name, value = ((result.get_value(row, column) or b"").decode() for column in (0, 1))
        if value.replace(" ", "") == pinned[name.lower()]:
            continue
        connection.close()
        raise LakehouseError(
            f"source {source!r}: its sessions do not have the settings that ingestion asks for ({name} is {value}): "
            "something between drops `options`, such as a pooler with ignore_startup_parameters: connect to the "
            "database itself"
        )


def lsn_text(lsn: int) -> str:
    """An LSN as Postgres writes it, such as 16/B374D848."""
    return Lsn(lsn).text


@dataclass(frozen=True)
class Slot:
    """A logical slot: everything below `confirmed_lsn` is confirmed, `signed` if this product did so.

    `lag_bytes` is the WAL it makes the server keep, `invalid` why it is of no use any more, `synced` whether Postgres
    copied it from the primary while this server was a standby.
    """

    confirmed_lsn: int
    signed: bool
    active_pid: int | None
    lag_bytes: int
    wal_status: str
    invalid: str | None = None
    synced: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the stream can go on from the slot."""
        return self.invalid is None and self.wal_status in ("reserved", "extended", "unreserved")


def identify(settings: Settings, source: str, beside: SourceConnection, *, primary: bool = False) -> Cluster:
    """Asks for the cluster's identity over the replication protocol, which also proves the REPLICATION right.

    Raises LakehouseError when another server answers than `beside`.
    """
    system, timeline = _walsender_says(settings, source, beside, "IDENTIFY_SYSTEM", primary=primary)
    return Cluster(system.decode(), int(timeline))


def timeline_history(settings: Settings, source: str, beside: SourceConnection, timeline: int) -> str:
    """The history file of the cluster's timeline; raises LakehouseError as `identify` does."""
    return _walsender_says(settings, source, beside, f"TIMELINE_HISTORY {timeline}")[1].decode(errors="replace")


def _walsender_says(
    settings: Settings, source: str, beside: SourceConnection, command: str, *, primary: bool = False
) -> tuple[bytes, bytes]:
    """The first two columns of the answer."""
    try:
        with connect_source(settings, source, replication=True, primary=primary) as connection:
            check_same_server(source, started_at(beside), started_at(connection))
            result = connection.pgconn.exec_(command.encode())
            if result.ntuples != 1:
                raise LakehouseError(f"source {source!r}: {result.error_message.decode().strip()}")
            first, second = result.get_value(0, 0), result.get_value(0, 1)
    except Unreachable as error:
        if "replication" in str(error) or "walsender" in str(error).lower():
            role = parse_url(settings.source(source).url.get_secret_value()).user
            raise LakehouseError(
                f"source {source!r}: role {role} may not replicate: "
                f"run `ALTER ROLE {ident(role)} REPLICATION` as a superuser"
            ) from None
        raise
    assert first is not None and second is not None
    return first, second


def check_server(connection: SourceConnection, source: str) -> None:
    """Raises LakehouseError when the server cannot decode its WAL or the role may not."""
    level = _value(connection, "SELECT current_setting('wal_level')")
    if level != "logical":
        raise LakehouseError(
            f"source {source!r}: wal_level is {level}, not logical: run `ALTER SYSTEM SET wal_level = logical`"
            " as a superuser and restart Postgres"
        )
    role = _value(connection, f"SELECT CASE WHEN ({MAY_REPLICATE}) THEN NULL ELSE current_user END")
    if role is not None:
        raise LakehouseError(
            f"source {source!r}: role {role} may not replicate: "
            f"run `ALTER ROLE {ident(role)} REPLICATION` as a superuser"
        )


def publication_oid(settings: Settings, connection: SourceConnection, source: str, publication: str) -> int:
    """The oid of the publication; raises LakehouseError when it is missing or leaves operations out.

    It may carry inserts and truncates only: whether that will do is for each table to say (`meta.raw.changes`).
    """
    row = connection.execute(
        "SELECT oid::bigint, pubinsert AND pubtruncate AND pubupdate = pubdelete"
        " FROM pg_publication WHERE pubname = %s",
        (publication,),
    ).fetchone()
    if row is None:
        remedy = fill_sample(settings, connection, source) or f"`lakehouse prepare {source}`"
        raise LakehouseError(f"source {source!r}: publication {publication!r} does not exist: run {remedy}")
    if not row[1]:
        raise LakehouseError(
            f"source {source!r}: publication {publication!r} leaves out some of insert, update, delete, truncate: "
            f"run `ALTER PUBLICATION {ident(publication)} SET (publish = 'insert, update, delete, truncate')`"
        )
    return int(row[0])


def read_slot(connection: SourceConnection, slot: str) -> Slot | None:
    """The slot's state, or None when there is none in this database."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint AS confirmed_lsn, active_pid, wal_status,"
            f" coalesce(({WAL_END} - restart_lsn)::bigint, 0) AS lag_bytes,"
            " coalesce(to_jsonb(s) ->> 'invalidation_reason',"  # since Postgres 17
            " CASE to_jsonb(s) ->> 'conflicting' WHEN 'true' THEN 'rows_removed' END) AS reason,"  # since 16
            " to_jsonb(s) ->> 'synced' AS synced"
            " FROM pg_replication_slots s"
            " WHERE slot_name = %s AND database = current_database() AND plugin = 'pgoutput'",
            (slot,),
        ).fetchone()
    if row is None:
        return None
    status = row["wal_status"] or "unknown"
    invalid = row["reason"] or ("wal_removed" if status == "lost" else None)
    confirmed = row["confirmed_lsn"] or 0
    return Slot(
        confirmed_below(confirmed), is_signed(confirmed), row["active_pid"], row["lag_bytes"], status, invalid,
        row["synced"] == "true",
    )  # fmt: skip


def source_now(connection: SourceConnection) -> SourceNow[Lsn]:
    """The flushed end of the WAL, the source's clock, and its next transaction id (64 bits).

    Raises LakehouseError on a standby, which has no WAL of its own.
    """
    try:
        row = connection.execute(
            "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, clock_timestamp(),"
            " pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        ).fetchone()
    except psycopg.errors.ObjectNotInPrerequisiteState:
        raise _standby(connection) from None
    assert row is not None
    return SourceNow(Lsn(row[0]), row[1], int(row[2]))


# The sizes of XLogPageHeaderData and, on a segment's first page, XLogLongPageHeaderData, aligned to 8 bytes
COMMITTED = """SELECT lsn - CASE WHEN mod(lsn, segment) = 40 THEN 40 WHEN mod(lsn, page) = 24 THEN 24 ELSE 0 END FROM (
 SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS lsn, current_setting('wal_block_size')::bigint AS page,
 pg_size_bytes(current_setting('wal_segment_size')) AS segment) AS now"""


def committed_lsn(connection: SourceConnection) -> Lsn:
    """An LSN not below the commit of anything visible now, also of transactions that did not wait for the flush.

    Where the WAL ends with a page, Postgres says where the next record will begin: behind the header of the next page,
    where nothing ends. In an idle source no reader would ever reach that. Raises LakehouseError on a standby.
    """
    try:
        return Lsn(_value(connection, COMMITTED))
    except psycopg.errors.ObjectNotInPrerequisiteState:
        raise _standby(connection) from None


def lock_timeout_seconds(connection: SourceConnection) -> float:
    """How long a statement of the connection waits for a lock."""
    return int(_value(connection, "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'")) / 1000


def create_slot(connection: SourceConnection, slot: str, execute: Execute, *, standby: bool = False) -> Lsn:
    """Makes the permanent slot and returns its LSN; `execute` waits for the transactions that are older than it.

    Standbys that synchronize slots take it over (Postgres 17 and newer); to all others that makes no difference. A slot
    that is made on a `standby` stays there.
    """
    failover = ", failover => true" if connection.info.server_version >= FAILOVER_SLOTS and not standby else ""
    sql = f"SELECT lsn FROM pg_create_logical_replication_slot({literal(slot)}, 'pgoutput'{failover})"
    result = execute(connection, sql, f"slot {slot} to be made (a new slot waits for every older transaction)")
    connection.execute("RESET lock_timeout")  # which waiting took off
    lsn = result.get_value(0, 0)
    assert lsn is not None
    return Lsn.parse(lsn.decode())


_STANDBYS_AWAY = """
SELECT string_agg(name, ', ') FROM (SELECT trim(both ' "' FROM unnest(string_to_array(
  current_setting('synchronized_standby_slots', true), ','))) AS name) AS named
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = name AND active)
"""


def standbys_away(connection: SourceConnection) -> str | None:
    """The slots of standbys without which Postgres holds back the stream, and that nobody reads; None if all are read.

    Primaries have them since Postgres 17 (`synchronized_standby_slots`).
    """
    away: str | None = _value(connection, _STANDBYS_AWAY)
    return away


def check_standbys(connection: SourceConnection, source: str) -> None:
    """Raises LakehouseError while a standby is away that the stream would wait for without a word."""
    if away := standbys_away(connection):
        raise LakehouseError(
            f"source {source!r}: it sends nothing until its standby is back: nobody reads slot {away}, which "
            "synchronized_standby_slots names: start the standby, or take its slot out of that setting"
        )


def let_standbys_take_over(settings: Settings, source: str, connection: SourceConnection, slot: str) -> None:
    """Has standbys synchronize a slot that an earlier release has made, where the server can (`create_slot`)."""
    if connection.info.server_version < FAILOVER_SLOTS:
        return
    if not _value(connection, f"SELECT NOT failover FROM pg_replication_slots WHERE slot_name = {literal(slot)}"):
        return
    with connect_source(settings, source, replication=True) as walsender:
        result = walsender.pgconn.exec_(f"ALTER_REPLICATION_SLOT {ident(slot)} (FAILOVER true)".encode())
    if result.error_message:  # a server that forbids it is read as before
        said = result.error_message.decode().strip()
        log.warning("source %r: slot %s is not synchronized to standbys: %s", source, slot, said)


def stream_options(publication: str) -> dict[str, str]:
    """How pgoutput is asked, by a peek and by a walsender alike, so that both deliver the same messages."""
    return {"proto_version": "1", "publication_names": ident(publication), "messages": "true"}


def peek(slot: str, publication: str, upto_lsn: int, unfinished: bool = False) -> str:
    """SQL for the slot's messages up to the last commit below `upto_lsn`, as a FROM item; it consumes nothing.

    With `unfinished`, transactions too large for the server's memory come in blocks before they end, for
    `pgoutput.whole_transactions` (Postgres 14 and newer).
    """
    options = stream_options(publication) | ({"proto_version": "2", "streaming": "on"} if unfinished else {})
    listed = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in options.items())
    return f"pg_logical_slot_peek_binary_changes({literal(slot)}, {literal(lsn_text(upto_lsn))}, NULL, {listed})"


def aborted(connection: SourceConnection, xids: Sequence[int]) -> list[int]:
    """Which of some transactions and subtransactions, by their ids of 64 bits, were rolled back."""
    rows = connection.execute(
        "SELECT xid FROM unnest(%s::bigint[]) AS xid WHERE pg_xact_status(xid::text::xid8) = 'aborted'", (list(xids),)
    )
    return [row[0] for row in rows]


def has_slot(connection: SourceConnection, slot: str) -> bool:
    """Whether the server has a slot of that name, of whatever database and plugin: names are the server's."""
    found = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s)"
    return connection.execute(found, (slot,)).fetchone() == (True,)


def free_slot(connection: SourceConnection, source: str, slot: str, patience: float = 15.0) -> None:
    """Waits until nothing reads the slot; what an earlier process of ours left behind is ended.

    A server notices a killed client only when it next looks at the connection. Whoever calls this holds the source's
    lease, so no reader of ours is in the right. Raises LakehouseError naming a reader that stays.
    """
    begun = time.monotonic()
    while pid := _reader(connection, slot):
        waited = time.monotonic() - begun
        if waited > patience:
            raise _read_by_another(source, slot, pid)
        if waited > OWN_READER_PATIENCE_SECONDS:
            connection.execute(f"SELECT pg_terminate_backend(pid) {_OURS}", (pid,))
        time.sleep(0.02)


def check_reader(connection: SourceConnection, source: str, slot: str) -> None:
    """Raises LakehouseError while the slot is read by a process that `free_slot` would not end."""
    pid = _reader(connection, slot)
    if pid and connection.execute(f"SELECT 1 {_OURS}", (pid,)).fetchone() is None and _reader(connection, slot) == pid:
        raise _read_by_another(source, slot, pid)


def _reader(connection: SourceConnection, slot: str) -> int | None:
    """The process that reads a slot."""
    query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = {literal(slot)}"
    pid: int | None = _value(connection, query)
    return pid


def _read_by_another(source: str, slot: str, pid: int) -> LakehouseError:
    return LakehouseError(
        f"source {source!r}: slot {slot} is being read by process {pid} of the server, which is not ours: end "
        f"it, or give this lake a slot of its own with LAKEHOUSE_SOURCES__{source.upper()}__SLOT"
    )


def drop_slot(connection: SourceConnection, slot: str) -> None:
    """Drops an inactive slot; nothing can be read from it any more."""
    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def advance_slot(connection: SourceConnection, slot: str, lsn: int) -> None:
    """Confirms everything below `lsn`, which must be in the lake, unless the slot has come that far."""
    connection.execute(
        "SELECT pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn) FROM pg_replication_slots"
        " WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(lsn)s::pg_lsn",
        {"slot": slot, "lsn": lsn_text(signed(lsn))},
    )


def _standby(connection: SourceConnection) -> LakehouseError:
    at = connection.info
    return LakehouseError(
        f"database {at.dbname!r} at {at.host}:{at.port} is a standby in recovery: "
        "correct the source's URL to the primary, or name that in primary_url as well (Postgres 16 and newer)"
    )


def _value(connection: SourceConnection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return row[0] if row else None
