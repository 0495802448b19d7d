"""A subject in the spool and the dead letters of a source whose records are envelopes of Debezium.

As of pgoutput messages: a record keeps its place, operation and key. One that cannot be read is removed if it has a key
that was the subject's at its place, or one of the subject's own values, where its key cannot be read either, or was the
subject's at another time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from erasure.key_periods import Event, Key, Position, key_of
from erasure.records import SubjectRecords
from ingestion.sources.base import UnreadableRecord
from ingestion.sources.debezium.records import EnvelopeRecords
from ingestion.sources.kafka.values import Unread, text
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.errors import LakehouseError

Row = Mapping[str, Any]
RECORDS = EnvelopeRecords()


@dataclass(frozen=True)
class SubjectEnvelopes(SubjectRecords):
    """The subject in `meta.spool` or `meta.quarantine`; names and keys as of `SubjectRecords`."""

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The personal values in these records."""
        wanted = set(rows)
        for n, record in self._records(table):
            if n in wanted:
                for values in _values(record["message"]):
                    kept = self.kept | {*self._named(values).values()}
                    yield from (v for name, v in values.items() if name not in kept and isinstance(v, str) and v)

    def events(self, table: pa.Table) -> Iterator[Event]:
        """The records as events of their keys."""
        for _, record in self._records(table):
            for row in self._landing(record) or ():
                old = self.typed(json.loads(row["_old_key"])) if row["_old_key"] else None
                key = None if row["_op"] == "t" else self._key_of(row)
                position: Position = (record["epoch"], row["_commit_lsn"], row["_seq"])
                is_marker = row["_op"] == "t" and row["_xid"] is None
                yield Event(key, position, row["_op"], old, is_marker, self._says(row))

    def unreadable(self, table: pa.Table) -> int:
        """The number of records that cannot be read."""
        return sum(self._landing(record) is None for _, record in self._records(table))

    def _found(self, table: pa.Table) -> Iterator[tuple[int, bytes, bytes | None]]:
        for n, record in self._records(table):
            message, rows = record["message"], self._landing(record)
            if rows is None:
                if self._is_about_subject(record):
                    yield n, message, None
                continue
            if any(self._is_subject(record, row) for row in rows):
                personal = {name for values in _values(message) for name, v in values.items() if v is not None}
                gone = personal - self.kept - {name for row in rows for name in self._named(row).values()}
                yield n, message, RECORDS.without(message, record["relation"], gone) if gone else message

    def _is_about_subject(self, record: Row) -> bool:
        """Whether a record that cannot be read is the subject's."""
        names = {*self.key, *chain.from_iterable(self.called.values())}
        if rows := self._landing({**record, "message": _key_alone(record, names)}):
            return any(self._is_subject(record, row) for row in rows)
        if keys := list(self._keys_in(record["message"])):
            position: Position = (record["epoch"], record["commit_lsn"], record["seq"])
            had = [period for period in self.periods if period.key in keys]
            if not had or any(period.holds(position) for period in had):
                return bool(had)
        return self._is_mentioned(record["message"])

    def _keys_in(self, message: bytes) -> Iterator[Key]:
        for values in _values(message):
            named = self._named(values)
            if named and all(values[known] is not None for known in named.values()):
                with suppress(ValueError, TypeError, LakehouseError):
                    yield self.typed({name: text(values[known]) for name, known in named.items()})

    def _is_subject(self, record: Row, row: Row) -> bool:
        position: Position = (record["epoch"], row["_commit_lsn"], row["_seq"])
        keys = [None if row["_op"] == "t" else self._key_of(row)]
        if row["_old_key"]:
            keys.append(self.typed(json.loads(row["_old_key"])))
        return any(period.key == key and period.holds(position) for key in keys for period in self.periods)

    def _says(self, row: Row) -> bool:
        """Whether personal data is there after a change."""
        told = {name for name, value in row.items() if value is not None} | {*(row["_unchanged"] or ())}
        kept = {*self.kept, *self._named(row).values(), *OF_KINDS["debezium"]}
        return row["_op"] not in ("d", "t") and not told <= kept

    def _key_of(self, row: Row) -> Key:
        return key_of(row[known] for known in self._named(row).values())

    def _landing(self, record: Row) -> list[Row] | None:
        """What would land of a record; None where it cannot be read."""
        one = pa.table({name: [record[name]] for name in ("message", "commit_lsn", "seq")})
        try:
            made = list(RECORDS.decode(record["relation"], one, lambda _: None, ()))
        except (UnreadableRecord, LakehouseError, Unread, ValueError, TypeError):
            return None
        pairs = ((batch.values.to_pylist(), batch.meta.to_pylist()) for batch in made)
        rows = [values | meta for of, metas in pairs for values, meta in zip(of, metas, strict=True)]
        return rows if all(row["_op"] == "t" or self._named(row) for row in rows) else None


def _key_alone(record: Row, key: Collection[str]) -> bytes:
    """The record without what is not in its key: that may be all that keeps it from being read."""
    others = {name for values in _values(record["message"]) for name in values if name not in key}
    try:
        return RECORDS.without(record["message"], record["relation"], others)
    except (ValueError, TypeError, KeyError, AttributeError):
        return record["message"]


def _values(message: bytes) -> Iterator[dict[str, Any]]:
    """The rows that a record has: the one that a key change left, the one before, the one after."""
    head, _, value = message.partition(b"\n")
    try:
        fields = json.loads(value)
        envelope = fields.get("payload", fields)
        rows = (json.loads(head)["old"], envelope.get("before"), envelope.get("after"))
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return iter(())
    return (row for row in rows if isinstance(row, dict))
