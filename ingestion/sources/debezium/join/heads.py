"""Of each event what its place depends on, in columns: a transaction may have more events than fit as objects."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ingestion.sources.debezium.numbers import Numbers
from ingestion.sources.kafka.values import text

EVENT, LOOSE, EMPTY, UNREAD, SNAPSHOT = range(5)
"""Of a transaction; of none, as the rows of an incremental snapshot; a tombstone; not to be read; a row of a snapshot
during which the connector does not read the stream."""
FAR = 1 << 63
HEAD = np.dtype(
    [
        ("partition", np.int32), ("offset", np.int64), ("at", np.int64), ("sent", np.int64), ("kind", np.int8),
        ("xid", np.int64), ("lsn", np.int64), ("order", np.int64), ("in_table", np.int64), ("op", np.int8),
        ("identity", np.int64),
    ]
)  # fmt: skip


class Heads:
    """The events of a read: of each partition, by its number here, those in the order of offsets.

    `xid` to `identity` say nothing of an event that is of no transaction. `at` is when the broker got it, no later than
    now; `sent` is the same by which events of several partitions are ordered, which a clock may have ahead.
    """

    def __init__(self) -> None:
        self._rows = Numbers(HEAD)

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, partition: int, offset: int, at: int, kind: int, *, sent: int | None = None, xid: int = 0, lsn: int = 0,
        order: int = 0, in_table: int = 0, op: str = " ", identity: int = 0,
    ) -> None:  # fmt: skip
        """Adds an event."""
        by_order = at if sent is None else sent
        self._rows.append((partition, offset, at, by_order, kind, xid, lsn, order, in_table, ord(op), identity))

    def extend(self, **columns: np.ndarray) -> None:
        """Adds events in columns, of all the fields."""
        rows = np.empty(len(columns["kind"]), HEAD)
        for name, values in columns.items():
            rows[name] = values
        self._rows.extend(rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]

    def window(self, first: int, end: int) -> np.ndarray:
        """The events from `first` to before `end`."""
        return self._rows.window(first, end)

    def windows(self) -> Iterator[tuple[int, np.ndarray]]:
        """All of them, some at a time, with the index of the first."""
        return self._rows.windows()

    def loaded(self) -> Loaded:
        """All of them in memory."""
        found = Loaded(*(array(HEAD[name].char) for name in HEAD.names or ()))
        for _, rows in self.windows():
            for name in HEAD.names or ():
                getattr(found, name).frombytes(rows[name].tobytes())
        return found

    def close(self) -> None:
        """Deletes them."""
        self._rows.close()


@dataclass(frozen=True)
class Loaded:
    """The columns of heads in memory, where each event is looked at by itself."""

    partition: array[int]
    offset: array[int]
    at: array[int]
    sent: array[int]
    kind: array[int]
    xid: array[int]
    lsn: array[int]
    order: array[int]
    in_table: array[int]
    op: array[int]
    identity: array[int]

    def __len__(self) -> int:
        return len(self.kind)


def identity_of(key: Sequence[Any]) -> int:
    """A number for the key of a row, by which an event that comes twice is known: one whole number is its own."""
    if len(key) == 1 and type(key[0]) is int and -FAR <= key[0] < FAR:
        return key[0]
    said = "\0".join(map(text, key))
    return int.from_bytes(blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


def said_by(row: Mapping[str, Any]) -> int:
    """A number for all that an event says of its row."""
    return identity_of([json.dumps(row, sort_keys=True, default=repr)])
