"""Daily partitions of parsed and vault, by commit time in UTC. Raw assets are not partitioned.

A backfill derives its days again from raw and ignores the watermarks. An incremental load follows the watermarks and
materializes the partitions it completes: from the day of the last successful load to today; the first one today.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from orchestration.runs import tags

PARTITION, FIRST, LAST = "dagster/partition", "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""Tags of Dagster's."""


@dataclass(frozen=True)
class DayRange:
    """First and last day, inclusive."""

    first: date
    last: date

    def run_tags(self) -> dict[str, str]:
        """The tags that make Dagster run these partitions in a single run."""
        if self.first == self.last:
            return {PARTITION: self.last.isoformat()}
        return {
            FIRST: self.first.isoformat(),
            LAST: self.last.isoformat(),
        }


def daily_partitions(first_day: date) -> dg.DailyPartitionsDefinition:
    """Days from `first_day` to today, inclusive (`end_offset=1`: by default a day exists once it has ended)."""
    return dg.DailyPartitionsDefinition(start_date=first_day.isoformat(), timezone="UTC", end_offset=1)


def days_completed(first_day: date, last_load: datetime | None, now: datetime) -> DayRange:
    """The days that an incremental load completes, given the start of the last successful one.

    The first load completes today: what a snapshot reads was committed when it was read.
    """
    today = now.astimezone(UTC).date()
    since = last_load.astimezone(UTC).date() if last_load else today
    return DayRange(first=min(max(since, first_day), today), last=today)


def incremental_tags(first_day: date, last_load: datetime | None, now: datetime) -> dict[str, str]:
    """The tags of an incremental load."""
    return {**days_completed(first_day, last_load, now).run_tags(), tags.MODE: tags.INCREMENTAL}


def incremental_days(run_tags: Mapping[str, str]) -> list[str]:
    """The partitions that an incremental load was to complete."""
    days = _days(run_tags) if run_tags.get(tags.MODE) == tags.INCREMENTAL else None
    if days is None:
        return []
    count = (days.last - days.first).days + 1
    return [(days.first + timedelta(number)).isoformat() for number in range(count)]


def backfill_days(run_tags: Mapping[str, str]) -> DayRange | None:
    """The days of a backfill; None for an incremental load, with or without partitions."""
    return None if run_tags.get(tags.MODE) == tags.INCREMENTAL else _days(run_tags)


def _days(run_tags: Mapping[str, str]) -> DayRange | None:
    first = run_tags.get(FIRST) or run_tags.get(PARTITION)
    last = run_tags.get(LAST) or run_tags.get(PARTITION)
    if first is None or last is None:
        return None
    return DayRange(date.fromisoformat(first), date.fromisoformat(last))
