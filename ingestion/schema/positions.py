"""How far a source has been read: a position, which only its source understands.

Positions are partially ordered. Of two vectors of offsets each may be ahead in a partition of its own, so that neither
is at or below the other; what both have reached is their join. The state stores a position as text, in the form in
which its source writes it (`0/3C87757`, `topic/3:1042`), and that form is shown to people.
"""

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from ingestion.schema.offsets import Offsets
from ingestion.schema.transaction_offsets import TransactionOffsets


class Position(Protocol):
    """Everything below it has been read, everything else has not."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position of a text."""

    @classmethod
    def start(cls) -> Self:
        """The position at or below all others: nothing has been read."""

    def __le__(self, other: Self, /) -> bool:
        """Whether the other one is as far in every part. Of two positions it may hold neither way."""

    def join(self, other: Self, /) -> Self:
        """The least position that both are at or below."""

    @property
    def text(self) -> str:
        """How its source writes it."""

    @property
    def commit_bound(self) -> int:
        """A number above the `_commit_lsn` of every raw row below the position, and not above that of any other row.

        The pipeline and the readers of the lake tell by it which rows are new, so it has to hold at every position that
        a read ends at or a point has; the start's is 0. It does not go back where the position goes on.
        """


P = TypeVar("P", bound=Position)


class Lsn(int):
    """A position in Postgres's WAL, exclusive: every transaction whose commit LSN is below has been read.

    It prints as a number, since that is what SQL is to contain; `text` is what Postgres writes, such as 16/B374D848.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        """The LSN that Postgres writes so."""
        high, low = text.split("/")
        return cls((int(high, 16) << 32) | int(low, 16))

    @classmethod
    def start(cls) -> Self:
        """Postgres's invalid LSN, which is below all others."""
        return cls(0)

    def join(self, other: "Lsn") -> "Lsn":
        """The later of the two: LSNs are totally ordered."""
        return max(self, other)

    @property
    def text(self) -> str:
        """As Postgres writes it."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    @property
    def commit_bound(self) -> int:
        """The LSN itself."""
        return int(self)


POSITIONS: Mapping[str, Any] = {  # the type of position of each kind of source
    "postgres": Lsn, "kafka": Offsets, "debezium": TransactionOffsets,
}  # fmt: skip
