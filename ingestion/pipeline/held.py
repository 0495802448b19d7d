"""What a follower has read and not published: held in memory until the declared flush is due.

A crash loses nothing else: the next follower reads again from the published position. Whatever changes what a publish
would go by (positions, another epoch, a conflict that made its plan outdated) forgets it, for the same reason.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.manifest import DataFile

from ingestion.schema.positions import Position
from ingestion.sink.live import StagedTable
from ingestion.sink.writer import Written, merge, merge_files
from ingestion.state.store import Stream

MOST_ASIDE = 5000  # files of what is kept aside; what a driver knows of each is some kilobytes
Files = Mapping[str, tuple[DataFile, ...]]


@dataclass
class Held:
    """Files of all reads since the last publish, below the prefixes of one cycle, and the position reached.

    `aside` are those of `meta` tables: records that do not land, and texts of values that the lake cannot hold.
    `ingested_at` is the moment of the newest read. `reads` counts them, those that are published or forgotten too.
    Used by the thread that reads.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    ahead: Position | None = None
    written: tuple[Written, ...] = ()
    aside: Files = field(default_factory=dict)
    cycle_id: str | None = None
    ingested_at: datetime | None = None
    staged: dict[str, StagedTable] = field(default_factory=dict)
    reads: int = 0
    _hurried: bool = False
    _since: float = 0.0
    _of: tuple[int, int] = (0, 0)

    def still_of(self, stream: Stream) -> bool:
        """Whether a publish may still go by what was read: nothing has changed but what the reads have found."""
        return self.cycle_id is None or self._of == (stream.epoch, stream.revision)

    def is_due(self, stream: Stream) -> bool:
        """Whether what is held has to be published."""
        waited = self.clock() - self._since >= self.seconds
        is_full = sum(map(len, self.aside.values())) >= MOST_ASIDE
        return self.cycle_id is not None and (waited or stream.flush_asked or self._hurried or is_full)

    def hurry(self) -> None:
        """It has to be published now: it could not be read again."""
        self._hurried = True

    def with_read(self, written: tuple[Written, ...], aside: Files) -> tuple[tuple[Written, ...], Files]:
        """All files, with those of one more read."""
        return tuple(merge((*self.written, *written)).values()), merge_files((self.aside, aside))

    def add(
        self,
        cycle_id: str,
        at: datetime,
        stream: Stream,
        written: tuple[Written, ...],
        aside: Files,
        position: Position,
    ) -> None:
        """Holds one more read of the cycle, made `at` that moment, up to `position`."""
        if self.cycle_id is None:
            self.cycle_id, self._since, self._of = cycle_id, self.clock(), (stream.epoch, stream.revision)
        self.written, self.aside = self.with_read(written, aside)
        self.ahead, self.reads, self.ingested_at = position, self.reads + 1, at

    def clear(self) -> str | None:
        """Holds nothing any more, and returns the cycle whose files those were."""
        cycle_id, self.cycle_id = self.cycle_id, None
        self.ahead, self.ingested_at, self._hurried = None, None, False
        self.written, self.aside, self.staged = (), {}, {}
        return cycle_id
