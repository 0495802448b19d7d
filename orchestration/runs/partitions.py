"""Partitions are days of commit time (UTC).

Raw assets have no partitions; those of parsed and vault serve two things. A backfill derives its days again from
raw, past the watermarks. An ordinary load goes by the watermarks alone and marks the days it has completed: from
the day of the last successful load until today.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

import dagster as dg
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from orchestration.runs import tags


@dataclass(frozen=True)
class DayRange:
    """First and last day, both included."""

    first: date
    last: date

    def run_tags(self) -> dict[str, str]:
        """The tags by which Dagster runs these partitions in one run."""
        if self.first == self.last:
            return {PARTITION_NAME_TAG: self.last.isoformat()}
        return {
            ASSET_PARTITION_RANGE_START_TAG: self.first.isoformat(),
            ASSET_PARTITION_RANGE_END_TAG: self.last.isoformat(),
        }


def daily_partitions(first_day: date) -> dg.DailyPartitionsDefinition:
    """Days from `first_day` up to and including today (`end_offset=1`, or today would not exist before tomorrow)."""
    return dg.DailyPartitionsDefinition(start_date=first_day.isoformat(), timezone="UTC", end_offset=1)


def completed_by_load(first_day: date, last_load: datetime | None, now: datetime) -> DayRange:
    """The days an ordinary load completes, given when the last successful one began."""
    today = now.astimezone(UTC).date()
    since = last_load.astimezone(UTC).date() if last_load else first_day
    return DayRange(first=min(max(since, first_day), today), last=today)


def incremental_tags(first_day: date, last_load: datetime | None, now: datetime) -> dict[str, str]:
    """The tags of an ordinary load."""
    return {**completed_by_load(first_day, last_load, now).run_tags(), tags.MODE: tags.INCREMENTAL}


def to_derive_again(run_tags: Mapping[str, str]) -> DayRange | None:
    """The days a backfill asks for; None for an ordinary load, with or without partitions."""
    if run_tags.get(tags.MODE) == tags.INCREMENTAL:
        return None
    first = run_tags.get(ASSET_PARTITION_RANGE_START_TAG) or run_tags.get(PARTITION_NAME_TAG)
    last = run_tags.get(ASSET_PARTITION_RANGE_END_TAG) or run_tags.get(PARTITION_NAME_TAG)
    if first is None or last is None:
        return None
    return DayRange(date.fromisoformat(first), date.fromisoformat(last))
