"""Which messages of a read were read at once, and how their columns fit in with those that were not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ingestion.sources.debezium.at_once.readers import Readers
from ingestion.sources.debezium.at_once.scan import Scanned
from ingestion.sources.debezium.join.heads import EMPTY
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.kafka.events import one_chunk

_OF_EVENTS = {"kind": EMPTY, "xid": 0, "lsn": 0, "order": 0, "in_table": 0, "op": ord(" "), "identity": 0}


@dataclass(frozen=True)
class Part:
    """Messages of one topic by their index, from `first` to before `end`. Of those that were read at once, the table
    `kept` has what their rows are made of: a row for each that has a value. `odd` are bits, none where none is odd."""

    shape: Shape
    first: int
    end: int
    readers: Readers | None = None
    kept: int = 0
    odd: bytes = b""

    @property
    def is_odd(self) -> np.ndarray:
        """Which of the messages that were read at once have to be looked at one by one."""
        count = self.end - self.first
        return np.unpackbits(np.frombuffer(self.odd or bytes(-(-count // 8)), np.uint8), count=count).view(bool)


def part_of(shape: Shape, readers: Readers, first: int, kept: int, messages: pa.Table, found: Scanned) -> Part:
    """The part that these messages are."""
    there = one_chunk(messages.column("value")).is_valid().to_numpy(zero_copy_only=False)
    is_odd = np.zeros(len(there), bool)
    is_odd[there] = found.is_odd
    odd = np.packbits(is_odd).tobytes() if is_odd.any() else b""
    return Part(shape, first, first + len(there), readers, kept, odd)


def heads_of(
    part: Part, found: Scanned, messages: pa.Table, numbers: Mapping[tuple[str, int], int]
) -> dict[str, np.ndarray]:
    """What `Heads` has of these messages; `numbers` are those of partitions."""
    partitions = messages.column("partition").to_numpy()
    number = np.zeros(len(partitions), np.int32)
    for partition in np.unique(partitions).tolist():
        number[partitions == partition] = numbers[part.shape.topic, partition]
    there = one_chunk(messages.column("value")).is_valid().to_numpy(zero_copy_only=False)
    columns = {"partition": number, "offset": messages.column("offset").to_numpy()}
    for name in ("at", "sent"):
        columns[name] = one_chunk(messages.column(name)).view(pa.int64()).to_numpy() // 1000
    for name, empty in _OF_EVENTS.items():
        columns[name] = np.full(len(partitions), empty, np.int64)
        columns[name][there] = getattr(found, name)
    return columns


def runs(flags: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Where flags are alike: first, end, and which."""
    ends = np.flatnonzero(np.diff(flags)) + 1
    bounds = [0, *ends.tolist(), len(flags)]
    return ((first, end, bool(flags[first])) for first, end in pairwise(bounds) if first < end)
