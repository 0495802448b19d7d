"""What a source is to the pipeline: one protocol for every kind, over positions that only the source understands.

A kind that is added fulfils `tests/unit/test_source_contract.py`. The pipeline and its tasks import this module and no
source; `ingestion.sources.kinds` makes the source of the kind that the settings name.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, runtime_checkable

import pyarrow as pa

from ingestion.schema.changes import Batch, Carried, Relation
from ingestion.schema.compared import ComparedColumn, KeyRange, Order
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.positions import P
from ingestion.schema.problem import TableProblem
from ingestion.state.chunks import Chunk
from ingestion.state.store import Cluster, Stream
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

NEAR = 1 << 24  # bytes of WAL: no commit record is longer, nor further from the one before it that was read with it
Keys = Callable[[Relation], tuple[str, ...] | None]
Landing = Callable[[], frozenset[int]]  # the relations whose rows land, which a piece may change


@dataclass(frozen=True)
class SourceNow(Generic[P]):
    """The source at one moment: everything committed below `position` can be read; `xid` is no less than any used."""

    position: P
    at: datetime
    xid: int


@dataclass(frozen=True)
class Point(Generic[P]):
    """A consistent point: `snapshot` shows exactly the transactions that commit below `position`.

    What was read at it holds if `check` raises no LakehouseError afterwards: the tables were as they are all the while.
    That is for who holds the point; it does not travel with it.
    """

    position: P
    snapshot: str
    at: datetime
    check: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.position, self.snapshot, self.at)


class NotThere(LakehouseError):
    """A table was dropped, renamed or closed to us while its point was made."""


class InTheWay(LakehouseError):
    """Somebody waits to alter a table, or to empty it, while it is read at a point; what reads it waits behind them."""


class LiveStreamLost(Exception):
    """The stream ended, or cannot keep up: its reader goes on without it."""


@dataclass(frozen=True)
class Piece:
    """A piece of what is read, in the order of the source: rows that can land, and all its records as they came.

    `records` gives those of some relations (PICKED_SCHEMA); it may be asked until the next piece is. A piece with
    `unread` has no rows: its records could not be read, each for a reason, by their `commit_lsn` and `place`. `parks`
    are the relations that cannot go on from this piece on, each with the reason.
    """

    batches: list[Batch]
    records: Callable[[frozenset[int]], pa.Table]
    unread: Mapping[tuple[int, int], str] | None = None
    parks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Noticed:
    """What a read has found out besides the rows.

    `carried` are partitions whose rows came as those of a relation. `witness` is what the source wants to
    have kept with the position (`OpenSource.remember`); None where nothing was read. `reached` is where the read ended,
    None where that is what it was asked for: the rest waits for what is not there yet. `warnings` are for people.
    """

    carried: Carried = field(default_factory=dict)
    witness: object | None = None
    reached: SourceNow[Any] | None = None
    warnings: tuple[str, ...] = ()


class ChangeReader(Protocol):
    """Reads the changes below a position, inside a task. Travels by pickle; may hold secrets."""

    @property
    def is_silent(self) -> bool:
        """Whether it is known, without a read, that nothing has changed."""

    @property
    def relations(self) -> frozenset[int] | None:
        """The relations that it tells of, where that is known without a read; else None.

        Among them are partitions whose rows come as another relation's.
        """

    def parts(self) -> "Sequence[ChangeReader]":
        """Readers for tasks of their own, which together read what this one does: itself alone where the order of all
        of it matters, or it is too little.

        The parts of a relation may land and be kept aside independently of each other, and notice nothing but warnings.
        """

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives each piece to `take`; only relations that are `landing` by then are decoded, the `imaged` with images.

        `keys` names the columns of a relation that are its key, which its changes may not tell; None where it lacks
        some. To read twice gives the same. Raises LakehouseError for what cannot be read.
        """


class RowReader(Protocol):
    """Reads one range of a table's rows at a point, inside a task. Travels by pickle; may hold secrets."""

    def rows(self, *, as_text: bool) -> Generator[pa.Table]:
        """The rows by the source's column names; unless `as_text`, typed where their types allow that.

        Raises TableProblem for what is the table's own, LakehouseError for a source that cannot be read.
        """


class ComparisonReader(Protocol):
    """Reads a part of a table for a comparison, inside a task. Travels by pickle; may hold secrets."""

    source: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What was asked for; raises TableProblem for what is the table's own, LakehouseError."""


class ComparedTable(Protocol):
    """One table at a point, as `ingestion.schema.compared` describes its lines, keys and buckets.

    `bounds` are those of the range of keys to which it keeps: operators, each with a canonical form.
    """

    bounds: tuple[tuple[str, str], ...]

    def digests(self) -> Sequence[ComparisonReader]:
        """Of each `bucket` its `rows` and the `total` of the numbers in the first 64 bits of their lines, as text."""

    def rows(self, buckets: Sequence[str] | None, *, printed: bool) -> Sequence[ComparisonReader]:
        """`key`, `line` and `s0` … of the rows in the buckets, or of all.

        `s0` … are the values as the stream prints them, or else in canonical form.
        """


