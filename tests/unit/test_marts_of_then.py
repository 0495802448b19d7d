"""Which snapshot of a mart a pin of the past keeps, beside what expiry has left of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

from lakehouse.catalog.open import PUT_BACK
from lakehouse_serve.past.states import newest_until

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)


def mart(
    *kept: int, log: Sequence[tuple[float, int]] = (), put_back: Mapping[float, int] | None = None, last: int = 0
) -> Any:
    """A mart that was built every day, with its snapshots of these days; the last one is its newest.

    Each took its place as a whole, so that the log has the newest alone, unless another one is given. It was put back
    to the snapshots of days on others.
    """
    snapshots = [
        Snapshot(snapshot_id=10 * day, sequence_number=day, timestamp_ms=milliseconds(day), manifest_list="")
        for day in kept
    ]
    moves = log or [(day, day) for day in kept[-1:]]
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    return SimpleNamespace(
        snapshots=snapshots,
        snapshot_log=[SnapshotLogEntry(snapshot_id=10 * day, timestamp_ms=milliseconds(at)) for at, day in moves],
        properties={f"{PUT_BACK}{milliseconds(at)}": str(10 * day) for at, day in (put_back or {}).items()},
        metadata_log=[],
        last_updated_ms=milliseconds(moves[-1][0] if moves else 1),
        last_sequence_number=last or max(kept, default=0),
        current_snapshot=lambda: by_id[10 * moves[-1][1]] if moves else None,
        snapshot_by_id=by_id.get,
    )


def milliseconds(day: float) -> int:
    return int(on(day).timestamp() * 1000)


def on(day: float) -> datetime:
    return BEGUN + timedelta(days=day - 1)


def test_it_is_the_last_one_until_the_moment() -> None:
    assert newest_until(mart(1, 2, 3, 4), on(2)) == (20, True)
    assert newest_until(mart(1, 2, 3, 4), on(2.5)) == (20, True)
    assert newest_until(mart(1, 2, 3, 4), on(9)) == (40, True)
    assert newest_until(mart(), on(1)) == (None, True), "it was not built yet"
    empty = mart(1, 2)
    empty.metadata_log = [SimpleNamespace(timestamp_ms=milliseconds(0.2))]
    assert newest_until(empty, on(0.5)) == (None, True), "it was there, and not built yet"


def test_a_snapshot_that_an_older_pin_kept_is_not_taken_for_one_that_has_expired() -> None:
    """A pin of a moment whose mart had expired kept that of a month before, and nobody was told."""
    assert newest_until(mart(2, 30), on(29.5)) == (20, False)
    assert newest_until(mart(30), on(29.5)) == (None, False), "it was built, and its snapshot is gone"
    assert newest_until(mart(2, 29, 30), on(29.5)) == (290, True)
    assert newest_until(mart(2, 30), on(30)) == (300, True)


def test_a_state_that_was_rolled_back_is_not_taken_for_that_of_the_time_after() -> None:
    replaced = mart(1, 2, 3, put_back={2.5: 1})
    assert newest_until(replaced, on(2.7)) == (10, True)
    assert newest_until(replaced, on(2.2)) == (20, True)
    assert newest_until(replaced, on(3)) == (30, True)
    assert newest_until(mart(2, 3, put_back={2.5: 1}), on(2.7)) == (10, False), "it has expired"
    grown = mart(1, 2, 3, log=[(1, 1), (2, 2), (2.5, 1), (3, 3)])
    assert newest_until(grown, on(2.7)) == (10, True), "the log is still there"


def test_what_readers_saw_before_a_restore_is_what_it_rolled_back() -> None:
    restored = mart(1, 2, log=[(1, 1), (2, 2), (3, 1)], put_back={3: 1})
    assert newest_until(restored, on(2.5)) == (20, True)
    assert newest_until(restored, on(3.5)) == (10, True)
    assert newest_until(mart(1, log=[(1, 1), (3, 1)], last=2), on(2.5)) == (10, False), "what was rolled back is gone"


def test_a_mart_that_was_made_later_says_nothing_of_one_of_its_name_before() -> None:
    """It was left out of the pin, and nobody was told."""
    assert newest_until(mart(1, 2), on(0.5)) == (None, False)
