"""Which tables a load has left behind the others of its source: what is made of them waits, whoever makes it.

A run says so at its end. One that was killed while it loaded says nothing, and whatever was not materialized since may
be behind. Of the worker's loads the last one counts.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from orchestration.runs import tags
from orchestration.runs.dependencies import name_of
from orchestration.runs.processes.workers import is_orphan
from orchestration.runs.state.history import RECENT, end_state_of
from orchestration.runs.state.load_state import LoadState
from orchestration.runs.state.loaded import last_worker_load

PAGE = 5  # of runs: the newest one mostly speaks of all tables


@dataclass(frozen=True)
class Behind:
    """Since when a table is behind, and why."""

    at: datetime
    why: str


def left_behind(
    instance: dg.DagsterInstance,
    job: str,
    tables: Collection[dg.AssetKey],
    loaded_at: datetime | None = None,
    alone: bool = False,
) -> dict[dg.AssetKey, str]:
    """Those of a load job's tables that are not as new as its others, each with the reason.

    Whoever asks has loaded all of them at `loaded_at`, or writes them `alone`, so that no run is still at it.
    """
    found = {key: behind for key, behind in _by_runs(instance, job, tables, alone) if _is_after(behind, loaded_at)}
    if loaded_at is None:
        load = last_worker_load(instance, job, tables)
        whole = load.created_at if load and load.snapshots else None
        found = {key: behind for key, behind in found.items() if _is_after(behind, whole)}
        for name, held in load.end_state.tables.items() if load else ():
            why = f"{name} has failed in the worker's last load of {job}"
            found |= {key: Behind(held.at, why) for key in tables if name_of(key) == name}
    told = {record.asset_entry.asset_key: record for record in instance.get_asset_records(list(found))} if found else {}
    made = {key: record.asset_entry.last_materialization_record for key, record in told.items()}
    at = {key: datetime.fromtimestamp(event.timestamp, tz=UTC) for key, event in made.items() if event}
    return {key: behind.why for key, behind in found.items() if _is_after(behind, at.get(key))}


def _is_after(behind: Behind, moment: datetime | None) -> bool:
    return moment is None or behind.at >= moment


def _by_runs(
    instance: dg.DagsterInstance, job: str, tables: Collection[dg.AssetKey], alone: bool
) -> Iterator[tuple[dg.AssetKey, Behind]]:
    """What the newest run that tells of each table says, where it is not that the table was loaded."""
    untold = set(tables)
    for run in _newest_runs(instance, job):
        if not untold:
            return
        state, selected = end_state_of(run), untold.intersection(run.asset_selection or untold)
        begun = tags.unpack_begun(run) if state is None else None
        if state is not None:
            yield from _held(state, job, untold)
            untold -= {key for key in untold if key in selected or name_of(key) in state.tables}
        elif begun is not None and (alone or run.is_finished or is_orphan(run)):
            behind = Behind(begun, f"run {run.run_id[:8]} of {job} began to load it and has told no end")
            yield from ((key, behind) for key in selected if not key.path[0].startswith("raw_"))
            untold -= selected


def _held(state: LoadState, job: str, tables: Collection[dg.AssetKey]) -> Iterator[tuple[dg.AssetKey, Behind]]:
    for key in tables:
        held = state.tables.get(name_of(key))
        if held is not None and held.tries:
            yield key, Behind(held.at, f"{name_of(key)} has failed {held.tries} times in {job}")


def _newest_runs(instance: dg.DagsterInstance, job: str) -> Iterator[dg.DagsterRun]:
    cursor = None
    for _ in range(RECENT // PAGE):
        runs = instance.get_runs(dg.RunsFilter(job_name=job), cursor=cursor, limit=PAGE)
        yield from runs
        if len(runs) < PAGE:
            return
        cursor = runs[-1].run_id
