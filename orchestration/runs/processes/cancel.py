"""Cancels the runs of a `lakehouse dev` that ends: Dagster would record the interrupt as a failure, which is told."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg

GRPC_INFO = ".dagster/grpc_info"  # a tag by which Dagster itself finds the code server that has started a run
UNDER_WAY = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


def cancel_runs_of(dagster_home: Path, folder: Path) -> list[str]:
    """Cancels the runs that the code servers with sockets in `folder` have started, as a person does in the UI: the
    process of each is asked to end. Returns the name of each and its job. What it did not do, sensors launch again.
    """
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        return [_cancel(instance, run) for run in _runs_of(instance, folder)]


def _runs_of(instance: dg.DagsterInstance, folder: Path) -> Iterator[dg.DagsterRun]:
    for run in instance.get_runs(dg.RunsFilter(statuses=list(UNDER_WAY))):
        socket = json.loads(run.tags.get(GRPC_INFO) or "{}").get("socket")
        if socket and Path(socket).parent == folder:
            yield run


def _cancel(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    with suppress(dg.DagsterError):  # its code server is gone: it is marked all the same, and its process is ended
        instance.run_launcher.terminate(run.run_id)
    return f"run {run.run_id[:8]} of {run.job_name}"
