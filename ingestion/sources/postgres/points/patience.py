"""Waiting for others' transactions: a new slot waits for every transaction that was open before it, in any database of
the cluster, and a lock for whoever holds it. Who that is, only the server knows, so it is asked while we wait.
"""

import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

import psycopg
from psycopg import pq

from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.points.blockers import blockers_of, open_transactions, spoken
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings

log = logging.getLogger("lakehouse.waiting")
FIRST_TOLD_SECONDS = 2.0
TOLD_AGAIN_SECONDS = (60.0, 300.0)
LOOK_SECONDS = 0.25
NO_SLOT_LEFT = b"53400"  # configuration_limit_exceeded, of a statement that makes a slot


class Blocked(LakehouseError):
    """Somebody else's transaction was in the way for longer than our patience."""


@dataclass
class Patience:
    """How long others are waited for: `seconds`, or until `stop` is set when that is None; tells whom it waits for.

    One Patience may serve many waits for the same thing: it tells once, after a minute, then every five minutes.
    """

    settings: Settings
    source: str
    seconds: float | None
    stop: Event = field(default_factory=Event)
    waited: float = 0.0  # for how long the newest statement was surely not answered
    _since: dict[str, float] = field(default_factory=dict)
    _told: dict[str, list[float]] = field(default_factory=dict)

    def execute(
        self, connection: SourceConnection, sql: str, what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> pq.abc.PGresult:
        """The result of a statement that may have to wait; it is cancelled when the patience ends.

        `meanwhile` is called again and again while it waits.
        The connection has no lock_timeout afterwards: to put it back would end a snapshot that the statement exported.
        Raises Blocked naming who is in the way, LakehouseError for an error.
        """
        pgconn, begun = connection.pgconn, time.monotonic()
        since, self.waited = self._since.setdefault(what, begun), 0.0
        pgconn.exec_(b"SET lock_timeout = 0")
        pgconn.send_query(sql.encode())
        try:
            while not _answered(pgconn):
                now = time.monotonic()
                self.waited = now - begun
                meanwhile()
                self._tell(connection, what, now - since)
                if self.stop.is_set():
                    raise LakehouseError(f"source {self.source!r}: stopped while waiting for {what}")
                if self.seconds is not None and now - since > self.seconds:
                    raise self._blocked(connection, what, now - since)
        except BaseException:
            _cancel(pgconn)
            raise
        self._goes_on(what)
        return _result(pgconn, self.source)

    def _tell(self, connection: SourceConnection, what: str, waited: float) -> None:
        told = self._told.setdefault(what, [])
        pauses = (FIRST_TOLD_SECONDS, *TOLD_AGAIN_SECONDS)
        if waited - (told[-1] if told else 0.0) >= pauses[min(len(told), len(pauses) - 1)]:
            told.append(waited)
            log.warning("source %r: waiting for %s, held up by %s", self.source, what, self._who(connection))

    def _goes_on(self, what: str) -> None:
        waited = time.monotonic() - self._since.pop(what)
        if self._told.pop(what, None):
            log.warning("source %r: %s: goes on after %s", self.source, what, spoken(waited))

    def _blocked(self, connection: SourceConnection, what: str, waited: float) -> Blocked:
        return Blocked(
            f"source {self.source!r}: waited {spoken(waited)} for {what}, held up by {self._who(connection)}; "
            "then run this again (nothing was lost)"
        )

    def _who(self, connection: SourceConnection) -> str:
        with connect_source(self.settings, self.source) as asking:
            found = [blocker.described() for blocker in blockers_of(asking, connection.info.backend_pid)]
        if not found and self.settings.source(self.source).primary_url is not None:
            with connect_source(self.settings, self.source, primary=True) as primary:
                found = open_transactions(primary) or [
                    "its primary, which lists its running transactions within 15 s of a change"
                ]
        return "; ".join(found) or "a transaction that has just ended"


def one_of(patience: Patience | None, settings: Settings, source: str) -> Patience:
    """The given one, or that of a command that is to end some time."""
    return patience or Patience(settings, source, settings.ingestion.wait_seconds)


def _answered(pgconn: pq.abc.PGconn) -> bool:
    """Whether the whole answer is here, after waiting for a moment."""
    pgconn.flush()
    if not pgconn.is_busy():
        return True
    select.select([pgconn.socket], [], [], LOOK_SECONDS)
    try:
        pgconn.consume_input()
    except psycopg.OperationalError:
        return True  # the connection is lost, which the result says
    return not pgconn.is_busy()


def _cancel(pgconn: pq.abc.PGconn) -> None:
    """A server process that waits for a lock would not notice that its client has gone."""
    pgconn.get_cancel().cancel()
    while pgconn.get_result() is not None:
        pass


def _result(pgconn: pq.abc.PGconn, source: str) -> pq.abc.PGresult:
    """The last result; raises Unreachable for a lost connection, LakehouseError for an error of the server."""
    last: pq.abc.PGresult | None = None
    while (result := pgconn.get_result()) is not None:
        last = result
        if result.status == pq.ExecStatus.FATAL_ERROR:
            break
    if last is not None and last.status != pq.ExecStatus.FATAL_ERROR:
        return last
    reason = (last.error_message if last else pgconn.error_message).decode().strip().splitlines()[0]
    if last is not None and last.error_field(pq.DiagnosticField.SQLSTATE) == NO_SLOT_LEFT:
        reason += (
            ": raise max_replication_slots and restart Postgres, or drop slots that nobody reads any more; "
            f"`lakehouse prepare {source} --check` counts them (nothing was lost)"
        )
    while pgconn.status == pq.ConnStatus.OK and pgconn.get_result() is not None:
        pass
    kind: Callable[[str], LakehouseError] = LakehouseError if pgconn.status == pq.ConnStatus.OK else Unreachable
    raise kind(f"source {source!r}: {reason}")
