"""How far topics have been read whose events are of transactions: offsets, and the transaction that was the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from ingestion.schema.offsets import Offsets, Partition


@dataclass(frozen=True)
class TransactionOffsets(Offsets):
    """Offsets beside what has landed: up to the END at position `end`, committed at `at` (microseconds since 1970),
    in rows whose numbers are below `bound`. Its text is `shop.public.items/0:12,…@36970168:1764000000000000<36970169`.
    """

    end: int = 0
    at: int = 0
    bound: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position of a text."""
        offsets, _, landed = text.partition("@")
        if not landed:
            return cls(Offsets.parse(offsets).parts)
        ended, _, bound = landed.partition("<")
        end, _, at = ended.partition(":")
        return cls(Offsets.parse(offsets).parts, int(end), int(at), int(bound))

    @classmethod
    def of(cls, offsets: Mapping[Partition, int]) -> Self:
        """The position of these offsets; no transaction has landed."""
        return cls(Offsets.of(offsets).parts)

    def __le__(self, other: Offsets) -> bool:
        return super().__le__(other) and self.bound <= getattr(other, "bound", 0)

    def join(self, other: Offsets) -> "TransactionOffsets":
        """Of each partition the later offset, and of what has landed the later one."""
        later = max([self, other], key=lambda position: getattr(position, "bound", 0))
        end, at, bound = (getattr(later, name, 0) for name in ("end", "at", "bound"))
        return TransactionOffsets(super().join(other).parts, end, at, bound)

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return super().text + (f"@{self.end}:{self.at}<{self.bound}" if self.bound else "")

    @property
    def commit_bound(self) -> int:
        """The number below which those of all rows are that have landed."""
        return self.bound

    @property
    def committed_at(self) -> datetime | None:
        """When the last transaction was committed."""
        return datetime.fromtimestamp(self.at / 1_000_000, UTC) if self.end else None
