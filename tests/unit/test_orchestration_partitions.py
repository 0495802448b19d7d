"""Daily partitions: the days that an incremental load completes and those that a backfill derives again."""

from datetime import UTC, date, datetime

import dagster as dg
import pytest

from orchestration.runs import tags
from orchestration.runs.partitions import (
    DayRange,
    backfill_days,
    daily_partitions,
    days_completed,
    incremental_tags,
)

NOW = datetime(2026, 5, 4, 23, 59, 59, tzinfo=UTC)
FIRST = date(2026, 4, 28)


def test_today_is_a_partition() -> None:
    days = daily_partitions(datetime.now(UTC).date())
    assert days.get_partition_keys() == [datetime.now(UTC).date().isoformat()]


@pytest.mark.parametrize(
    ("last", "first_completed"),
    [
        (None, date(2026, 5, 4)),
        (datetime(2026, 5, 4, 0, 0, tzinfo=UTC), date(2026, 5, 4)),
        (datetime(2026, 5, 1, 12, 0, tzinfo=UTC), date(2026, 5, 1)),
        (datetime(2026, 1, 1, 12, 0, tzinfo=UTC), FIRST),
    ],
)
def test_a_load_completes_the_days_since_the_last_one(last: datetime | None, first_completed: date) -> None:
    assert days_completed(FIRST, last, NOW) == DayRange(first_completed, date(2026, 5, 4))


def test_an_ordinary_load_derives_no_day_again() -> None:
    assert backfill_days({}) is None
    assert backfill_days(incremental_tags(FIRST, None, NOW)) is None
    assert backfill_days(incremental_tags(FIRST, NOW, NOW)) is None


def test_a_backfill_of_a_day_or_of_a_range_does() -> None:
    assert backfill_days({"dagster/partition": "2026-05-01"}) == DayRange(date(2026, 5, 1), date(2026, 5, 1))
    several = DayRange(date(2026, 5, 1), date(2026, 5, 3))
    assert backfill_days(several.run_tags()) == several


@pytest.mark.parametrize("days", [1, 3])
def test_dagster_reads_the_tags_as_partitions(days: int) -> None:
    """A load runs once for all the days it completes, and each of them shows as materialized."""
    partitions = daily_partitions(FIRST)

    @dg.asset(partitions_def=partitions, backfill_policy=dg.BackfillPolicy.single_run())
    def table() -> None: ...

    wanted = DayRange(date(2026, 5, 4 - days + 1), date(2026, 5, 4))
    result = dg.materialize([table], tags={**wanted.run_tags(), tags.MODE: tags.INCREMENTAL})
    keys = [event.partition for event in result.get_asset_materialization_events()]
    assert keys == [f"2026-05-{day:02}" for day in range(4 - days + 1, 5)]


def test_foreign_tags_read_as_nothing_recorded() -> None:
    assert tags.unpack_snapshots(None) == {}
    assert tags.unpack_snapshots("[1]") == {}
    assert tags.unpack_snapshots('{"raw_a.b": "9223372036854775807"}') == {"raw_a.b": 2**63 - 1}
