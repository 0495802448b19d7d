"""A source of two partitions in memory, such as a topic: its positions are vectors, and only partially ordered.

It has what the contract asks of a source, and nothing else. The log numbers its records as they arrive, whatever their
partition, and that number is a row's `_commit_lsn`. A read goes from what is confirmed to where the source was at the
moment of `now`, and a point is the vector of its moment: so every vector that is reached parts earlier records from
later ones, though two vectors need not be comparable.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ingestion.schema.changes import META_SCHEMA, PICKED_SCHEMA, Batch, Relation, RelationColumn
from ingestion.sources.base import Noticed, Piece, Point, SourceNow
from ingestion.state import store
from ingestion.state.chunks import Chunk

NAME, PARTITIONS = "topic", (0, 1)
AT = datetime(2026, 11, 23, tzinfo=UTC)
RELATION = Relation(1, "", NAME, "f", (RelationColumn("id", 25, -1, True), RelationColumn("v", 25, -1, True)))
Change = tuple[str, str, str | None]  # operation, key, value


@dataclass(frozen=True)
class Offsets:
    """The next offset of each partition."""

    next: tuple[int, ...]

    def __le__(self, other: "Offsets") -> bool:
        return all(mine <= theirs for mine, theirs in zip(self.next, other.next, strict=True))

    def join(self, other: "Offsets") -> "Offsets":
        return Offsets(tuple(map(max, self.next, other.next)))

    @classmethod
    def parse(cls, text: str) -> "Offsets":
        return cls(tuple(int(part.rpartition(":")[2]) for part in text.split(",")))

    @classmethod
    def start(cls) -> "Offsets":
        return cls((0,) * len(PARTITIONS))

    @property
    def commit_bound(self) -> int:
        """The number of the next record: at a moment as many are below."""
        return sum(self.next)

    @property
    def text(self) -> str:
        return ",".join(f"{NAME}/{partition}:{offset}" for partition, offset in enumerate(self.next))

    def has(self, partition: int, offset: int) -> bool:
        """Whether a record is below."""
        return offset < self.next[partition]


@dataclass
class Log:
    """The server: what was written to each partition, in the order of its arrival, and the table as it is."""

    partitions: tuple[list[Change], ...] = field(default_factory=lambda: tuple([] for _ in PARTITIONS))
    arrived: list[tuple[int, int]] = field(default_factory=list)  # partition and offset of each record
    confirmed: Offsets = field(default_factory=Offsets.start)
    columns: str = "id,v"

    def write(self, operation: str, key: str, value: str | None) -> None:
        """A change, in the partition of its key."""
        partition = int(key) % len(PARTITIONS)
        self.arrived.append((partition, len(self.partitions[partition])))
        self.partitions[partition].append((operation, key, value))

    @property
    def end(self) -> Offsets:
        return self.after(len(self.arrived))

    def after(self, count: int) -> Offsets:
        """The vector of the moment at which so many records had arrived."""
        earlier = [partition for partition, _ in self.arrived[:count]]
        return Offsets(tuple(map(earlier.count, PARTITIONS)))

    def between(self, start: Offsets, end: Offsets) -> list[tuple[int, int, Change]]:
        """Partition, number and change, of each partition in its order."""
        places = [(p, n) for p in PARTITIONS for n in range(start.next[p], end.next[p])]
        return [(p, self.arrived.index((p, n)), self.partitions[p][n]) for p, n in places]

    def table(self, at: Offsets) -> dict[str, str | None]:
        rows: dict[str, str | None] = {}
        for _, _, (operation, key, value) in self.between(Offsets.start(), at):
            rows.pop(key, None) if operation == "d" else rows.update({key: value})
        return rows


@dataclass(frozen=True)
class Reader:
    """Its records travel with it; a real one would have the servers' addresses."""

    records: tuple[tuple[int, int, Change], ...]

    @property
    def is_silent(self) -> bool:
        return not self.records

    def read(self, keys: Mapping[int, tuple[str, ...]], landing: Callable[[], frozenset[int]],
             imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:  # fmt: skip
        for partition in PARTITIONS:
            mine = [record for record in self.records if record[0] == partition]
            batches = [batch(mine)] if mine and RELATION.oid in landing() else []
            take(Piece(batches, lambda oids, mine=mine: kept(mine if RELATION.oid in oids else [])))  # type: ignore
        return Noticed(witness=self.records[-1][:2] if self.records else None)


def batch(records: list[tuple[int, int, Change]]) -> Batch:
    """A record's number is the same at every read."""
    ordinals = [number for _, number, _ in records]
    values = pa.table({"id": [change[1] for _, _, change in records], "v": [change[2] for _, _, change in records]})
    meta = {"_op": [change[0] for _, _, change in records], "_commit_lsn": ordinals, "_seq": [0] * len(records),
            "_xid": ordinals, "_committed_at": [AT] * len(records)}  # fmt: skip
    return Batch(RELATION, values, pa.Table.from_pylist(pa.table(meta).to_pylist(), schema=META_SCHEMA))


def kept(records: list[tuple[int, int, Change]]) -> pa.Table:
    rows = [{"commit_lsn": number, "place": 0, "oid": RELATION.oid, "relation": b"topic",
             "message": repr(change).encode()} for _, number, change in records]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=PICKED_SCHEMA)


