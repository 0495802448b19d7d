"""Which process works on a run, so that a run whose process is gone does not count as running for ever.

Dagster's default launcher cannot ask a worker whether it lives: after a power cut, or a `kill -9` of everything, its
runs would stay STARTED, and a sensor that never launches beside a running run would wait for them for good.
"""

import os
import socket

import dagster as dg
import psutil

TAG = "lakehouse/worker"
WORKING = frozenset({dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING})


def worker() -> str:
    """This process: host, pid, and start time, since pids are used again."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def sign(instance: dg.DagsterInstance, run_id: str) -> None:
    """Writes on the run who works on it."""
    instance.add_run_tags(run_id, {TAG: worker()})


def is_gone(mark: str | None) -> bool:
    """Whether that process ran on this host and does no more; another host's cannot be judged."""
    host, _, process = (mark or "").partition(":")
    pid, _, created = process.partition(":")
    if host != socket.gethostname():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(created)) > 2
    except (psutil.NoSuchProcess, ValueError):
        return True


def bury_dead(instance: dg.DagsterInstance) -> None:
    """Marks the runs failed that claim to be worked on by a process that is gone.

    Of all jobs: a dead one of any holds its pool and its place in the queue, which other jobs wait for.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=list(WORKING))):
        if is_gone(run.tags.get(TAG)):
            instance.report_run_failed(
                run, f"its process {run.tags[TAG]} is gone: killed, or the machine was restarted"
            )