@dataclass(frozen=True)
class Retention:
    """The changes that a source retains for the lake: how many bytes, and whether a reader is connected.

    `state` is in the source's own words, `missing` where it keeps nothing; `is_sound` is whether the stream can go on.
    `open_bytes` is how many cannot be read yet, because they are behind the begin of a transaction that has not ended.
    """

    bytes: int = 0
    is_read: bool = False
    state: str = "missing"
    is_sound: bool = False
    open_bytes: int = 0


class UnreadableRecord(ValueError):
    """A kept record that cannot be decoded; `index` counts within those given."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


class NoRecord(UnreadableRecord):
    """What is kept beside the records of a table and never will be one: whoever replays it has it told, and let go."""


class OfAnotherKind(ValueError):
    """Records were kept when their source was of another kind, and this one does not read them."""


class Records(Protocol):
    """How change records are kept as bytes and read again. Travels by pickle."""

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept records; raises OfAnotherKind."""

    def without(self, record: bytes, relation: bytes, gone: Collection[str]) -> bytes:
        """A record of a kept relation with the values of the columns `gone` null. If the record cannot be read, none of
        its values is left, and `decode` says so."""

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """Kept records of one relation as rows, each at its own place; raises UnreadableRecord, and NoRecord."""


@runtime_checkable
class ChecksTogether(Protocol):
    """Records of which some things only show in all of them together."""

    def problems(self) -> Mapping[int, str]:
        """Why a table cannot go on, by relation, with what was decoded since it was last asked."""

    def beside_landed(self) -> "Records":
        """The same for records of which others of their transactions have landed, and were looked at with them."""


class LiveStream(Protocol[P]):
    """The stream held open once the lake has caught up; what it has received stays until it is confirmed.

    All but `close` raise LiveStreamLost: what came is then read again without it.
    """

    @property
    def position(self) -> P:
        """Every transaction that commits below has been received."""

    @property
    def has_changes(self) -> bool:
        """Whether changes wait."""

    def reach(self, position: P, seconds: float) -> None:
        """Waits until everything below `position` has been received."""

    def wait(self, seconds: float) -> None:
        """Waits for changes, so long at most."""

    def below(self, position: P) -> pa.Array:
        """The records of all transactions that commit below `position`."""

    def confirm(self, position: P) -> None:
        """Everything below `position` is in the lake."""

    def close(self) -> None:
        """Ends it."""


class OpenSource(Protocol[P]):
    """A source with its connections, used by one thread. Every method may raise LakehouseError."""

    def records(self, described: Mapping[str, TableFacts]) -> Records:
        """How its records are kept. Those of a log of events are read as their tables are `described`."""

    @property
    def holds_tables(self) -> bool:
        """Whether it has the rows of its tables as they are. A log of events has the stream alone: nothing is read at
        a point or compared, and the parts of this protocol that do so are not asked."""

    def check(self, states: CatalogConnection, live: LiveStream[P] | None = None) -> Stream:
        """The stream that the lake was read from, made at the first time; raises where going on would lose changes.

        An open live stream is proof of what was checked when it was opened.
        """

    def check_only(self, states: CatalogConnection) -> None:
        """Raises what `check` would, as far as that shows without a read; changes nothing, and disturbs no writer."""

    def check_again(self, stream: Stream, live: LiveStream[P] | None) -> None:
        """Raises where what `check` found does not hold any more, so that a read may have missed changes."""

    def now(self) -> SourceNow[P]:
        """Up to where everything that is committed can be read."""

    def committed(self) -> P:
        """A position above the commit of everything that is visible at this moment."""

    def retention(self, stream: Stream | None) -> Retention:
        """What the source keeps for the stream, or for the one that is configured where none is known."""

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

    def check_readable(self, table: RawTable, facts: TableFacts) -> None:
        """Raises TableProblem when not every column may be read."""

    def check_key(self, table: RawTable, facts: TableFacts) -> None:
        """Raises TableProblem when not every column may be read, or several rows have one declared key."""

    def snapshot(
        self, tables: Sequence[RawTable], before_try: Callable[[], None] = ...
    ) -> AbstractContextManager[Point[P]]:
        """A point at which the tables stay readable, and as they are, inside the `with` block.

        Its rows are what the stream has below the point, and the stream has the rest from the point on: nothing is in
        both, nothing in neither. `before_try` is called before each try. Raises NotThere for a table that has gone.
        """

    def at_one_moment(self) -> AbstractContextManager[None]:
        """Inside the `with` block, `inspect` and `ordered_rows` show one moment of the source."""

    def ordered_rows(
        self, table: RawTable, columns: Sequence[ColumnFacts], order: Sequence[tuple[ColumnFacts, Order]]
    ) -> Iterator[Sequence[str | None]]:
        """All rows, values as the stream prints them, in the order of some columns; asked inside `at_one_moment`."""

    def compared(
        self, table: RawTable, facts: TableFacts, columns: Sequence[ComparedColumn], key: Sequence[ComparedColumn],
        point: Point[P], key_range: KeyRange | None,
    ) -> ComparedTable:  # fmt: skip
        """The table for a comparison at the point; raises LakehouseError for a range that the lake cannot follow."""

    def sizes(self, tables: Sequence[RawTable]) -> dict[str, list[int]]:
        """Bytes of each table's parts."""

    def ranges_of(self, size: int, chunk_bytes: int) -> int:
        """Into how many ranges a part of that size is read."""

    def ranges(self, facts: TableFacts, chunk_bytes: int) -> list[Chunk]:
        """The ranges in which a table is read, at least one."""

    def row_reader(self, table: RawTable, facts: TableFacts, chunk: Chunk, point: Point[P]) -> RowReader:
        """Reads one of the ranges at the point."""

    def change_reader(
        self, now: SourceNow[P], live: LiveStream[P] | None, described: Iterable[TableFacts] = ...
    ) -> ChangeReader:
        """Reads what is committed below `now.position` and not confirmed.

        `described` are the tables that have begun as they are now: changes that do not tell their columns go by them.
        """

    def stream(self, position: P, max_bytes: int) -> LiveStream[P] | None:
        """The live stream from `position` on; None where a read is as quick."""

    def remember(self, states: CatalogConnection, epoch: int, witness: object | None) -> None:
        """Keeps what a read has noticed, in the transaction that publishes it."""

    def confirm(self, position: P, live: LiveStream[P] | None = None) -> None:
        """Everything below `position` is in the lake, and need not be kept; what is not confirmed can be read again."""

    def begin_anew(self, states: CatalogConnection) -> Callable[[CatalogConnection], None]:
        """Lets go of the stream; what is returned begins the next epoch, in a transaction of its caller."""


