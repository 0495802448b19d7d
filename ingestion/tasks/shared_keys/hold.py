"""Holds the rows of a transaction until its end; then they land with the remaining row of each key last."""

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.tasks.shared_keys.events import Events, Landing
from ingestion.tasks.shared_keys.large import LargeTransaction
from ingestion.tasks.shared_keys.order import Order
from ingestion.tasks.shared_keys.row_events import AmbiguousRows

HELD_BYTES = 64 * 1024 * 1024  # of a table's rows; a transaction that is larger lands as it came
SPLIT = "records of one transaction landed and were kept aside, in a table whose rows may share a key for a while"
_UNREAD = "a record of the same transaction is in quarantine"
_TOO_MANY = "more records were kept aside than can be put in order at once"


@dataclass
class Held:
    """The rows of one table that wait for the end of their transaction; `stale` is why the table needs a repair.

    `key` are columns of the raw table. With `in_order` rows come in the order of commits, and only the newest
    transaction is waited for; else nothing is released before the end. `unread` are transactions (commit LSNs) of which
    a record could not be read.
    """

    key: tuple[str, ...]
    in_order: bool = True
    stale: str | None = None
    unread: set[int] = field(default_factory=set)
    _waiting: list[Landing] = field(default_factory=list)
    _large: LargeTransaction | None = None

    def add(self, landing: Landing) -> None:
        """Takes rows as they come."""
        self._waiting.append(landing)

    def release(self, *, ended: bool) -> list[Landing]:
        """The rows of the transactions that have ended, which are all with `ended`, and of one too large to wait."""
        waiting, self._waiting = self._waiting, []
        size = sum(landing.nbytes for landing in waiting)
        if not self.in_order and not ended:
            if size > HELD_BYTES:
                self._needs_resync(_TOO_MANY)
                return waiting
            self._waiting = waiting
            return []
        passed, waiting = self._of_large(waiting, ended=ended)
        whole, begun = (waiting, []) if ended or not waiting else _split(waiting, _newest(waiting))
        passed += self._resolved(whole)
        if sum(landing.nbytes for landing in begun) > HELD_BYTES:
            self._large = LargeTransaction(_newest(begun), self.key)
            more, begun = self._of_large(begun, ended=False)
            passed += more
        self._waiting = begun
        return passed

    def _of_large(self, waiting: list[Landing], *, ended: bool) -> tuple[list[Landing], list[Landing]]:
        """What comes of the transaction that was not waited for, and the rest."""
        if self._large is None:
            return [], waiting
        rest, same = _split(waiting, self._large.lsn)
        for landing in same:
            self._large.note(landing.rows)
        if rest or ended:
            if (reason := self._large.resync_reason()) is not None:
                self._needs_resync(reason)
            self._large = None
        return same, rest

    def _needs_resync(self, reason: str) -> None:
        self.stale = self.stale or f"several rows may have shared a key within a transaction: {reason}"

    def _resolved(self, parts: list[Landing]) -> list[Landing]:
        """The rows with each key's events in the order of the rows they belong to."""
        if not parts:
            return []
        events = Events(parts, self.key)
        order = Order(events)
        for of_key, empty in events.shared_keys():
            try:
                if events.lsn[of_key[0]] in self.unread:
                    raise AmbiguousRows(_UNREAD)
                order.arrange(of_key, events.by_row(of_key, empty=empty))
            except AmbiguousRows as reason:
                self._needs_resync(str(reason))
        return parts if order.natural else [order.landing(parts)]


def _newest(parts: list[Landing]) -> int:
    return max(pc.max(part.rows.column("_commit_lsn")).as_py() for part in parts)


def _split(parts: list[Landing], lsn: int) -> tuple[list[Landing], list[Landing]]:
    """The rows of other transactions, and those of this one."""
    others, same = [], []
    for part in parts:
        of_it = pc.equal(part.rows.column("_commit_lsn"), lsn)
        count = pc.sum(of_it).as_py() or 0
        if count < part.rows.num_rows:
            others.append(part if count == 0 else _filtered(part, pc.invert(of_it), lsn, same=False))
        if count:
            same.append(part if count == part.rows.num_rows else _filtered(part, of_it, lsn, same=True))
    return others, same


def _filtered(part: Landing, mask: pa.ChunkedArray, lsn: int, *, same: bool) -> Landing:
    compare = pc.equal if same else pc.not_equal
    texts = tuple(text.filter(compare(text.column("commit_lsn"), lsn)) for text in part.texts)
    return replace(part, rows=part.rows.filter(mask), images=part.images.filter(mask), texts=texts)
