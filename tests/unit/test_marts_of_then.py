"""Which snapshot of a mart a pin of the past keeps, beside what expiry has left of them."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from lakehouse_serve.past.states import newest_until

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)


def mart(*kept: int) -> Any:
    """A mart that was built every day, with its snapshots of these days; the last one is its newest."""
    snapshots = [
        Snapshot(
            snapshot_id=10 * day, sequence_number=day, timestamp_ms=int(on(day).timestamp() * 1000), manifest_list=""
        )
        for day in kept
    ]
    return SimpleNamespace(snapshots=snapshots, current_snapshot=lambda: snapshots[-1] if snapshots else None)


def on(day: float) -> datetime:
    return BEGUN + timedelta(days=day - 1)


def test_it_is_the_last_one_until_the_moment() -> None:
    assert newest_until(mart(1, 2, 3, 4), on(2)) == (20, True)
    assert newest_until(mart(1, 2, 3, 4), on(2.5)) == (20, True)
    assert newest_until(mart(1, 2, 3, 4), on(9)) == (40, True)
    assert newest_until(mart(1, 2), on(0.5)) == (None, True), "it was not built yet"
    assert newest_until(mart(), on(1)) == (None, True)


def test_a_snapshot_that_an_older_pin_kept_is_not_taken_for_one_that_has_expired() -> None:
    """A pin of a moment whose mart had expired kept that of a month before, and nobody was told."""
    assert newest_until(mart(2, 30), on(29.5)) == (20, False)
    assert newest_until(mart(30), on(29.5)) == (None, False), "it was built, and its snapshot is gone"
    assert newest_until(mart(2, 29, 30), on(29.5)) == (290, True)
    assert newest_until(mart(2, 30), on(30)) == (300, True)
