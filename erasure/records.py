"""A subject in what ingestion keeps as the slot sent it: pgoutput messages of parked tables, and texts of odd values.

A record keeps its place, its operation and its key; only the cells of personal columns become null ones, so it lands
later like any other. A record whose frame cannot be read is taken away where one of the subject's values stands in its
bytes; otherwise it stays, and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo

from erasure.lives import Event, Key, Life, Position
from erasure.places import Place
from ingestion.sources.postgres.pgoutput import DecodeError
from ingestion.sources.postgres.pgoutput.relations import parse_relation
from ingestion.sources.postgres.pgoutput.tuples import Tuples, Unreadable, emptied, joined, split

RECORDS = ("source", "table", "epoch", "commit_lsn", "seq", "relation", "message")


def key_texts(tuples: Tuples, which: str, columns: Sequence[str], key: Sequence[str]) -> tuple[str | None, ...]:
    """The key that a tuple carries, as Postgres prints it."""
    return tuple(_text(tuples[which][columns.index(name)]) for name in key)


def _text(cell: bytes) -> str | None:
    return cell[5:].decode("utf-8", "replace") if cell[:1] == b"t" else None


@dataclass(frozen=True)
class MineInRecords:
    """The subject in `meta.spool` or `meta.quarantine`. `personal` and `key` are columns as the source spells them,
    `typed` makes a key of texts one of values; `values` are known of the subject."""

    place: Place
    source: str
    table: str
    lives: tuple[Life, ...]
    key: tuple[str, ...]
    kept: frozenset[str]
    typed: Callable[[Mapping[str, str]], Key]
    values: frozenset[str] = frozenset()

    def filter(self) -> BooleanExpression:
        """The records of the table."""
        return And(EqualTo(term="source", value=self.source), EqualTo(term="table", value=self.table))

    def rows(self, table: pa.Table) -> list[int]:
        """Numbers of the records that are about the subject, unreadable ones that name it among them."""
        return [n for n, _, _ in self._found(table)]

    def holding(self, table: pa.Table) -> list[int]:
        """Those of the records that carry something personal."""
        return [n for n, before, after in self._found(table) if before != after]

    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table:
        """The records with their personal cells null."""
        changed = {n: after for n, _, after in self._found(table)}
        messages = [changed.get(n, message) for n, message in enumerate(table.column("message").to_pylist())]
        place = table.schema.get_field_index("message")
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.array(messages, field.type))
        return table.filter(pa.array([n not in changed or changed[n] is not None for n in range(len(messages))]))

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The personal values in these records."""
        wanted = set(rows)
        for n, record in self._records(table):
            if n in wanted and (read := _read(record)) is not None:
                columns, _, tuples = read
                for cells in tuples.values():
                    for name, cell in zip(columns, cells, strict=False):
                        if name not in self.kept and (text := _text(cell)):
                            yield text

    def events(self, table: pa.Table) -> Iterator[Event]:
        """The records as events of their keys."""
        for _, record in self._records(table):
            if (read := _read(record)) is None:
                continue
            columns, head, tuples = read
            old, new = self._keys(columns, tuples)
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            moved = old is not None and new is not None and old != new
            if moved or head[:1] == b"D":
                yield Event(old, position, "d")
            if new is not None:
                at = (*position[:-1], position[-1] + 1) if moved else position
                yield Event(new, at, "c" if moved else head[:1].decode().lower(), old if moved else None)

    def unreadable(self, table: pa.Table) -> int:
        """Records that cannot be read at all."""
        return sum(_read(record) is None for _, record in self._records(table))

    def _records(self, table: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
        mine = pc.and_(pc.equal(table.column("source"), self.source), pc.equal(table.column("table"), self.table))
        for n in pc.indices_nonzero(mine).to_pylist():
            yield n, {name: table.column(name)[n].as_py() for name in RECORDS}

    def _found(self, table: pa.Table) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Number, message and what becomes of it, of each record about the subject."""
        for n, record in self._records(table):
            message, read = record["message"], _read(record)
            if read is None:
                if any(value.encode() in message for value in self.values):
                    yield n, message, None
                continue
            columns, head, tuples = read
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            if any(
                life.key == key and life.holds(position) for key in self._keys(columns, tuples) for life in self.lives
            ):
                gone = set(columns) - self.kept  # what was not carried stays so: it is filled from an emptied version
                yield n, message, joined(head, {which: emptied(columns, t, gone) for which, t in tuples.items()})

    def _keys(self, columns: Sequence[str], tuples: Tuples) -> tuple[Key | None, Key | None]:
        """Keys before and after; where the old one is not sent, it is the new one."""
        before = next((tuples[which] for which in "KO" if which in tuples), None)
        return self._key(columns, before), self._key(columns, tuples.get("N"))

    def _key(self, columns: Sequence[str], cells: Sequence[bytes] | None) -> Key | None:
        if cells is None or not set(self.key) <= set(columns):
            return None
        texts = {name: _text(cells[columns.index(name)]) for name in self.key}
        return self.typed({name: text for name, text in texts.items() if text is not None})


@dataclass(frozen=True)
class MineInTexts:
    """The subject in `meta.unrepresentable`: texts of its rows' personal columns, found by the rows' positions."""

    place: Place
    source: str
    table: str
    positions: frozenset[Position]
    kept: frozenset[str]

    def filter(self) -> BooleanExpression:
        """The texts of the table."""
        return And(EqualTo(term="source", value=self.source), EqualTo(term="table", value=self.table))

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
        """Without them."""
        gone = set(self.rows(table))
        return table.filter(pa.array([n not in gone for n in range(table.num_rows)], pa.bool_()))

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """What they say."""
        yield from (table.column("text")[n].as_py() for n in rows)


def _read(record: Mapping[str, Any]) -> tuple[list[str], bytes, Tuples] | None:
    """Columns, head and tuples of a record; None where it cannot be read."""
    try:
        columns = [column.name for column in parse_relation(record["relation"], 0).columns]
        return columns, *split(record["message"])
    except (DecodeError, Unreadable):
        return None
