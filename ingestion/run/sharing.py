"""Follows a source together with other followers: each reads its share of the parts, until one has to be alone.

Followers come and go: every one looks at how many there are, and claims or gives back parts. What they leave to one
writer is done by whichever of them gets the source's lease, as a follower of its own would; the others wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ingestion.pipeline.cycle import connections, note_if_read
from ingestion.pipeline.session import RowCounts, Session
from ingestion.pipeline.sharing import for_one_writer, read_turn, take_turn, work_alone
from ingestion.run.mirrors import Refresher
from ingestion.run.pace import NOTED_SECONDS, Last, flush_in, log_rows
from ingestion.sink.publish import Outdated
from ingestion.sources.base import HasParts, NextOf, OpenSource
from ingestion.sources.kinds import check_kind, source_of
from ingestion.state import claims, store
from ingestion.state import lease as leases
from ingestion.state.claims import Turn, TurnVoid
from ingestion.state.lease import Lease
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Source
from lakehouse.metrics import REGISTRY
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.follow")
LOOK_SECONDS = 2.0  # between two looks at who shares the source, and at what is for one writer, while nothing comes


def follow_shared(settings: Settings, source: Source, spark: SparkSession, stop: threading.Event) -> None:
    """Follows the source beside others until `stop` is set; raises what a cycle raises."""
    check_kind(settings, source)
    with ExitStack() as stack:
        catalog = open_catalog(settings)
        stack.callback(catalog.close)
        origin = source_of(settings, source.name, None, stop)
        session = Session(settings, catalog, spark, Lease(source.name, 0, ""), source, stop=stop, origin=origin)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", source.name)
        opened, states = stack.enter_context(connections(session))
        follower = Sharing(session, opened, states)
        ended = threading.Event()
        refresher = Refresher(replace(session, stop=ended), follower.refreshes)
        stack.callback(refresher.join)
        stack.callback(ended.set)
        follower.run()


@dataclass
class Sharing:
    """One of the followers that share a source, and the seat and turn that it has."""

    session: Session
    source: OpenSource
    states: CatalogConnection
    seat: Lease | None = None
    turn: Turn | None = None
    mine: dict[str, int] = field(default_factory=dict)
    _told: str = ""
    _noted: float = 0.0

    def __post_init__(self) -> None:
        assert isinstance(self.source, HasParts), "a source that `check_shared` lets pass"
        self.parts: HasParts = self.source
        self.parts.read_on_from(lambda: self.turn.base if self.turn else None, lambda: None)

    def run(self) -> None:
        """Shares the source, or is alone in it, until stopped."""
        while not self.session.stop.is_set():
            why = for_one_writer(self.session, self.source, self.states)
            if not (self.share() if why is None else self.be_alone(why)):
                self._stand_by()

    def be_alone(self, why: str) -> bool:
        """Does what is for one writer; whether this one could have the source."""
        name, seconds = self.session.name, self.session.limits.lease_seconds
        lease = leases.acquire(self.states, name, seconds, "follow")
        if lease is None:
            return False
        with leases.kept_alive(self.session.settings, lease):
            self._tell(f"alone for a moment: {why}")
            try:
                log_rows(name, work_alone(replace(self.session, lease=lease), self.source, self.states))
            except Outdated:
                return False  # it was altered once more
        return True

    def share(self) -> bool:
        """Reads its parts, turn by turn, while there are only events to read; whether it found a seat."""
        lease = leases.take_seat(self.states, self.session.name, self.session.limits.lease_seconds)
        if lease is None:
            return False
        session, last, self.seat = replace(self.session, lease=lease), Last(), lease
        try:
            with leases.kept_alive(session.settings, lease):
                while not session.stop.is_set() and self.looks(session):
                    what = self._until_due(session, last)
                    begun = time.monotonic()
                    if what is not None and self.read(session, what) is not None:
                        last.passed(begun, time.monotonic() - begun, had_rows=True)
        finally:
            self.seat, self.mine = None, {}
        return True

    def looks(self, session: Session) -> bool:
        """Whether there are only events to read; claims its share of the parts then."""
        self.source.check(self.states)
        if for_one_writer(session, self.source, self.states) is not None:
            return False
        if time.monotonic() - self._noted > NOTED_SECONDS:
            self._noted = time.monotonic()
            note_if_read(session, self.source, self.states)
        before, seconds = self.mine.keys(), session.limits.lease_seconds
        self.mine = claims.share(self.states, session.lease, seconds, self.parts.parts())
        if self.mine.keys() != before:
            self._tell(f"reading {', '.join(sorted(self.mine)) or 'nothing: others read all of it'}")
        return True

    def _until_due(self, session: Session, last: Last) -> NextOf | None:
        """What to read when that is due, None when it is time to look again."""
        looked = time.monotonic()
        while not session.stop.is_set() and time.monotonic() - looked < LOOK_SECONDS:
            what = self.parts.next_of(self.mine, session.limits.flush_bytes)
            rest = flush_in(session.limits, what.bytes, time.monotonic() - last.begun, last.took)
            if what.bytes and not rest:
                return what
            if not what.bytes:
                claims.note_read(self.states, session.lease, self.mine)
            session.stop.wait(min(rest, session.limits.poll_seconds) if what.bytes else session.limits.poll_seconds)
        return None

    def read(self, session: Session, what: NextOf) -> RowCounts | None:
        """Reads and publishes what is next; returns the rows, None where that has to be tried again."""
        begun = time.monotonic()
        try:
            self.turn = take_turn(session, self.states, self.mine, what)
            if self.turn is None:
                return None
            rows = read_turn(session, self.source, self.states, self.turn)
        except (Outdated, TurnVoid):
            if self.turn is not None:
                claims.give_up(self.states, self.turn)
            return None
        finally:
            self.turn = None
        log_rows(session.name, rows)
        if rows:
            REGISTRY.observe("lakehouse_publish_seconds", time.monotonic() - begun, source=session.name)
        return rows

    def refreshes(self) -> bool:
        """Whether this one refreshes the mirrors: of all that share the source, the first one does."""
        seat = self.seat
        with store.connect_catalog(self.session.settings) as states:
            return seat is not None and next(iter(leases.seats(states, self.session.name)), None) == seat.source

    def _stand_by(self) -> None:
        held = leases.holder_of(self.states, self.session.name)
        if held is not None:
            self._tell(f"{held[0]} holds the lease; standing by")
        self.session.stop.wait(self.session.limits.poll_seconds)

    def _tell(self, says: str) -> None:
        if says != self._told:
            log.info("source %r: %s", self.session.name, says)
            self._told = says
