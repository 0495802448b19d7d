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
from orchestration.runs.state.history import JobHistory, PastRun
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
    found = []
    for record in instance.get_asset_records(list(keys)):
        event = record.asset_entry.last_materialization_record
        made = event.asset_materialization if event else None
        recorded: Any = getattr(made.metadata.get(LOADED), "value", None) if made else None
        if event is not None and recorded and recorded["job"] == job:
            found.append((event.timestamp, recorded))
    if not found:
        return None
    at, load = max(found, key=lambda item: item[0])
    moment, ids = datetime.fromtimestamp(at, tz=UTC), {table: int(text) for table, text in load["snapshots"].items()}
    left = LoadState(tables={name: HeldTable(1, moment, None) for name in load.get("behind", ())})
    return PastRun(f"{WORKER}-{at:.0f}", "SUCCESS", None, ids, moment, moment, left, ingested=False)


def with_worker(history: JobHistory, load: PastRun | None) -> JobHistory:
    """The history with the worker's load as the last one, if it is newer; tables held back stay held back.

    Those that a failed load of the worker has left behind are not among them: the job tries them at once. Nor does such
    a load make up for runs that have failed.
    """
    last = history.last_load
    if load is None or (last is not None and last.created_at >= load.created_at):
        return history
    failures = tuple(run for run in history.failures if run.created_at > load.created_at or not load.snapshots)
    state = last.end_state if last else LoadState()
    return replace(history, last_load=replace(load, end_state=state), failures=failures)
