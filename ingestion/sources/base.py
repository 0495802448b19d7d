"""What a source is to the pipeline: one protocol for every kind, over positions that only the source understands.

A kind that is added fulfils `tests/unit/test_source_contract.py`. The pipeline and its tasks import this module and no
source; `source_of` makes the source of the kind that the settings name.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from threading import Event
from typing import Generic, Protocol

import pyarrow as pa

from ingestion.schema.changes import Batch, Relation
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Lsn, P
from ingestion.schema.problem import TableProblem
from ingestion.state.chunks import Chunk
from ingestion.state.store import Stream
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

Keys = Mapping[int, tuple[str, ...]]
Landing = Callable[[], frozenset[int]]  # the relations whose rows land, which a piece may change


@dataclass(frozen=True)
class SourceNow(Generic[P]):
    """The source at one moment: everything committed below `lsn` can be read; `xid` is at or above every one used."""

    lsn: P
    at: datetime
    xid: int


@dataclass(frozen=True)
class Point(Generic[P]):
    """A consistent point: `snapshot` shows exactly the transactions that commit below `lsn`."""

    lsn: P
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
    have kept with the position (`OpenSource.remember`); None where nothing was read.
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

    def rows(self, *, as_text: bool) -> Generator[pa.Table]:
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


class LiveStream(Protocol[P]):
    """The stream held open once the lake has caught up; what it has received stays until it is confirmed.

    All but `close` raise LiveStreamLost: what came is then read again without it.
    """

    @property
    def lsn(self) -> P:
        """Every transaction that commits below has been received."""

    @property
    def has_changes(self) -> bool:
        """Whether changes wait."""

    def reach(self, lsn: P, seconds: float) -> None:
        """Waits until everything below `lsn` has been received."""

    def wait(self, seconds: float) -> None:
        """Waits for changes, so long at most."""

    def below(self, lsn: P) -> pa.Array:
        """The records of all transactions that commit below `lsn`."""

    def confirm(self, lsn: P) -> None:
        """Everything below `lsn` is in the lake."""

    def close(self) -> None:
        """Ends it."""


class OpenSource(Protocol[P]):
    """A source with its connections, used by one thread. Every method may raise LakehouseError."""

    @property
    def records(self) -> Records:
        """How its records are kept."""

    def check(self, states: CatalogConnection, live: LiveStream[P] | None = None) -> Stream:
        """The stream that the lake was read from, made at the first time; raises where going on would lose changes.

        An open live stream is proof of what was checked when it was opened.
        """

    def check_again(self, stream: Stream, live: LiveStream[P] | None) -> None:
        """Raises where what `check` found does not hold any more, so that a read may have missed changes."""

    def now(self) -> SourceNow[P]:
        """Up to where everything that is committed can be read."""

    def stop_between(self, reached: P, end: P, max_bytes: int) -> P:
        """A position up to which a part of a backlog is read: the end, or one behind `reached`; never back."""

    def distance(self, start: P, end: P) -> int:
        """About how many bytes lie between two positions."""

    def fingerprints(self, tables: Iterable[RawTable]) -> dict[str, str]:
        """By table, a digest of all that `inspect` reads, in one question: equal ones mean that nothing was altered."""

    def inspect(self, table: RawTable, oid: int | None) -> tuple[TableFacts | None, TableProblem | None]:
        """A table's facts, and what is in the way of it; `oid` finds it where it is not called as declared."""

    def name_of(self, oid: int) -> tuple[str, str] | None:
        """What a relation is called now; None when it is gone."""

    def check_key(self, table: RawTable, facts: TableFacts) -> None:
        """Raises TableProblem when not every column may be read, or several rows have one declared key."""

    def snapshot(self, tables: Sequence[RawTable], look: Callable[[], None] = ...) -> AbstractContextManager[Point[P]]:
        """A point at which the tables stay readable, and as they are, inside the `with` block.

        Its rows are what the stream has below the point, and the stream has the rest from the point on: nothing is in
        both, nothing in neither. `look` is called before each try. Raises NotThere for a table that has gone.
        """

    def sizes(self, tables: Sequence[RawTable]) -> dict[str, list[int]]:
        """Bytes of each table's parts."""

    def ranges_of(self, size: int, chunk_bytes: int) -> int:
        """Into how many ranges a part of that size is read."""

    def ranges(self, facts: TableFacts, chunk_bytes: int) -> list[Chunk]:
        """The ranges in which a table is read, at least one."""

    def row_reader(self, table: RawTable, facts: TableFacts, chunk: Chunk, point: Point[P]) -> RowReader:
        """Reads one of the ranges at the point."""

    def change_reader(self, now: SourceNow[P], live: LiveStream[P] | None) -> ChangeReader:
        """Reads what is committed below `now.lsn` and not confirmed."""

    def stream(self, lsn: P, max_bytes: int) -> LiveStream[P]:
        """The live stream from there on."""

    def remember(self, states: CatalogConnection, epoch: int, witness: object | None) -> None:
        """Keeps what a read has noticed, in the transaction that publishes it."""

    def confirm(self, lsn: P, live: LiveStream[P] | None = None) -> None:
        """Everything below `lsn` is in the lake, and need not be kept; what is not confirmed can be read again."""

    def begin_anew(self) -> Callable[[CatalogConnection], None]:
        """Lets go of the stream; what is returned begins the next epoch, in a transaction of its caller."""


class Source(Protocol[P]):
    """One source as its kind knows it: its settings, and how long others' work in it is waited for."""

    def position(self, text: str) -> P:
        """The position of a spelling."""

    def open(self) -> AbstractContextManager[OpenSource[P]]:
        """With connections of its own."""

    def snapshot(self, tables: Sequence[RawTable], look: Callable[[], None] = ...) -> AbstractContextManager[Point[P]]:
        """As of an open source."""


KINDS = {"postgres": "ingestion.sources.postgres.source"}  # modules with a function `source`


def source_of(settings: Settings, name: str, seconds: float | None, stop: Event, kind: str = "postgres") -> Source[Lsn]:
    """The source of that name; what is others' work is waited for so long, or until `stop` is set.

    Every source that can be configured is a Postgres. The module of a kind is known by its name alone, so that nobody
    who imports this one depends on a kind.
    """
    made: Source[Lsn] = import_module(KINDS[kind]).source(settings, name, seconds, stop)
    return made
