"""What the warm worker has loaded: runless materializations in Dagster's event log, which the sensors read.

Each carries the snapshots of all tables that the job watches, as the tag SNAPSHOTS of a run does; that of a load that
has failed carries none, and the tables that it has left behind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from lakehouse.servers.worker_sessions import WORKER
from orchestration.runs.state.history import JobHistory, PastRun, newest_event
from orchestration.runs.state.load_state import HeldTable, LoadState

LOADED = "lakehouse/loaded"


def loaded_metadata(job: str, snapshots: Mapping[str, int], behind: Iterable[str] = ()) -> dict[str, Any]:
    """The metadata that makes a materialization the record of a load. Ids are text, as everywhere in the UI."""
    ids = {table: str(snapshot) for table, snapshot in sorted(snapshots.items())}
    left = {"behind": names} if (names := sorted(behind)) else {}
    return {LOADED: dg.MetadataValue.json({"job": job, "snapshots": ids, **left})}


def last_worker_load(instance: dg.DagsterInstance, job: str, keys: Iterable[dg.AssetKey]) -> PastRun | None:
    """The newest load of a job by the worker, among the last materializations of these assets.

    Its end state has the tables that it has left behind.
    """
    records = instance.get_asset_records(list(keys))
    return load_among((record.asset_entry.last_materialization_record for record in records), job)


def load_among(events: Iterable[dg.EventLogRecord | None], job: str) -> PastRun | None:
    """The same of these materializations, by the number of the event: a clock may have been ahead."""
    found = []
    for event in events:
        made = event.asset_materialization if event else None
        recorded: Any = getattr(made.metadata.get(LOADED), "value", None) if made else None
        if event is not None and recorded and recorded["job"] == job:
            found.append((event.storage_id, event.timestamp, recorded))
    if not found:
        return None
    number, at, load = max(found, key=lambda item: item[0])
    moment, ids = datetime.fromtimestamp(at, tz=UTC), {table: int(text) for table, text in load["snapshots"].items()}
    left = LoadState(tables={name: HeldTable(1, moment, None) for name in load.get("behind", ())})
    return PastRun(f"{WORKER}-{at:.0f}", "SUCCESS", None, ids, moment, moment, left, ingested=False, event=number)


def with_worker(instance: dg.DagsterInstance, history: JobHistory, load: PastRun | None) -> JobHistory:
    """The history with the worker's load as the last one, if it is newer; tables held back stay held back.

    Those that a failed load of the worker has left behind are not among them: the job tries them at once. Nor does such
    a load make up for runs that have failed, nor any for one that failed later, as after it had waited in the queue.
    """
    last = history.last_load
    if load is None or (last is not None and newest_event(instance, last.run_id) > load.event):
        return history
    failures = history.failures
    if load.snapshots:
        failures = tuple(run for run in failures if newest_event(instance, run.run_id) > load.event)
    state = last.end_state if last else LoadState()
    return replace(history, last_load=replace(load, end_state=state), failures=failures)
