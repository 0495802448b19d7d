"""How far a source has been read: a position, which only its source understands.

Positions are partially ordered. Of two vectors of offsets each may be ahead in a partition of its own, so that neither
is at or below the other; what both have reached is their join. A position has a spelling, by which it is shown and
kept (`0/3C87757`, `topic/3:1042`), and its source reads that again.

The state keeps a position of Postgres as a bigint, in `lsn`, `point` and `cut_lsn`: `ingestion.state.store` makes an
`Lsn` of it, and nothing else does.
"""

from typing import Protocol, Self, TypeVar


class Position(Protocol):
    """Everything below it has been read, everything else has not."""

    def __le__(self, other: Self, /) -> bool:
        """Whether the other one is as far in every part. Of two positions it may hold neither way."""

    def join(self, other: Self, /) -> Self:
        """The least position that both are at or below."""

    @property
    def text(self) -> str:
        """Its spelling."""


P = TypeVar("P", bound=Position)


class Lsn(int):
    """A position in Postgres's WAL, exclusive: every transaction whose commit LSN is below has been read.

    It prints as a number, since that is what SQL is to contain; `text` is what Postgres writes, such as 16/B374D848.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position of a spelling."""
        high, low = text.split("/")
        return cls((int(high, 16) << 32) | int(low, 16))

    def join(self, other: "Lsn") -> "Lsn":
        """The later of the two: LSNs are totally ordered."""
        return max(self, other)

    @property
    def text(self) -> str:
        """As Postgres writes it."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"
