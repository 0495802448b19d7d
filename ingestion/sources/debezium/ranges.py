"""What one read of Debezium's topics is of, and how its messages are fetched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from ingestion.schema.offsets import Partition
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.debezium.clocks import Seen
from ingestion.sources.debezium.message.envelope import Origin
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.kafka.reading import Range, TopicReader
from ingestion.sources.kafka.registry import SchemaRegistry
from lakehouse.errors import LakehouseError


@dataclass(frozen=True)
class EnvelopeRanges:
    """The ranges of data topics, of those with several partitions of all, and the one of the transaction topic, whose
    `place` is its earliest offset; None where transactions are not told. `wide` topics have several partitions.
    `midway` are relations that began in an epoch in which nothing had landed, but whose transaction topic goes on from
    an offset: the ENDs before it are history. The ends of partitions were `asked` for at a moment, of which those that
    are `behind` are not read up to them; where they were before is what was `seen`. `beginnings` are the offsets at
    which topics begin whose earlier events are gone, of those that may not have been read yet. `origins` are by topic
    that of the last event before, where it is known.

    Travels by pickle; holds the password.
    """

    source: str
    properties: Mapping[str, Any]
    ranges: tuple[Range, ...]
    told: Range | None
    is_told: bool
    histories: Mapping[str, int]
    shapes: Mapping[str, Shape]
    before: TransactionOffsets
    exactly_once: bool
    is_whole: bool
    now: datetime
    batch_bytes: int
    wide: frozenset[str] = frozenset()
    registry: SchemaRegistry | None = None
    midway: Mapping[str, int] = field(default_factory=dict)
    behind: frozenset[Partition] = frozenset()
    asked: datetime | None = None
    seen: Mapping[Partition, Seen] = field(default_factory=dict)
    beginnings: Mapping[Partition, int] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def passed(self) -> frozenset[str]:
        """The topics of which something was read before."""
        return frozenset(of[0] for of, offset in self.before if offset > self.beginnings.get(of, 0))

    def messages(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.Table]]:
        """All messages of some ranges, a batch of one topic at a time."""
        some = tuple(r for r in ranges if r.first < r.end)
        if some:
            yield from TopicReader(
                self.source, self.properties, some, {}, 0, self.now, self.batch_bytes, {}
            ).fetched()  # fmt: skip

    def refused(self, says: str) -> LakehouseError:
        """The error of a source that cannot go on."""
        return LakehouseError(f"source {self.source!r}: {says}")
