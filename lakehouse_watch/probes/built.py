"""Tables of models that lack rows which the tables below them have had for too long: by what they declare, and marts
that declare nothing by a day. Whatever the reason: a sensor that is off, a run that waits in the queue for ever.

What a job has read last is in Dagster's database, where the sensors look too: with a run (the tag SNAPSHOTS of
`orchestration/runs/tags.py`), or with what the worker has made (`orchestration/runs/state/loaded.py`). Of a source that
is quiet there is no snapshot since, so nothing waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg

from lakehouse.catalog.open import changes_data, history
from lakehouse.servers.presence import is_served
from lakehouse.servers.worker_sessions import is_restless
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.dagster_state import BY_HAND, connect, is_used
from lakehouse_watch.probes.limits import Stored, declared_models
from lakehouse_watch.probes.reading import Reading

if TYPE_CHECKING:
    from pyiceberg.table import Table

AWAY_SECONDS = 900.0  # in which a worker that was away, or a sensor that was late, has caught up
RECORD, SNAPSHOTS = "lakehouse/loaded", ".dagster/lakehouse_snapshots"
_MADE: LiteralString = (
    """SELECT asset_key, last_materialization FROM asset_keys WHERE last_materialization IS NOT NULL"""
)
_JOBS: LiteralString = "SELECT run_id, pipeline_name FROM runs WHERE run_id = ANY(%s)"
_READ: LiteralString = """SELECT job, coalesce(newest.start_time, 0), newest.value
 FROM unnest(%s::text[]) AS jobs (job) CROSS JOIN LATERAL (
 SELECT start_time, value FROM runs JOIN run_tags USING (run_id)
 WHERE pipeline_name = job AND status IN ('SUCCESS', 'FAILURE') AND key = %s
 ORDER BY runs.id DESC LIMIT 1) AS newest"""  # of one that fails on a table `run` tells, and others have been loaded


class Made(NamedTuple):
    """The last materialization of a table: when, by which run, and what the worker has recorded with it."""

    at: float
    run_id: str
    job: str | None
    read: Mapping[str, int]


class Read(NamedTuple):
    """The snapshots of a table that a job has read, and when it did so last."""

    ids: frozenset[int] = frozenset()
    at: float = 0.0


Reads = Mapping[str, Mapping[str, Read]]
"""By job and table."""


def read_built(settings: Settings) -> Reading:
    """Jobs with tables that lack rows for longer than they may; nothing of tables that were never made. Nor of jobs
    that a worker serves, unless it ends again and again: it records nothing where it has found nothing to change (of
    one that hangs tells `worker.py`).
    """
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog

    models = {".".join(model.name): model for model in declared_models(settings)}
    with connect(settings) as connection:
        if not models or not is_used(connection):
            return Reading()
        all_made = _made(connection)
        made = {name: all_made[name] for name in models if name in all_made}
        pipelines: dict[str, str] = dict(connection.execute(_JOBS, ([m.run_id for m in made.values()],)).fetchall())
        jobs = {
            name: models[name].job or m.job or pipelines.get(m.run_id, BY_HAND) for name, m in made.items()
        }  # fmt: skip
        reads = _reads(connection, all_made, set(jobs.values()))
    below = {table for of in reads.values() for table in of}
    with closing(open_catalog(settings)) as catalog:
        names = [(schema, name) for schema, _, name in (table.partition(".") for table in below)]
        arrived = {".".join(name): of for name, of in derived(catalog, names, data_snapshots).items()}
    by_hand = {name: m.at for name, m in made.items() if pipelines.get(m.run_id) == BY_HAND}
    now = datetime.now(UTC).timestamp()
    late = dict(_late(models, jobs, reads, arrived, by_hand, now))
    restless = bool(late) and is_restless(settings)
    served = {job for job in {jobs[name] for name in late} if not restless and is_served(settings, job)}
    return Reading(tuple(judge({name: at for name, at in late.items() if jobs[name] not in served}, jobs, now)))


def data_snapshots(table: Table) -> tuple[tuple[int, float], ...]:
    """The snapshots of a table that changed data, with their moments; newest first."""
    return tuple((s.snapshot_id, s.timestamp_ms / 1000) for s in history(table.metadata) if changes_data(s))


def waiting_since(arrived: Sequence[tuple[int, float]], read: Read) -> float | None:
    """When the first came of the snapshots that were not read; None if there is none. Of a table whose last snapshot
    that was read has expired, or that was made again, those count that came later than that.
    """
    later: list[float] = []
    for snapshot_id, at in arrived:
        if snapshot_id in read.ids:
            return later[-1] if later else None
        later.append(at)
    return min((at for at in later if at > read.at), default=None)


def _late(
    models: Mapping[str, Stored],
    jobs: Mapping[str, str],
    reads: Reads,
    arrived: Mapping[str, Sequence[tuple[int, float]]],
    by_hand: Mapping[str, float],
    now: float,
) -> Iterator[tuple[str, float]]:
    """The tables that lack rows for longer than they may, and since when."""
    for name, job in jobs.items():
        of = reads.get(job, {})
        waits = [waiting_since(arrived.get(table, ()), of[table]) for table in models[name].below & of.keys()]
        since = min((at for at in waits if at is not None), default=now)
        if now - since > models[name].seconds and by_hand.get(name, 0.0) < since:
            yield name, since


def judge(late: Mapping[str, float], jobs: Mapping[str, str], now: float) -> Iterator[Occasion]:
    """One for each job with tables that lack rows."""
    for job in sorted({jobs[name] for name in late}):
        mine = sorted(name for name in late if jobs[name] == job)
        named = ", ".join(mine[:3]) + (f" and {len(mine) - 3} more" if len(mine) > 3 else "")
        minutes = (now - min(late[name] for name in mine)) / 60
        yield Occasion(
            f"freshness/{job}",
            f"{named} lack rows that came {minutes:,.0f} minutes ago: {job} has not read them",
            f"see whether `lakehouse worker` hangs; without one, that the sensor new_data_{job.partition('_')[2]} is on"
            " and no run waits in the queue for ever; a failed check that holds tables back has an alert of its own",
            patience=AWAY_SECONDS,
        )


def _made(connection: psycopg.Connection[Any]) -> dict[str, Made]:
    rows = connection.execute(_MADE).fetchall()
    return {".".join(json.loads(key)): made for key, event in rows if (made := _of_event(event)) is not None}


def _of_event(event: str) -> Made | None:
    try:
        stored = json.loads(event)
        entry = stored.get("event_log_entry") or stored
        entries = entry["dagster_event"]["event_specific_data"]["materialization"]["metadata_entries"]
        record: dict[str, Any] = next((e["entry_data"]["data"] for e in entries if e["label"] == RECORD), {})
        read = {table: int(snapshot) for table, snapshot in record.get("snapshots", {}).items()}
        return Made(float(entry["timestamp"]), entry["run_id"], record.get("job"), read)
    except (ValueError, KeyError, TypeError):
        return None


def _reads(connection: psycopg.Connection[Any], made: Mapping[str, Made], jobs: set[str]) -> Reads:
    """What each job has read, by its last run that read something and by what the worker has made."""
    runs = connection.execute(_READ, (sorted(jobs - {BY_HAND}), SNAPSHOTS)).fetchall()
    said: list[tuple[str, float, Mapping[str, int]]] = [
        (job, at, {t: int(s) for t, s in json.loads(tag or "{}").items()}) for job, at, tag in runs
    ]
    said += [(m.job, m.at, m.read) for m in made.values() if m.job]
    found: dict[str, dict[str, Read]] = {}
    for job, at, snapshots in said:
        of = found.setdefault(job, {})
        for table, snapshot in snapshots.items():
            before = of.get(table, Read())
            of[table] = Read(before.ids | {snapshot}, max(before.at, at))
    return found
