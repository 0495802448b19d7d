"""Records the worker process of each run, and fails orphaned runs: those whose process is gone.

Dagster's default launcher cannot check whether a worker is alive. After a power cut or a `kill -9`, its runs would stay
STARTED and hold their pool slots forever.
"""

import os
import socket

import dagster as dg
import psutil

from lakehouse.process_start import start_of
from orchestration.runs import tags
from orchestration.runs.processes.interrupts import end_processes

TAG = f"{tags.HIDDEN}worker"
"""Host, pid and start time."""

PROCESS_TAG = f"{tags.HIDDEN}worker_process"
"""Run id, boot id and start in ticks since boot: proof against copied tags and changes of the clock."""

RUN_VARIABLE = "LAKEHOUSE_RUN_ID"
"""Set for child processes of a run: identifies a dbt process that outlives a killed worker."""

WORKING = frozenset({dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING})
FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in FINISHED)
CHILD_SECONDS = 20.0


def worker(pid: int | None = None) -> str:
    """Identifies a process, by default this one, by host, pid and start time (pids are reused)."""
    process = psutil.Process(pid)
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.0f}"


def signature(run_id: str, pid: int | None = None) -> dict[str, str]:
    """The tags with which a process, by default this one, signs a run."""
    started = start_of(pid or os.getpid())
    return {TAG: worker(pid)} | ({PROCESS_TAG: f"{run_id}:{started}"} if started else {})


def sign(instance: dg.DagsterInstance, run_id: str) -> None:
    """Tags the run with this process."""
    instance.add_run_tags(run_id, signature(run_id))


def is_gone(mark: str | None) -> bool:
    """Whether the process ran on this host and has ended; False for a process of another host."""
    host, _, process = (mark or "").partition(":")
    pid, _, created = process.partition(":")
    if host != socket.gethostname():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(created)) > 2
    except (psutil.NoSuchProcess, ValueError):
        return True


def is_orphan(run: dg.DagsterRun) -> bool:
    """Whether the process that signed the run is gone.

    A re-execution has its parent's tags until its own worker signs it, so a tag with another run id is ignored.
    """
    mark, process = tags.tag(run, TAG), tags.tag(run, PROCESS_TAG)
    if process is None:
        return run.status in WORKING and is_gone(mark)
    signed, _, started = process.partition(":")
    host, _, rest = (mark or "").partition(":")
    if signed != run.run_id or host != socket.gethostname():
        return False
    return started != start_of(int(rest.partition(":")[0]))


def is_alive(run: dg.DagsterRun) -> bool:
    """Whether the process that signed the run is known to be alive, regardless of the run's status."""
    signed = (tags.tag(run, PROCESS_TAG) or "").partition(":")[0]
    here = (tags.tag(run, TAG) or "").startswith(f"{socket.gethostname()}:")
    return signed == run.run_id and here and not is_orphan(run)


def fail_orphaned_runs(instance: dg.DagsterInstance) -> list[str]:
    """Marks orphaned runs of all jobs as failed, or canceled if they were to be, ends their child processes and frees
    their pool slots.

    Returns the ids of the runs.
    """
    orphans = [run for run in instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED))) if is_orphan(run)]
    for run in orphans:
        end_children(run.run_id)
        gone = f"its process {tags.tag(run, TAG)} is gone"
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, f"{gone}, as it was to be")
        else:
            instance.report_run_failed(run, f"{gone}: killed, or the machine was restarted")
        free_pools(instance, run.run_id)
    return [run.run_id for run in orphans]


def free_pools(instance: dg.DagsterInstance, run_id: str) -> None:
    """Frees the slots that a run holds or has claimed."""
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def end_children(run_id: str) -> None:
    """Ends processes of a run that have outlived its worker; an interrupted dbt cancels its queries."""
    end_processes([process for process in psutil.process_iter() if _belongs_to(process, run_id)], CHILD_SECONDS)


def _belongs_to(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == run_id
    except (psutil.Error, OSError):
        return False
