"""The options of a simulator run, validated before it connects to the database."""

from dataclasses import dataclass

from lakehouse.errors import LakehouseError

TRANSACTIONS = 5_000
BATCH_SIZE = 500


@dataclass(frozen=True)
class Options:
    """The number and shape of sales, and the other changes per batch."""

    transactions: int | None = TRANSACTIONS
    """Number of sales; None runs until stopped."""
    batch_size: int = BATCH_SIZE
    known_customers: float = 0.9
    min_items: int = 1
    max_items: int = 5
    price_changes: int = 1
    tier_changes: int = 1
    returns: int = 5
    sync: bool = True
    rate: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises LakehouseError for invalid or contradictory values."""
        _require(self.transactions is None or self.transactions >= 0, "--transactions must be 0 or more")
        _require(self.batch_size >= 1, "--batch-size must be at least 1")
        _require(0 <= self.known_customers <= 1, "--known-customers is a share between 0 and 1")
        _require(1 <= self.min_items <= self.max_items, "--min-items must be at least 1 and at most --max-items")
        _require(self.rate is None or self.rate > 0, "--rate must be more than 0 transactions a second")
        changes = (self.price_changes, self.tier_changes, self.returns)
        _require(min(changes) >= 0, "--price-changes, --tier-changes and --returns must be 0 or more")

    @property
    def step(self) -> int:
        """Sales per commit; with a rate, at most those of one second, so that sales arrive evenly."""
        return self.batch_size if self.rate is None else max(1, min(self.batch_size, int(self.rate)))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise LakehouseError(f"simulate retail: {message}")
