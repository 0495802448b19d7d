"""What a source is to the pipeline: one protocol for every kind, over positions that only the source understands.

A kind that is added fulfils `tests/unit/test_source_contract.py`. The pipeline and its tasks import this module and no
source; `source_of` makes the source of the kind that the settings name.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from ingestion.schema.changes import Batch, Relation
from lakehouse.errors import LakehouseError

Keys = Mapping[int, tuple[str, ...]]
Landing = Callable[[], frozenset[int]]  # the relations whose rows land, which a piece may change


@dataclass(frozen=True)
class SourceNow:
    """The source at one moment: everything committed below `lsn` can be read; `xid` is at or above every one used."""

    lsn: int
    at: datetime
    xid: int


@dataclass(frozen=True)
class Point:
    """A consistent point: `snapshot` shows exactly the transactions that commit below `lsn`."""

    lsn: int
    snapshot: str
    at: datetime


class NotThere(LakehouseError):
    """A table was dropped, renamed or closed to us while its point was made."""


class LiveStreamLost(Exception):
    """The stream ended, or cannot keep up: its reader goes on without it."""


@dataclass(frozen=True)
class Piece:
    """A piece of what is read, in the order of the source: rows that can land, and all its records as they came.

    `records` gives those of some relations (PICKED_SCHEMA); it may be asked until the next piece is. A piece with
    `unread` is one record that could not be read, for this reason.
    """

    batches: list[Batch]
    records: Callable[[frozenset[int]], pa.Table]
    unread: str | None = None


@dataclass(frozen=True)
class Noticed:
    """What a read has noticed beside rows.

    `carried` are partitions whose rows came as those of a relation, by its oid. `witness` is what the source wants to
    have kept with the position (`Source.remember`); None where nothing was read.
    """

    carried: frozenset[tuple[int, Relation]] = frozenset()
    witness: object | None = None


class ChangeReader(Protocol):
    """Reads the changes below a position, inside a task. Travels by pickle; may hold secrets."""

    @property
    def is_silent(self) -> bool:
        """Whether it is known, without a read, that nothing has changed."""

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives each piece to `take`; only relations that are `landing` by then are decoded, the `imaged` with images.

        `keys` names the key of a relation where its changes do not tell it. To read twice gives the same. Raises
        LakehouseError for what cannot be read.
        """


class RowReader(Protocol):
    """Reads one range of a table's rows at a point, inside a task. Travels by pickle; may hold secrets."""

    def rows(self, *, as_text: bool) -> Iterator[pa.Table]:
        """The rows by the source's column names; unless `as_text`, typed where their types allow that.

        Raises TableProblem for what is the table's own, LakehouseError for a source that cannot be read.
        """


class UnreadableRecord(ValueError):
    """A kept record that cannot be decoded; `index` counts within those given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


class Records(Protocol):
    """How change records are kept as bytes and read again. Travels by pickle."""

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept records."""

    def without(self, record: bytes, columns: list[str], gone: Collection[str]) -> bytes:
        """A record with the values of the columns `gone` null."""

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """Kept records of one relation as rows, each at its own place; raises UnreadableRecord."""
