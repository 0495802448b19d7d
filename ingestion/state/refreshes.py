"""What became of the refreshes of each source's mirrors, for those who watch: readers see no difference between mirrors
that stand still and a source in which nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ingestion.state import lease
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings

Outcome = Literal["done", "held", "failed"]


@dataclass(frozen=True)
class Reached:
    """What a refresh has brought: all publishes until `seen`, and this cut, None where there is none yet."""

    seen: datetime
    epoch: int | None
    cut_lsn: int | None


@dataclass(frozen=True)
class Refreshes:
    """Where the mirrors of a source stand, which has a cut.

    `behind_seconds` have passed since the first publish that they lack; None where they stand at the newest cut.
    `outcome` is that of the last refresh that has ended, and `said` why it was not done; `failures` came in a row.
    `begun_seconds` have passed
    since the last one began, which is `at_work` if it has not ended. `was_done` is whether one ever was. `aside` has
    the tables whose mirrors the last one that was done has left as they were: for how many seconds that is so, and why.
    """

    source: str
    behind_seconds: float | None
    begun_seconds: float | None = None
    at_work: bool = False
    outcome: Outcome | None = None
    said: str | None = None
    was_done: bool = False
    failures: int = 0
    aside: Mapping[str, tuple[float, str]] = field(default_factory=dict)


def begin(connection: CatalogConnection, source: str) -> None:
    """A refresh begins."""
    connection.execute(
        "INSERT INTO lakehouse.mirrors (source) VALUES (%s)"
        " ON CONFLICT (source) DO UPDATE SET begun_at = clock_timestamp()",
        (source,),
    )


def give_up(connection: CatalogConnection, source: str, outcome: Outcome, why: str) -> None:
    """It has ended without success: mirrors are as they were."""
    connection.execute(
        "UPDATE lakehouse.mirrors SET ended_at = clock_timestamp(), outcome = %s, said = %s,"
        " failures = CASE WHEN %s = 'failed' THEN failures + 1 ELSE 0 END WHERE source = %s",
        (outcome, why, outcome, source),
    )


def end(connection: CatalogConnection, source: str, reached: Reached, aside: Mapping[str, str]) -> None:
    """It is done, and has left the mirrors of some tables as they were: since when that is so stays."""
    connection.execute(
        "UPDATE lakehouse.mirrors SET ended_at = clock_timestamp(), outcome = 'done', failures = 0, said = NULL,"
        " seen = %s, epoch = %s, cut_lsn = %s,"
        " aside = (SELECT coalesce(jsonb_object_agg(key, jsonb_build_object('why', value, 'since',"
        " coalesce(aside -> key -> 'since', to_jsonb(clock_timestamp())))), '{}') FROM jsonb_each(%s))"
        " WHERE source = %s",
        (reached.seen, reached.epoch, reached.cut_lsn, Jsonb(dict(aside)), source),
    )


def mirror_refreshes(settings: Settings) -> dict[str, tuple[lease.Follower, Refreshes]]:
    """By source that has a cut what became of its last follower, and where the mirrors stand. Raises LakehouseError."""
    with connect_catalog(settings) as connection:
        return {name: (lease.follower_of(connection, name), at) for name, at in read(connection).items()}


def read(connection: CatalogConnection) -> dict[str, Refreshes]:
    """Where the mirrors of each source stand that has a cut; also of those that have no mirrors.

    Empty where the state is not there yet, or of an earlier release.
    """
    if connection.execute("SELECT to_regclass('lakehouse.mirrors') IS NULL").fetchone() == (True,):
        return {}
    with connection.cursor(row_factory=class_row(Refreshes)) as cursor:
        found = cursor.execute(
            "SELECT source, CASE WHEN (made.epoch, made.cut_lsn) IS DISTINCT FROM (streams.epoch, streams.cut_lsn) THEN"
            " (SELECT extract(epoch FROM clock_timestamp() - min(published_at))::float8 FROM lakehouse.cycles"
            " WHERE cycles.source = streams.source AND published_at > coalesce(made.seen, '-infinity')) END"
            " AS behind_seconds, extract(epoch FROM clock_timestamp() - begun_at)::float8 AS begun_seconds,"
            " coalesce(begun_at > coalesce(ended_at, '-infinity'), false) AS at_work, outcome,"
            " coalesce(failures, 0) AS failures, said,"
            " seen IS NOT NULL AS was_done, (SELECT coalesce(jsonb_object_agg(key, jsonb_build_array("
            " extract(epoch FROM clock_timestamp() - (value ->> 'since')::timestamptz), value -> 'why')), '{}')"
            " FROM jsonb_each(aside)) AS aside"
            " FROM lakehouse.streams LEFT JOIN lakehouse.mirrors AS made USING (source)"
            " WHERE streams.cut_lsn IS NOT NULL ORDER BY source"
        ).fetchall()
    return {at.source: at for at in found}
