"""Where partitions ended a while ago, by the clock of who reads them: what is before that has come by then, whatever
its timestamp says."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from ingestion.schema.offsets import Partition
from ingestion.sources.debezium.clocks import Seen
from ingestion.sources.kafka.reading import Range

APART = timedelta(milliseconds=500)
KEPT = timedelta(minutes=2)  # longer than anything is waited for


class Ends:
    """The ends of partitions as of some moments."""

    def __init__(self) -> None:
        self._known: list[tuple[datetime, Mapping[Partition, int]]] = []

    def note(self, asked: datetime, ends: Mapping[Partition, int]) -> None:
        """Takes where partitions ended when they were asked: of many answers some, and those that told something."""
        last = self._known[-1] if self._known else None
        if last is not None and (asked < last[0] or any(ends.get(of, 0) < end for of, end in last[1].items())):
            self._known, last = [], None  # the clock was set back, or a topic is another one
        if last is None or (asked - last[0] >= APART and ends != last[1]):
            self._known.append((asked, ends))
        recent = sum(asked - moment <= KEPT for moment, _ in self._known)
        self._known = self._known[-recent - 1 :]

    def seen(self, ranges: Iterable[Range]) -> dict[Partition, Seen]:
        """By partition where it ended, as far as that is of these ranges."""
        return {(r.topic, r.partition): found for r in ranges if r.first < r.end and (found := [*self._of(r)])}

    def _of(self, wanted: Range) -> Iterable[tuple[int, datetime]]:
        found: list[tuple[int, datetime]] = []
        for moment, ends in reversed(self._known):
            end = ends.get((wanted.topic, wanted.partition), 0)
            if end <= wanted.first:
                break
            found.append((end, moment))
        return reversed(found)
