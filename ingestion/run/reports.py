"""What ingestion tells its callers: plain frozen data, no server handles."""

from dataclasses import dataclass
from datetime import datetime

from ingestion.state.lease import Follower
from ingestion.state.progress import Progress


@dataclass(frozen=True)
class TableReport:
    """One raw table after a cycle; `rows` counts what this cycle added, by `_op`.

    `columns` are all of the raw table. `left` are those that the source has no more, and former types' values.
    """

    name: str
    snapshot_id: int | None
    rows: dict[str, int]
    total_rows: int
    lag_bytes: int
    columns: tuple[tuple[str, str], ...]
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Aside:
    """A table that is in no cut now: its state (see `ingestion.state.store.TableState`) and why."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class SourceReport:
    """One source after it was brought up to a position; `tables` are in the cut, `aside` are not.

    `unchanged` are in the cut too, but nothing was asked of them. `seconds` is how long that took, None when another
    writer was waited for.
    """

    source: str
    epoch: int
    cut_position: str
    cut_lsn: int
    cut_at: datetime
    tables: tuple[TableReport, ...]
    aside: tuple[Aside, ...] = ()
    unchanged: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def rows_per_second(self) -> float | None:
        """All rows that this work added over its time; None when another writer did it."""
        rows = sum(sum(table.rows.values()) for table in self.tables)
        return rows / self.seconds if self.seconds else None


@dataclass(frozen=True)
class TableStatus:
    """One table of a source: whether the stream reaches it, why not, and how far it is."""

    name: str
    state: str
    reason: str | None
    position: str
    lsn: int


@dataclass(frozen=True)
class SourceStatus:
    """How far a source is in the lake, without Spark. Lags are in bytes and seconds.

    Positions are text, as the source writes them; `position_lsn`, `lsn` and `cut_lsn` are numbers that compare with
    `_commit_lsn`.

    `slot_lag_bytes` is the WAL that the source keeps for the slot, `behind_bytes` what lies beyond the lake's position,
    and `lag_seconds` how long ago that position moved last, zero when nothing lies beyond it. `slot_state` is
    Postgres's wal_status, or why the slot is of no use: `missing`, `wal_removed`, `idle_timeout` ... `slot_is_sound` is
    whether the stream can go on; so can one that was never read. `follower` says what became of the last follower;
    `none` if it ended by itself. `followers` are those at work; where they share the source, `unclaimed` are the parts
    that none of them reads, and `lag_seconds` goes by the part that has not moved for longest. `former_slot` is that of
    a source that has moved to topics, while it retains WAL.
    """

    source: str
    follower_alive: bool
    holder: str | None
    slot_lag_bytes: int
    slot_active: bool
    position: str | None
    position_lsn: int | None
    position_at: datetime | None
    cut_position: str | None
    cut_lsn: int | None
    cut_at: datetime | None
    behind_bytes: int
    lag_seconds: float = 0.0
    slot_state: str = "reserved"
    slot_is_sound: bool = True
    progress: Progress | None = None
    follower: Follower = "none"
    followers: int = 0
    unclaimed: tuple[str, ...] = ()
    former_slot: str | None = None
    tables: tuple[TableStatus, ...] = ()

    @property
    def lag_bytes(self) -> int:
        """What declared limits are compared with: a slot may retain more than lies beyond the position, or less."""
        return max(self.slot_lag_bytes, self.behind_bytes)
