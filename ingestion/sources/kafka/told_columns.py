"""Which declared columns the events of a read have: one that none has is misspelt, or not sent any more."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.kafka.events import Decoded
from ingestion.sources.kafka.shape import Shape

ENOUGH = 100  # events that show which columns there are; fewer may leave one out that is optional


@dataclass
class ToldColumns:
    """By topic, the declared columns that no event had so far, and how many events had a value. A read may have several
    tasks, of which each knows its own events alone."""

    untold: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, shape: Shape, events: pa.Table, decoded: Decoded) -> None:
        """Takes what events have told."""
        untold = self.untold.setdefault(shape.topic, {of.name for of in shape.fields})
        rows = decoded.values.num_rows
        self.counts[shape.topic] = self.counts.get(shape.topic, 0) + decoded.operations.count("c")
        if not untold or not rows:
            return
        untold -= {name for name in untold if decoded.values.column(name).null_count < rows}
        values = events.column("value")
        untold -= {name for name in untold if _is_named(values, name)} if decoded.told is None else decoded.told

    def warnings(self, begun: Collection[str]) -> Iterator[str]:
        """What people are told; of the topics that have `begun` with this read, few events are all there are."""
        for topic, names in sorted(self.untold.items()):
            count = self.counts[topic]
            if count >= ENOUGH or (count and topic in begun):
                for name in sorted(names):  # one by one: what is told once must not be told of every set of them
                    yield (
                        f"topic {topic}: column {name} is in none of the events that a task has read together, and "
                        "lands as NULL in them: correct the name, unless it is optional"
                    )


def _is_named(values: pa.ChunkedArray, name: str) -> bool:
    """Whether the text of an event has the name, be it that of a field within another one."""
    written = {json.dumps(name, ensure_ascii=is_ascii).encode() for is_ascii in (True, False)}
    return any(pc.any(pc.match_substring(values, one)).as_py() for one in written)
