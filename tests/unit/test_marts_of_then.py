"""Which snapshot of a mart a pin of the past keeps, beside what expiry has left of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

from lakehouse.catalog.open import PUBLISHED, PUT_BACK
from lakehouse.catalog.past import newest_until

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)
SECOND = 1 / 86400


def mart(
    *kept: int,
    log: Sequence[tuple[float, int]] = (),
    put_back: Mapping[float, int] | None = None,
    last: int = 0,
    made: Mapping[int, float] | None = None,
    published: Mapping[int, float] | None = None,
) -> Any:
    """A mart that was built every day, with its snapshots of these days; the last one is its newest.

    Each took its place as a whole, so that the log has the newest alone, unless another one is given. It was put back
    to the snapshots of days on others, and those of some days were made, or published, at another time.
    """
    made = made or {}
    snapshots = [
        Snapshot(
            snapshot_id=10 * day, sequence_number=day, timestamp_ms=milliseconds(made.get(day, day)), manifest_list=""
        )
        for day in kept
    ]
    moves = log or [(made.get(day, day), day) for day in kept[-1:]]
    put = {f"{PUT_BACK}{milliseconds(at)}": str(10 * day) for at, day in (put_back or {}).items()}
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    return SimpleNamespace(
        snapshots=snapshots,
        snapshot_log=[SnapshotLogEntry(snapshot_id=10 * day, timestamp_ms=milliseconds(at)) for at, day in moves],
        properties=put | {f"{PUBLISHED}{10 * day}": str(milliseconds(at)) for day, at in (published or {}).items()},
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


@pytest.mark.parametrize("made", [2 - SECOND, 2 + 2 * SECOND])
def test_the_marts_of_one_build_are_those_of_the_moment_at_which_it_was_published(made: float) -> None:
    """A pin of midnight kept the dimension that a build had made before, and the facts of the day before."""
    of_build = {"made": {2: made}, "published": {2: 2 + 4 * SECOND}}
    for found in (mart(1, 2, **of_build), mart(1, 2, 3, **of_build), mart(1, 2, log=[(1, 1), (made, 2)], **of_build)):
        assert newest_until(found, on(2)) == (10, True)
        assert newest_until(found, on(2 + 4 * SECOND)) == (20, True)


def test_of_the_snapshots_that_one_build_made_of_a_mart_readers_saw_the_last() -> None:
    merged = mart(1, 2, 3, 4, 5, made={2: 2.1, 3: 2.2, 4: 2.3}, published={2: 4, 3: 4, 4: 4})
    assert newest_until(merged, on(3)) == (10, True)
    assert newest_until(merged, on(4)) == (40, True)


def test_a_mart_that_was_put_back_to_a_published_snapshot_has_it_from_then_on() -> None:
    restored = mart(1, 2, 4, published={1: 1.5, 2: 2.5}, put_back={3: 1})
    assert newest_until(restored, on(2.7)) == (20, False), "the third is gone"
    assert newest_until(restored, on(2.2)) == (10, True)
    assert newest_until(mart(1, 2, 3, published={1: 1.5, 2: 2.2}, put_back={2.5: 1}), on(2.7)) == (10, True)


def test_a_snapshot_of_a_branch_was_never_the_mart() -> None:
    """A restore to a moment after a commit to a branch would have been to the branch."""
    assert newest_until(mart(1, 2, 3, log=[(1, 1), (3, 3)]), on(2.5)) == (10, True)
    assert newest_until(mart(1, 2, 4, log=[(1, 1), (4, 4)]), on(2.5)) == (10, False), "the third is gone"


def test_where_snapshots_have_no_numbers_nobody_knows_what_is_gone() -> None:
    """Format version 1 has none."""
    found = mart(1, 3)
    found.snapshots = [snapshot.model_copy(update={"sequence_number": None}) for snapshot in found.snapshots]
    assert newest_until(found, on(2)) == (10, False)
    assert newest_until(found, on(3)) == (30, True)
