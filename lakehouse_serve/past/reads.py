"""How far the lake has read its sources: what they committed after that is in no cut, and nobody knows what it is.

A position stands where it is while a source is idle. Until when nothing had been left to read is noted by who looked.
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
WITH streams AS (
  SELECT *, CAST(to_jsonb(s) ->> 'read_at' AS timestamptz) AS noted FROM lakehouse.streams AS s)
SELECT source, epoch, lsn, CASE WHEN EXISTS (SELECT FROM lakehouse.claims WHERE claims.source = streams.source)
  THEN coalesce(greatest(noted, cut_at), updated_at) ELSE coalesce(noted, cut_at, updated_at) END
FROM streams
"""
"""By source: epoch and position below which everything was read, and until when it was: as its reader has noted, or at
its newest cut, where followers share a source in which something happens all the time, or a release read it last that
noted nothing."""


class Read(NamedTuple):
    """Everything that a source had committed below a position, and until a time, has been read."""

    epoch: int
    lsn: int
    until: datetime


def pace(settings: Settings) -> timedelta:
    """How long a follower may take to see a change of an idle source, to publish it, and to note that."""
    options = settings.ingestion
    return timedelta(seconds=60 + options.flush_interval_seconds + 10 * options.poll_seconds)


def reads_of(rows: Iterable[Any]) -> dict[str, Read]:
    """What rows of READS say."""
    return {source: Read(epoch, lsn, until) for source, epoch, lsn, until in rows}


def read_sources(settings: Settings) -> dict[str, Read]:
    """How far each source was read; nothing of a lake without a state. Raises LakehouseError."""
    with closing(connect_catalog(settings)) as connection:
        try:
            rows = connection.execute(READS).fetchall()
        except psycopg.errors.UndefinedTable:  # nothing was ever ingested
            return {}
    return reads_of(rows)


def refuse_unread(moment: Moment, cuts: Collection[Cut], reads: Mapping[str, Read]) -> None:
    """Raises NoCut for a position that the lake has not read yet: what was committed until there is in a cut to come.

    One of an epoch that has ended is none: nothing more comes there. One without an epoch may be of either, before the
    new one has a cut.
    """
    for position, cut in ((position, cut) for position in moment.positions for cut in cuts):
        read = reads.get(cut.source)
        if read is None or position.source not in {None, cut.source}:
            continue
        asked = (read.epoch if position.epoch is None else position.epoch, position.lsn)
        if position.epoch is None and cut.epoch < read.epoch and position.lsn > read.lsn:  # after a recovery
            raise NoCut(
                f"epochs {cut.epoch} and {read.epoch} of {cut.source} may both have {position}: name the epoch, as in "
                f"{Position(position.lsn, cut.source, cut.epoch)}"
            )
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
