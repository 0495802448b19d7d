"""A subject in the spool, the dead letters (both pgoutput messages) and the texts of unrepresentable values.

A record keeps its position, operation and key; only personal columns become null, so that it can still land. A record
that cannot be decoded, or lacks a column of the key, is removed if its bytes contain one of the subject's own values;
otherwise it is kept and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo

from erasure.key_periods import Event, Key, Period, Position
from erasure.proof import SHORTEST, spellings
from erasure.targets import Target
from ingestion.sources.postgres.pgoutput import DecodeError
from ingestion.sources.postgres.pgoutput.relations import parse_relation
from ingestion.sources.postgres.pgoutput.tuples import Tuples, Unreadable, emptied, joined, split

RECORDS = ("source", "table", "epoch", "commit_lsn", "seq", "relation", "message")


def _text(cell: bytes) -> str | None:
    return cell[5:].decode("utf-8", "replace") if cell[:1] == b"t" else None


@dataclass(frozen=True)
class _Read:
    """A record: columns, head and tuples, its old and new key (None: it has none), the names of what is kept of it."""

    columns: list[str]
    head: bytes
    tuples: Tuples
    old: Key | None
    new: Key | None
    kept: frozenset[str]


@dataclass(frozen=True)
class SubjectRecords:
    """The subject in `meta.spool` or `meta.quarantine`. `key` and `kept` are the source's column names, `typed`
    converts a key's texts to values, `values` are known texts of the subject that no other row has. `called` has the
    former names of the key's columns, by which a record from before a rename has them."""

    target: Target
    source: str
    table: str
    periods: tuple[Period, ...]
    key: tuple[str, ...]
    kept: frozenset[str]
    typed: Callable[[Mapping[str, str]], Key]
    values: frozenset[str] = frozenset()
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def filter(self) -> BooleanExpression:
        """The records of the table."""
        return _of_table(self.source, self.table)

    def rows(self, table: pa.Table) -> list[int]:
        """Numbers of the subject's records, including undecodable ones that contain its values."""
        return [n for n, _, _ in self._found(table)]

    def holding(self, table: pa.Table) -> list[int]:
        """Those of the records that contain personal data."""
        return [n for n, before, after in self._found(table) if before != after]

    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table:
        """The records with their personal cells null."""
        changed = {n: after for n, _, after in self._found(table)}
        messages = [changed.get(n, message) for n, message in enumerate(table.column("message").to_pylist())]
        index = table.schema.get_field_index("message")
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(messages, field.type))
        return table.filter(pa.array([n not in changed or changed[n] is not None for n in range(len(messages))]))

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The personal values in these records."""
        wanted = set(rows)
        for n, record in self._records(table):
            if n in wanted and (read := self._read(record)) is not None:
                for cells in read.tuples.values():
                    for name, cell in zip(read.columns, cells, strict=False):
                        if name not in read.kept and (text := _text(cell)):
                            yield text

    def events(self, table: pa.Table) -> Iterator[Event]:
        """The records as events of their keys."""
        for _, record in self._records(table):
            if (read := self._read(record)) is None:
                continue
            head, old, new = read.head, read.old, read.new
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            moved = old is not None and new is not None and old != new
            if moved or head[:1] == b"D":
                yield Event(old, position, "d")
            if new is not None:
                at = (*position[:-1], position[-1] + 1) if moved else position
                yield Event(new, at, "c" if moved else head[:1].decode().lower(), old if moved else None)

    def unreadable(self, table: pa.Table) -> int:
        """The number of records that cannot be decoded, or lack a column of the key."""
        return sum(self._read(record) is None for _, record in self._records(table))

    def _records(self, table: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
        subject = pc.and_(pc.equal(table.column("source"), self.source), pc.equal(table.column("table"), self.table))
        for n in pc.indices_nonzero(subject).to_pylist():
            yield n, {name: table.column(name)[n].as_py() for name in RECORDS}

    def _found(self, table: pa.Table) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Number, message and new message (None: to delete) of each record of the subject."""
        for n, record in self._records(table):
            message, read = record["message"], self._read(record)
            if read is None:
                if self._is_mentioned(message):
                    yield n, message, None
                continue
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            own = (period for key in (read.old, read.new) for period in self.periods if period.key == key)
            if any(period.holds(position) for period in own):
                gone = {*read.columns} - read.kept  # a TOASTed value that is missing is filled from an emptied version
                left = {which: emptied(read.columns, cells, gone) for which, cells in read.tuples.items()}
                yield n, message, joined(read.head, left)

    def _is_mentioned(self, message: bytes) -> bool:
        values = (value for value in self.values if len(value) >= SHORTEST)
        return any(text in message for value in values for text in spellings(value))

    def _read(self, record: Mapping[str, Any]) -> _Read | None:
        """A record; None if it cannot be decoded, or is of rows and has no key."""
        try:
            columns = [column.name for column in parse_relation(record["relation"], 0).columns]
            head, tuples = split(record["message"])
        except (DecodeError, Unreadable):
            return None
        named = self._named(columns)
        before = next((tuples[which] for which in "KO" if which in tuples), None)
        old, new = (self._key(columns, named, cells) for cells in (before, tuples.get("N")))
        if tuples and old is None and new is None:
            return None
        return _Read(columns, head, tuples, old, new, self.kept | {*named.values()})

    def _named(self, columns: Collection[str]) -> dict[str, str]:
        """What a record of these columns calls those of the key; nothing where it lacks one, or cannot tell them."""
        found = {
            name: next((known for known in (name, *self.called.get(name, ())) if known in columns), None)
            for name in self.key
        }
        there = {name: known for name, known in found.items() if known is not None}
        return there if len({*there.values()}) == len(self.key) else {}

    def _key(self, columns: Sequence[str], named: Mapping[str, str], cells: Sequence[bytes] | None) -> Key | None:
        if cells is None:
            return None
        texts = {
            name: text for name, known in named.items() if (text := _text(cells[columns.index(known)])) is not None
        }
        return self.typed(texts) if texts.keys() == {*self.key} else None


@dataclass(frozen=True)
class SubjectTexts:
    """The subject in `meta.unrepresentable`, found by the positions of its rows."""

    target: Target
    source: str
    table: str
    positions: frozenset[Position]
    kept: frozenset[str]

    def filter(self) -> BooleanExpression:
        """The texts of the table."""
        return _of_table(self.source, self.table)

    def rows(self, table: pa.Table) -> list[int]:
        """Numbers of the subject's texts."""
        names = ("source", "table", "column", "epoch", "commit_lsn", "seq")
        found = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        return [
            n
            for n, (source, name, column, *position) in enumerate(found)
            if (source, name) == (self.source, self.table)
            and column not in self.kept
            and tuple(position) in self.positions
        ]

    holding = rows

    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table:
        """The table without the subject's texts."""
        gone = set(self.rows(table))
        return table.filter(pa.array([n not in gone for n in range(table.num_rows)], pa.bool_()))

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The texts of these rows."""
        yield from (table.column("text")[n].as_py() for n in rows)


def _of_table(source: str, table: str) -> BooleanExpression:
    return And(EqualTo(term="source", value=source), EqualTo(term="table", value=table))
