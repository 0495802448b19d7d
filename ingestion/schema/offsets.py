"""How far topics have been read: of each partition, the offset of the next event."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

Partition = tuple[str, int]  # topic, number


@dataclass(frozen=True)
class Offsets:
    """The next offset of each partition, in order; a partition that is not named begins at 0. Its text is
    `clicks/0:1042,clicks/1:998`."""

    parts: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def of(cls, offsets: Mapping[Partition, int]) -> Self:
        """The position of these offsets."""
        return cls(tuple(sorted((topic, number, offset) for (topic, number), offset in offsets.items() if offset)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position of a text."""
        return cls.of(
            {partition_named(name): int(offset) for name, offset in map(_split, filter(None, text.split(",")))}
        )

    @classmethod
    def start(cls) -> Self:
        """Before all events."""
        return cls()

    def __le__(self, other: "Offsets") -> bool:
        theirs = other.by_partition
        return all(theirs.get((topic, number), 0) >= offset for topic, number, offset in self.parts)

    def __iter__(self) -> Iterator[tuple[Partition, int]]:
        return (((topic, number), offset) for topic, number, offset in self.parts)

    def join(self, other: "Offsets") -> "Offsets":
        """Of each partition the later offset."""
        mine, theirs = self.by_partition, other.by_partition
        return Offsets.of({p: max(mine.get(p, 0), theirs.get(p, 0)) for p in mine.keys() | theirs.keys()})

    def only(self, names: Collection[str]) -> "Offsets":
        """Of these partitions alone, which are named as in `text`."""
        return Offsets.of({partition: offset for partition, offset in self if name_of(partition) in names})

    def beyond(self, other: "Offsets") -> frozenset[str]:
        """The partitions, by name, in which it is further than the other."""
        theirs = other.by_partition
        return frozenset(name_of(partition) for partition, offset in self if offset > theirs.get(partition, 0))

    @property
    def by_partition(self) -> dict[Partition, int]:
        """The offsets that are not 0."""
        return dict(self)

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return ",".join(f"{name_of(partition)}:{offset}" for partition, offset in self)

    @property
    def count(self) -> int:
        """The sum of all offsets."""
        return sum(offset for _, _, offset in self.parts)

    @property
    def commit_bound(self) -> int:
        """The same: it grows with every read that finds something."""
        return self.count


def _split(part: str) -> tuple[str, str]:
    name, _, offset = part.rpartition(":")
    return name, offset


def name_of(partition: Partition) -> str:
    """What a partition is called in the text of a position."""
    return f"{partition[0]}/{partition[1]}"


def partition_named(name: str) -> Partition:
    """The partition of such a name."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)
