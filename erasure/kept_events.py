"""A subject in the spool and the dead letters of a source of plain events.

An event keeps its place, and the columns that are not personal. One that cannot be read, or does not tell its key, is
removed if it has one of the subject's own values; otherwise it is kept and reported. Of an event without a value the
key's columns are left.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from erasure.key_periods import Event, Key, Position
from erasure.records import SubjectRecords
from ingestion.sources.base import UnreadableRecord
from ingestion.sources.kafka.records import EventRecords
from ingestion.sources.kafka.shape import Shape
from ingestion.sources.kafka.values import Row, Unread, text
from lakehouse.errors import LakehouseError


@dataclass(frozen=True)
class _Told:
    """What an event tells: its key, None where a column that names subjects is not there, and its fields."""

    key: Key | None
    row: Row
    is_delete: bool


@dataclass(frozen=True)
class SubjectEvents(SubjectRecords):
    """The subject in `meta.spool` or `meta.quarantine`. `shape` is that of the table's events now, `records` how they
    are read. Where the shape has no key, `key` are the columns that name the subject, and an event that lacks one is
    nobody's."""

    shape: Shape = field(kw_only=True)
    records: EventRecords = field(kw_only=True)

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The personal values in these records."""
        wanted = set(rows)
        for n, record in self._records(table):
            if n in wanted and (told := self._told(record["message"])) is not None:
                yield from (str(v) for name, v in self._personal(told.row).items() if isinstance(v, str) and v)

    def events(self, table: pa.Table) -> Iterator[Event]:
        """The records as events of their keys."""
        for _, record in self._records(table):
            told = self._told(record["message"])
            if told is not None and told.key is not None:
                holds = not told.is_delete and any(v is not None for v in self._personal(told.row).values())
                yield Event(told.key, _position(record), "d" if told.is_delete else "c", holds=holds)

    def unreadable(self, table: pa.Table) -> int:
        """The number of records that cannot be read, or do not tell the table's key."""
        return sum(self._told(record["message"]) is None for _, record in self._records(table))

    def _found(self, table: pa.Table) -> Iterator[tuple[int, bytes, bytes | None]]:
        for n, record in self._records(table):
            message = record["message"]
            if (told := self._told(message)) is None:
                if self._is_mentioned(message) or self._is_mentioned(_key_in(message)):
                    yield n, message, None
            elif any(p.key == told.key and p.holds(_position(record)) for p in self.periods):
                relation = replace(self.shape, key=self.key).encoded
                yield n, message, self.records.without(message, relation, self._personal(told.row))

    def _told(self, message: bytes) -> _Told | None:
        try:
            row, is_delete = self.records.told(message, self.shape)
            texts = {name: text(row[name]) for name in self.key if row.get(name) is not None}
        except (UnreadableRecord, Unread, RecursionError):
            return None
        if texts.keys() != {*self.key}:
            is_unread = self.shape.key or (is_delete and not row)
            return None if is_unread else _Told(None, row, is_delete)
        try:
            return _Told(self.typed(texts), row, is_delete)
        except LakehouseError:  # no value of the column's type
            return None

    def _personal(self, row: Row) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in self.kept and name not in self.key}


def _position(record: Row) -> Position:
    return record["epoch"], record["commit_lsn"], record["seq"]


def _key_in(message: bytes) -> bytes:
    """The key of an event, which stands there in other letters."""
    try:
        return b64decode(json.loads(message.partition(b"\n")[0])["key"] or b"")
    except (ValueError, TypeError, KeyError):
        return b""
