"""Relation messages, and which version of a relation each row message belongs to."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ingestion.schema.changes import Relation, RelationColumn
from ingestion.sources.postgres.pgoutput.model import DecodeError
from ingestion.sources.postgres.pgoutput.wire import Positions, Wire


def parse_relation(message: bytes, index: int) -> Relation:
    """Read one Relation message."""
    try:
        return _parse(memoryview(message))
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise DecodeError(index, f"relation message is not readable ({error})") from None


def _parse(message: memoryview) -> Relation:
    oid = int.from_bytes(message[1:5], "big")
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    identity = chr(message[at])
    count = int.from_bytes(message[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(message[at] & 1)
        column, at = _string(message, at + 1)
        type_oid = int.from_bytes(message[at : at + 4], "big")
        typmod = int.from_bytes(message[at + 4 : at + 8], "big", signed=True)
        columns.append(RelationColumn(column, type_oid, typmod, is_key))
        at += 8
    if at != len(message):
        raise ValueError(f"{len(message)} bytes, {at} expected")
    if identity not in "dnfi":
        raise ValueError(f"replica identity {identity!r}")
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def encode_relation(relation: Relation) -> bytes:
    """The Relation message that describes a relation; `parse_relation` reads it back."""
    head = b"R" + relation.oid.to_bytes(4, "big") + relation.schema.encode() + b"\0" + relation.name.encode() + b"\0"
    columns = [
        bytes([c.is_key]) + c.name.encode() + b"\0" + struct.pack(">Ii", c.type_oid, c.typmod) for c in relation.columns
    ]
    return head + relation.replica_identity.encode() + struct.pack(">H", len(columns)) + b"".join(columns)


def _string(message: memoryview, at: int) -> tuple[str, int]:
    end = bytes(message[at:]).index(0) + at
    return bytes(message[at:end]).decode(), end + 1


@dataclass(frozen=True)
class Versions:
    """The relations in force before a block, and those that Relation messages in it put in force, in order."""

    before: Mapping[int, Relation]
    changes: tuple[tuple[int, Relation], ...] = field(default=())  # (index of the message, relation)

    def after(self) -> Mapping[int, Relation]:
        """The relations in force after the block."""
        return {**self.before, **{relation.oid: relation for _, relation in self.changes}}

    def split(self, oid: int, messages: Positions) -> Iterator[tuple[Relation, Positions]]:
        """Cut a relation's row messages (ascending) where the relation was described anew.

        Also where it was described as before: between the two another relation may have had its name.
        """
        current = self.before.get(oid)
        first = 0
        for index, relation in self.changes:
            if relation.oid == oid:
                last = int(np.searchsorted(messages, index))
                yield from _segment(current, oid, messages[first:last])
                current, first = relation, last
        yield from _segment(current, oid, messages[first:])


def _segment(relation: Relation | None, oid: int, messages: Positions) -> Iterator[tuple[Relation, Positions]]:
    if len(messages) == 0:
        return
    if relation is None:
        raise DecodeError(int(messages[0]), f"change of relation {oid}, which no message described")
    yield relation, messages


def read_versions(wire: Wire, at: Positions, before: Mapping[int, Relation]) -> Versions:
    """Read a block's Relation messages; Postgres repeats them, so each distinct one is parsed once."""
    parsed: dict[bytes, Relation] = {}
    changes = []
    for index in at.tolist():
        message = wire.message(index)
        if message not in parsed:
            parsed[message] = parse_relation(message, index)
        changes.append((index, parsed[message]))
    return Versions(before, tuple(changes))


def read_truncates(wire: Wire, at: Positions) -> tuple[list[int], list[int]]:
    """Every relation of every Truncate message: (message indexes, relation oids)."""
    messages: list[int] = []
    oids: list[int] = []
    for index in at.tolist():
        message = wire.message(index)
        count = int.from_bytes(message[1:5], "big")
        if len(message) != 6 + 4 * count:
            raise DecodeError(index, "truncate message has a wrong length")
        messages += [index] * count
        oids += np.frombuffer(message, ">u4", count, 6).tolist()
    return messages, oids


def segments(versions: Versions, messages: Positions, oids: Positions) -> list[tuple[Relation, Positions]]:
    """Row messages (ascending) of each relation version, in order of the first message."""
    found = [part for oid, group in _group_by_oid(messages, oids) for part in versions.split(oid, group)]
    return sorted(found, key=lambda part: int(part[1][0]))


def _group_by_oid(messages: Positions, oids: Positions) -> Iterator[tuple[int, Positions]]:
    if len(oids) and (oids == oids[0]).all():
        yield int(oids[0]), messages
        return
    distinct, code = np.unique(oids, return_inverse=True)
    order = np.argsort(code.astype(np.uint32), kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(distinct) + 1))
    for group in range(len(distinct)):
        yield int(distinct[group]), messages[order[bounds[group] : bounds[group + 1]]]
