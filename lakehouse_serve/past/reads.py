"""How far the lake has read its sources: what they committed after that is in no cut, and nobody knows what it is.

A position stands where it is while a source is idle. That it was read until now is then told by its follower, which
holds the lease, has no backlog and holds nothing back. A follower that has just begun has read nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple

import psycopg

from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_serve.past.cuts import Cut, NoCut
from lakehouse_serve.past.moments import Moment, Position

READS: LiteralString = """
SELECT source, epoch, lsn, CASE WHEN cut_lsn = lsn - 1 THEN coalesce(cut_at, updated_at) ELSE updated_at END,
  (SELECT acquired_at FROM lakehouse.leases
    WHERE source = streams.source AND mode = 'follow' AND expires_at > clock_timestamp()
      AND NOT EXISTS (SELECT FROM lakehouse.progress WHERE source = streams.source AND phase = 'changes')
      AND NOT EXISTS (SELECT FROM lakehouse.live WHERE source = streams.source AND metadata_location IS NOT NULL)),
  (SELECT min(coalesce(read_at, claimed_at)) FROM lakehouse.claims
    WHERE source = streams.source AND EXISTS (
      SELECT FROM lakehouse.leases
      WHERE starts_with(source, streams.source || '/follower/') AND expires_at > clock_timestamp())),
  clock_timestamp()
FROM lakehouse.streams
"""
"""By source: epoch and position, when the source was as that has it, since when somebody follows it who has nothing to
do, until when all parts of a shared one were read, and now. Everything below a position has been read."""


class Read(NamedTuple):
    """Everything that a source had committed below a position, and until a time, has been read."""

    epoch: int
    lsn: int
    until: datetime


def pace(settings: Settings) -> timedelta:
    """How long a follower may take to see a change of an idle source, and to publish it."""
    options = settings.ingestion
    return timedelta(seconds=60 + options.flush_interval_seconds + 10 * options.poll_seconds)


def reads_of(rows: Iterable[Any], within: timedelta) -> dict[str, Read]:
    """What rows of READS say; `within` is the pace of followers."""
    return {source: Read(epoch, lsn, _until(within, *times)) for source, epoch, lsn, *times in rows}


def _until(
    within: timedelta, at: datetime, followed: datetime | None, parts: datetime | None, now: datetime
) -> datetime:
    lately = now - within
    if followed is None or followed > lately:
        return at
    return max(at, lately if parts is None else min(lately, parts))


def read_sources(settings: Settings) -> dict[str, Read]:
    """How far each source was read; nothing of a lake without a state. Raises LakehouseError."""
    with closing(connect_catalog(settings)) as connection:
        try:
            rows = connection.execute(READS).fetchall()
        except psycopg.errors.UndefinedTable:  # nothing was ever ingested
            return {}
    return reads_of(rows, pace(settings))


def refuse_unread(moment: Moment, cuts: Collection[Cut], reads: Mapping[str, Read]) -> None:
    """Raises NoCut for a position that the lake has not read yet: what was committed until there is in a cut to come.

    One of an epoch that has ended is none: nothing more comes there.
    """
    for position, cut in ((position, cut) for position in moment.positions for cut in cuts):
        read = reads.get(cut.source)
        if read is None or position.source not in {None, cut.source}:
            continue
        asked = (read.epoch if position.epoch is None else position.epoch, position.lsn)
        if asked > (read.epoch, read.lsn) and asked != (cut.epoch, cut.lsn):
            raise NoCut(
                f"{position} is not in the lake yet: {cut.source} has been read until "
                f"{Position(read.lsn, cut.source, read.epoch)}; ask again later, or for the newest cut, {cut.position}"
            )


def unread(
    moment: Moment, cuts: Collection[Cut], reads: Mapping[str, Read], within: timedelta = timedelta()
) -> dict[str, Read]:
    """The sources of these cuts that were not read until a time, or shortly before; none where it is no time."""
    of_cuts = {cut.source: reads[cut.source] for cut in cuts if cut.source in reads}
    return {name: read for name, read in of_cuts.items() if moment.at and read.until + within < moment.at}


def said_of_unread(source: str, read: Read) -> str:
    """What a person is told of one."""
    return (
        f"{source} has been read until {read.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC only: what it committed "
        "after that is not in it"
    )
