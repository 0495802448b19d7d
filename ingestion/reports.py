"""What ingestion tells its callers: plain frozen data, no server handles."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class TableReport:
    """One raw table after a cycle; `rows` counts what this cycle added, by `_op`."""

    name: str
    snapshot_id: int | None
    rows: dict[str, int]
    total_rows: int
    lag_bytes: int
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Aside:
    """A table that is in no cut now: its state (see `ingestion.state.TableState`) and why."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class SourceReport:
    """One source after it was brought up to a position; `tables` are in the cut, `aside` are not."""

    source: str
    epoch: int
    cut_lsn: int
    cut_at: datetime
    tables: tuple[TableReport, ...]
    aside: tuple[Aside, ...] = ()


@dataclass(frozen=True)
class SourceStatus:
    """How far a source is in the lake, without Spark. LSNs are numbers, lags are bytes and seconds."""

    source: str
    follower_alive: bool
    holder: str | None
    slot_lag_bytes: int
    slot_active: bool
    position_lsn: int | None
    position_at: datetime | None
    cut_lsn: int | None
    cut_at: datetime | None
    behind_bytes: int
    aside: tuple[Aside, ...] = ()
