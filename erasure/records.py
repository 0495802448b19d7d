"""A subject in the spool, the dead letters (both pgoutput messages) and the texts of unrepresentable values.

A record keeps its position, operation and key; only personal columns become null, so that it can still land. A record
that cannot be decoded is removed if its bytes contain one of the subject's own values; otherwise it is kept and
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
class SubjectRecords:
    """The subject in `meta.spool` or `meta.quarantine`. `key` and `kept` are the source's column names, `typed`
    converts a key's texts to values, `values` are known texts of the subject that no other row has."""

    target: Target
    source: str
    table: str
    periods: tuple[Period, ...]
    key: tuple[str, ...]
    kept: frozenset[str]
    typed: Callable[[Mapping[str, str]], Key]
    values: frozenset[str] = frozenset()

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
        """The number of records that cannot be decoded."""
        return sum(_read(record) is None for _, record in self._records(table))

    def _records(self, table: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
        subject = pc.and_(pc.equal(table.column("source"), self.source), pc.equal(table.column("table"), self.table))
        for n in pc.indices_nonzero(subject).to_pylist():
            yield n, {name: table.column(name)[n].as_py() for name in RECORDS}

    def _found(self, table: pa.Table) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Number, message and new message (None: to delete) of each record of the subject."""
        for n, record in self._records(table):
            message, read = record["message"], _read(record)
            if read is None:
                if self._is_mentioned(message):
                    yield n, message, None
                continue
            columns, head, tuples = read
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            if any(
                period.key == key and period.holds(position)
                for key in self._keys(columns, tuples)
                for period in self.periods
            ):
                gone = set(columns) - self.kept  # a TOASTed value that is missing is filled from an emptied version
                yield n, message, joined(head, {which: emptied(columns, t, gone) for which, t in tuples.items()})

    def _is_mentioned(self, message: bytes) -> bool:
        values = (value for value in self.values if len(value) >= SHORTEST)
        return any(text in message for value in values for text in spellings(value))

    def _keys(self, columns: Sequence[str], tuples: Tuples) -> tuple[Key | None, Key | None]:
        """Old and new key; if the record has no old key, both are the new one."""
        before = next((tuples[which] for which in "KO" if which in tuples), None)
        return self._key(columns, before), self._key(columns, tuples.get("N"))

    def _key(self, columns: Sequence[str], cells: Sequence[bytes] | None) -> Key | None:
        if cells is None or not set(self.key) <= set(columns):
            return None
        texts = {name: _text(cells[columns.index(name)]) for name in self.key}
        return self.typed({name: text for name, text in texts.items() if text is not None})


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


def _read(record: Mapping[str, Any]) -> tuple[list[str], bytes, Tuples] | None:
    """Columns, head and tuples of a record; None if it cannot be decoded."""
    try:
        columns = [column.name for column in parse_relation(record["relation"], 0).columns]
        return columns, *split(record["message"])
    except (DecodeError, Unreadable):
        return None
