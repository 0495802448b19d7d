"""Topics of Debezium, read inside a Spark task: the transactions that are whole land, the others wait."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Keys, Landing, Noticed, Piece
from ingestion.sources.debezium import in_parts
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.debezium.work import Work
from ingestion.sources.kafka.reading import Range, TopicReader
from ingestion.sources.kafka.registry import SchemaRegistry
from lakehouse.errors import LakehouseError


@dataclass(frozen=True)
class EnvelopeReader:
    """One read: the ranges of data topics, and the one of the transaction topic, whose `place` is its earliest offset;
    None where transactions are not told. `wide` topics have several partitions. One that `is_part` reads some of the
    ranges of another.

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
    is_part: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read."""
        return not any(r.first < r.end for r in (*self.ranges, self.told) if r is not None)

    @property
    def relations(self) -> frozenset[int] | None:
        """Not known before it is read."""
        return None

    def parts(self) -> "Sequence[EnvelopeReader]":
        """Readers of about as many events each, where the ENDs alone may tell the places of all; else itself."""
        return in_parts.parts_of(self)

    def together(self, parts: Sequence[Noticed]) -> Noticed | None:
        """As the protocol."""
        return in_parts.together(self, parts)

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events of whole transactions in pieces; raises LakehouseError for what cannot be read."""
        if self.is_silent:
            return Noticed()
        work = Work(self, Spool())
        try:
            if self.is_part:
                return in_parts.land(work, landing, take)
            told = list(work.told(self.told)) if self.told else []
            work.fetch()
            work.check_wrapped()
            joined = work.join(told)
            for piece in work.pieces(joined, landing):
                take(piece)
            return work.noticed(joined)
        finally:
            work.close()

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