@runtime_checkable
class GoesOn(Protocol):
    """An open source that is read on from where it was read up to, also for a table that begins."""

    def check_beginning(self, table: RawTable, facts: TableFacts, *, is_there: bool) -> None:
        """Raises TableProblem where the table would lack events that were read before; `is_there` is whether it has a
        raw table."""


@runtime_checkable
class ReadsAhead(Protocol):
    """An open source that can read on before what it has read is published."""

    def read_on_from(self, ahead: Callable[[], Any | None], hurry: Callable[[], None]) -> None:
        """Reads begin, and checks hold, from what `ahead` returns on; None is where the lake stands.

        `hurry` is called by `check` where what has been read ahead could not be read again.
        """


@dataclass(frozen=True)
class NextOf:
    """How far some parts of a source are read next: up to `stop`, which names no other part. `bytes` is about how much
    there is, beyond `stop` too."""

    stop: Any
    bytes: int


@runtime_checkable
class HasParts(ReadsAhead, Protocol):
    """An open source whose position has parts that are read independently, so that several followers can share it."""

    def parts(self) -> Sequence[str]:
        """All parts that there are to read, by name; neighbours are of different tables."""

    def next_of(self, parts: Collection[str], max_bytes: int) -> "NextOf":
        """What is to be read of these parts next, about so many bytes at most."""


@dataclass(frozen=True)
class TakenOver(Generic[P]):
    """Where another kind of source goes on, and what its stream is known by."""

    position: P
    cluster: Cluster
    own: int


@dataclass(frozen=True)
class Brought:
    """What another kind of source brings of a column: its text as before, or `otherwise`, in words; or nothing that
    lands, and these tell why."""

    otherwise: str = ""
    lands: bool = True


@runtime_checkable
class TakesOver(Protocol):
    """An open source that can go on where one of another kind, of the same database, has got to."""

    def take_over(self, facts: Iterable[TableFacts], landed: int, recent: Collection[int]) -> TakenOver[Any]:
        """Where it goes on after commits below the LSN `landed`; `recent` are the xids of those within NEAR below.

        Raises LakehouseError where something would be lost, or could be.
        """

    def brings(self, column: ColumnFacts) -> Brought:
        """What comes of a column, as the former kind described it."""


class Source(Protocol[P]):
    """One source as its kind knows it: its settings, and how long others' work in it is waited for."""

    @property
    def holds_tables(self) -> bool:
        """As of an open source."""

    def open(self) -> AbstractContextManager[OpenSource[P]]:
        """With connections of its own."""

    def snapshot(
        self, tables: Sequence[RawTable], before_try: Callable[[], None] = ...
    ) -> AbstractContextManager[Point[P]]:
        """As of an open source."""
