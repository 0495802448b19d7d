"""Runs one tick of a sensor and the requested run here: `python -m tests.sensor_driver SENSOR PAUSE_SECONDS`.

It does what the daemon does in one interval, at the time a test chooses. WAL alone makes it ask for no run: the test's
Postgres has other databases, which a vacuum or a checkpoint may write to at any moment. Prints the outcome as JSON.
"""

import json
import sys
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from orchestration.resources import Lake
from orchestration.runs.failures import failure_message
from orchestration.runs.state import load_state
from orchestration.sensors import decide, new_data


def main(name: str, pause_seconds: float) -> dict[str, Any]:
    """The skip reason, or the outcome of the run."""
    from orchestration.definitions import defs

    new_data.LOADED_AT -= new_data.STARTS_WITHIN  # a code server that runs for long
    new_data.ABSENCE.since = new_data.LOADED_AT - new_data.RESTART_SECONDS  # and has missed a killed worker for long
    decide.PULL_BYTES, decide.PULL_AFTER = sys.maxsize, timedelta.max
    load_state.FIRST_WAIT = timedelta(seconds=pause_seconds)
    repository = defs.get_repository_def()
    sensor = repository.get_sensor_def(name)
    with dg.DagsterInstance.get() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources={"lake": Lake()})
        tick = sensor.evaluate_tick(context)
        if not tick.run_requests:
            return {"skipped": tick.skip_message}
        [request] = tick.run_requests
        assets = frozenset(request.asset_selection or ()) or None
        checks = None if request.asset_check_keys is None else frozenset(request.asset_check_keys)
        job = repository.get_job(sensor.job_name).get_subset(asset_selection=assets, asset_check_selection=checks)
        run = instance.create_run_for_job(job, tags={**job.tags, **request.tags}, asset_selection=assets)
        events = list(execute_run_iterator(InMemoryJob(job), run, instance))
        ended = instance.get_run_by_id(run.run_id)
        planned = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
        materialized = {_name(e) for e in events if e.is_step_materialization}
        return {
            "success": ended is not None and ended.is_success,
            "why": request.tags["lakehouse/why"],
            "selected": sorted(".".join(key.path) for key in assets or ()),
            "materialized": sorted(materialized),
            "failed": sorted({_name(e.dagster_event) for e in planned if e.dagster_event} - materialized),
            "error": next(filter(None, map(failure_message, events)), None),
        }


def _name(event: dg.DagsterEvent) -> str:
    return ".".join(event.asset_key.path) if event.asset_key else ""


if __name__ == "__main__":
    outcome = main(sys.argv[1], float(sys.argv[2]))
    print(f"OUTCOME {json.dumps(outcome)}")