@dataclass(frozen=True)
class Rows:
    """The table at a point."""

    found: dict[str, str | None]

    def rows(self, *, as_text: bool) -> Generator[pa.Table]:
        yield pa.table({"id": pa.array(self.found, pa.string()), "v": pa.array(self.found.values(), pa.string())})


class Live:
    """What came since it was opened; it asks the log, as a consumer asks its brokers."""

    def __init__(self, log: Log, at: Offsets) -> None:
        self._log, self._at = log, at

    @property
    def position(self) -> Offsets:
        return self._log.end

    @property
    def has_changes(self) -> bool:
        return not self._log.end <= self._at

    def reach(self, position: Offsets, seconds: float) -> None:
        assert position <= self.position

    def wait(self, seconds: float) -> None: ...

    def below(self, position: Offsets) -> Any:
        return self._log.between(self._at, position)

    def confirm(self, position: Offsets) -> None:
        self._at = self._log.confirmed = self._at.join(position)

    def close(self) -> None: ...


class MemorySource:
    """The base's `Source`, and its `OpenSource` at once."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @contextmanager
    def open(self) -> Iterator["MemorySource"]:
        yield self

    def check(self, states: Any, live: Any = None) -> Any:
        return store.read_stream(states, "shop")

    def check_again(self, stream: Any, live: Any) -> None: ...

    def remember(self, states: Any, epoch: int, witness: object | None) -> None: ...

    def now(self) -> SourceNow[Offsets]:
        return SourceNow(self._log.end, AT, 0)

    def distance(self, start: Offsets, end: Offsets) -> int:
        return sum(end.next) - sum(start.next)

    def stop_between(self, reached: Offsets, end: Offsets, max_bytes: int) -> Offsets:
        return self._log.after(min(reached.commit_bound + max(max_bytes, 1), end.commit_bound))

    def fingerprints(self, tables: Collection[Any]) -> dict[str, str]:
        return {table.name: self._log.columns for table in tables}

    def inspect(self, table: Any, oid: int | None) -> Any:
        return self._log.columns, None

    @contextmanager
    def snapshot(self, tables: Any, before_try: Callable[[], None] = lambda: None) -> Iterator[Point[Offsets]]:
        before_try()
        yield Point(self._log.end, "", AT)

    def ranges(self, facts: Any, chunk_bytes: int) -> list[Chunk]:
        return [Chunk(0, ("", NAME), -1, None)]

    def row_reader(self, table: Any, facts: Any, chunk: Chunk, point: Point[Offsets]) -> Rows:
        return Rows(self._log.table(point.position))

    def change_reader(self, now: SourceNow[Offsets], live: Live | None) -> Reader:
        return Reader(tuple(live.below(now.position) if live else self._log.between(self._log.confirmed, now.position)))

    def stream(self, position: Offsets, max_bytes: int) -> Live:
        return Live(self._log, position)

    def confirm(self, position: Offsets, live: Live | None = None) -> None:
        if live is None:
            self._log.confirmed = self._log.confirmed.join(position)
        else:
            live.confirm(position)
