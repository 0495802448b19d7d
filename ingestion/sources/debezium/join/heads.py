"""Of each event what its place depends on, in columns: a transaction may have more events than fit as objects."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from ingestion.sources.kafka.values import text

EVENT, LOOSE, EMPTY, UNREAD, SNAPSHOT = range(5)
"""Of a transaction; of none, as the rows of an incremental snapshot; a tombstone; not to be read; a row of a snapshot
during which the connector does not read the stream."""
FAR = 1 << 63
_TYPES = {"i": np.int32, "q": np.int64, "b": np.int8}


@dataclass
class Heads:
    """The events of a read: of each partition, by its number here, those in the order of offsets.

    `xid` to `identity` say nothing of an event that is of no transaction. `at` is when the broker got it.
    """

    partition: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    xid: array[int] = field(default_factory=lambda: array("q"))
    lsn: array[int] = field(default_factory=lambda: array("q"))
    order: array[int] = field(default_factory=lambda: array("q"))
    in_table: array[int] = field(default_factory=lambda: array("q"))
    op: array[int] = field(default_factory=lambda: array("b"))
    identity: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.kind)

    def add(
        self, partition: int, offset: int, at: int, kind: int, *, xid: int = 0, lsn: int = 0, order: int = 0,
        in_table: int = 0, op: str = " ", identity: int = 0,
    ) -> None:  # fmt: skip
        """Adds an event."""
        self.partition.append(partition)
        self.offset.append(offset)
        self.at.append(at)
        self.kind.append(kind)
        self.xid.append(xid)
        self.lsn.append(lsn)
        self.order.append(order)
        self.in_table.append(in_table)
        self.op.append(ord(op))
        self.identity.append(identity)

    def extend(self, **columns: np.ndarray) -> None:
        """Adds events in columns, of all the fields."""
        for name, values in columns.items():
            into = getattr(self, name)
            into.frombytes(np.ascontiguousarray(values, _TYPES[into.typecode]).tobytes())


def identity_of(key: Sequence[Any]) -> int:
    """A number for the key of a row, by which an event that comes twice is known: one whole number is its own."""
    if len(key) == 1 and type(key[0]) is int and -FAR <= key[0] < FAR:
        return key[0]
    said = "\0".join(map(text, key))
    return int.from_bytes(blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
