"""A source of two partitions in memory, such as a topic: its positions are vectors, and only partially ordered.

It is whole: every part of the protocol is here. The log numbers its records as they arrive, whatever their
partition, and that number is a row's `_commit_lsn`. A read goes from what is confirmed to where the source was at the
moment of `now`, and a point is the vector of its moment: so every vector that is reached parts earlier records from
later ones, though two vectors need not be comparable.
"""

from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

import pyarrow as pa

from ingestion.schema.changes import META_SCHEMA, PICKED_SCHEMA, Batch, Relation, RelationColumn
from ingestion.schema.compared import BUCKET_DIGITS
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import Noticed, Piece, Point, Retention, SourceNow, UnreadableRecord
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
    columns: tuple[str, ...] = ("id", "v")
    is_kept: bool = False  # whether anybody has asked for what was not confirmed

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

    @property
    def relations(self) -> frozenset[int] | None:
        return None

    def parts(self) -> "tuple[Reader]":
        return (self,)

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


class MemoryRecords:
    """A record is the text of its change."""

    def relation(self, encoded: bytes) -> Relation:
        assert encoded == NAME.encode()
        return RELATION

    def without(self, record: bytes, relation: bytes, gone: Collection[str]) -> bytes:
        operation, key, value = literal_eval(record.decode())
        return repr((operation, key, None if "v" in gone else value)).encode()

    def decode(self, relation: bytes, records: pa.Table, keys: Any, imaged: Any) -> Iterator[Batch]:
        found = []
        for index, row in enumerate(records.to_pylist()):
            try:
                found.append((0, row["commit_lsn"], literal_eval(row["message"].decode())))
            except (SyntaxError, ValueError) as error:
                raise UnreadableRecord(index, str(error)) from None
        return iter([batch(found)])


@dataclass(frozen=True)
class Asked:
    """What a comparison asked for. Travels by pickle."""

    source: str
    found: pa.RecordBatch

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield self.found


@dataclass(frozen=True)
class Compared:
    """The table at a point: each row is `key`, `line` and values."""

    lines: list[tuple[str, str, tuple[str | None, ...]]]
    bounds: tuple[tuple[str, str], ...]

    def digests(self) -> list[Asked]:
        counts, totals = Counter[str](), Counter[str]()
        for key, line, _ in self.lines:
            counts[bucket(key)] += 1
            totals[bucket(key)] += signed(line)
        rows = [{"bucket": b, "rows": n, "total": str(totals[b])} for b, n in counts.items()]
        return [Asked(NAME, pa.RecordBatch.from_pylist(rows))]

    def rows(self, buckets: Sequence[str] | None, *, printed: bool) -> list[Asked]:
        rows = [
            {"key": key, "line": line, **{f"s{n}": value for n, value in enumerate(values)}}
            for key, line, values in self.lines if buckets is None or bucket(key) in buckets
        ]  # fmt: skip
        return [Asked(NAME, pa.RecordBatch.from_pylist(rows))]


def signed(line: str) -> int:
    """The number in the first 64 bits."""
    number = int(line[:16], 16)
    return number - (1 << 64 if number >> 63 else 0)


def bucket(key: str) -> str:
    return md5(key.encode()).hexdigest()[:BUCKET_DIGITS]


def cell(value: str | None) -> str:
    return "n" if value is None else f"{len(value)}:{value}"


