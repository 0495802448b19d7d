"""Of each event what its place depends on, in columns: a transaction may have more events than fit as objects."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

EVENT, LOOSE, EMPTY, UNREAD, SNAPSHOT = range(5)
"""Of a transaction; of none, as the rows of an incremental snapshot; a tombstone; not to be read; a row of a snapshot
during which the connector does not read the stream."""


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


def identity_of(key: str) -> int:
    """A number for the key of a row, by which an event that comes twice is known."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
