"""Turns a load that was launched without a partition into an incremental load, as a sensor would launch it.

Dagster's CLI and API can launch a partitioned job without a partition. Such a run would fail at the first table
downstream of a partitioned one: to record the table's inputs, Dagster reads the partition of the run.
"""

from datetime import UTC, date, datetime

import dagster as dg
from dagster._core.definitions.job_base import IJob
from dagster._core.definitions.reconstruct import ReconstructableJob

from orchestration.runs import tags
from orchestration.runs.partitions import DayRange, incremental_tags
from orchestration.runs.state.history import is_load, read_history
from orchestration.runs.state.load_state import loaded_since
from orchestration.runs.subset import load_state_tag


def as_incremental_load(instance: dg.DagsterInstance, run: dg.DagsterRun, job: IJob) -> dg.DagsterRun:
    """The run with the tags of an incremental load, if its job is partitioned and the run has no partition.

    A run of selected tables completes only today, as it is unknown when each of them was last loaded.
    """
    first_day = _first_day(job.get_definition())
    if first_day is None or run.is_partitioned:
        return run
    now, whole = datetime.now(UTC), _whole(run, job)
    if is_load(run, whole):
        state = read_history(instance, whole.name, whole).state
        given = {
            **incremental_tags(first_day, loaded_since(state, ()), now),
            **load_state_tag(state, (), now, reset_tries=True),
        }
    else:
        given = {**DayRange(now.date(), now.date()).run_tags(), tags.MODE: tags.INCREMENTAL}
    instance.add_run_tags(run.run_id, given)
    return run.with_tags({**run.tags, **given})


def _whole(run: dg.DagsterRun, job: IJob) -> dg.JobDefinition:
    if isinstance(job, ReconstructableJob):
        return job.repository.get_definition().get_job(run.job_name)
    return job.get_definition()


def _first_day(job: dg.JobDefinition) -> date | None:
    keys = job.asset_layer.executable_asset_keys
    days = (job.asset_layer.get(key).partitions_def for key in keys)
    first = next((definition.get_first_partition_key() for definition in days if definition is not None), None)
    return date.fromisoformat(first) if first else None