def column(name: str, number: int) -> ColumnFacts:
    return ColumnFacts(name, number, "text", 25, "text", "b", -1, 25, -1, "textout", lake=name)


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

    holds_tables = True

    def __init__(self, log: Log) -> None:
        self._log = log
        self._moment: Offsets | None = None

    @contextmanager
    def open(self) -> Iterator["MemorySource"]:
        yield self

    def records(self, described: Any) -> MemoryRecords:
        return MemoryRecords()

    def check(self, states: Any, live: Any = None) -> Any:
        self._log.is_kept = True
        return store.read_stream(states, "shop")

    def check_only(self, states: Any) -> None: ...

    def check_again(self, stream: Any, live: Any) -> None: ...

    def remember(self, states: Any, epoch: int, witness: object | None) -> None: ...

    def now(self) -> SourceNow[Offsets]:
        return SourceNow(self._log.end, AT, 0)

    def committed(self) -> Offsets:
        return self._log.end

    def retention(self, stream: Any) -> Retention:
        if not self._log.is_kept:
            return Retention()
        return Retention(self.distance(self._log.confirmed, self._log.end), False, "kept", True)

    def distance(self, start: Offsets, end: Offsets) -> int:
        return sum(end.next) - sum(start.next)

    def stop_between(self, reached: Offsets, end: Offsets, max_bytes: int) -> Offsets:
        return self._log.after(min(reached.commit_bound + max(max_bytes, 1), end.commit_bound))

    def fingerprints(self, tables: Collection[Any]) -> dict[str, str]:
        return {table.name: ",".join(self._log.columns) for table in tables}

    def inspect(self, table: Any, oid: int | None) -> tuple[TableFacts | None, TableProblem | None]:
        columns = tuple(column(name, number) for number, name in enumerate(self._log.columns, 1))
        return TableFacts(RELATION.oid, None, "r", "f", ("id",), columns, ("", NAME)), None

    def name_of(self, oid: int) -> tuple[str, str] | None:
        return ("", NAME) if oid == RELATION.oid else None

    def check_readable(self, table: Any, facts: TableFacts) -> None: ...

    def check_key(self, table: Any, facts: TableFacts) -> None:
        rows = [{"id": key, "v": value} for key, value in self._log.table(self._log.end).items()]
        counts = Counter(tuple(row[name] for name in table.key) for row in rows)
        if counts and max(counts.values()) > 1:
            raise TableProblem(table.source, table.name, "several rows have one declared key")

    @contextmanager
    def snapshot(self, tables: Any, before_try: Callable[[], None] = lambda: None) -> Iterator[Point[Offsets]]:
        before_try()
        yield Point(self._log.end, "", AT)

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        self._moment = self._log.end
        yield
        self._moment = None

    def ordered_rows(
        self, table: Any, columns: Sequence[ColumnFacts], order: Sequence[tuple[ColumnFacts, Any]]
    ) -> Iterator[Sequence[str | None]]:
        found = self._log.table(self._moment or self._log.end)
        rows = [{"id": key, "v": value} for key, value in found.items()]
        rows.sort(key=lambda row: [str(row[by.name]) for by, _ in order])
        return iter([[row[one.name] for one in columns] for row in rows])

    def compared(self, table: Any, facts: TableFacts, columns: Any, key: Any, point: Any, key_range: Any) -> Compared:
        lines = []
        bounds = [(">=", key_range.first), ("<", key_range.end)] if key_range else []
        for name, value in self._log.table(point.position).items():
            row = {"id": name, "v": value}
            values = tuple(row[one.source.name] for one in columns)
            line = md5("".join(map(cell, values)).encode()).hexdigest()
            if not key_range or ((key_range.first or "") <= name and (key_range.end is None or name < key_range.end)):
                lines.append(("".join(cell(row[one.source.name]) for one in key), line, values))
        return Compared(lines, tuple((operator, text) for operator, text in bounds if text is not None))

    def sizes(self, tables: Collection[Any]) -> dict[str, list[int]]:
        return {table.name: [len(self._log.table(self._log.end))] for table in tables}

    def ranges_of(self, size: int, chunk_bytes: int) -> int:
        return 1

    def ranges(self, facts: Any, chunk_bytes: int) -> list[Chunk]:
        return [Chunk(0, ("", NAME), -1, None)]

    def row_reader(self, table: Any, facts: Any, chunk: Chunk, point: Point[Offsets]) -> Rows:
        return Rows(self._log.table(point.position))

    def change_reader(self, now: SourceNow[Offsets], live: Live | None, described: Any = ()) -> Reader:
        return Reader(tuple(live.below(now.position) if live else self._log.between(self._log.confirmed, now.position)))

    def stream(self, position: Offsets, max_bytes: int) -> Live:
        return Live(self._log, position)

    def confirm(self, position: Offsets, live: Live | None = None) -> None:
        if live is None:
            self._log.confirmed = self._log.confirmed.join(position)
        else:
            live.confirm(position)

    def begin_anew(self, states: Any) -> Callable[[Any], None]:
        self._log.is_kept, self._log.confirmed = False, self._log.end
        return lambda states: store.restart_stream(states, "shop", "", store.Cluster("", 0), 0)
