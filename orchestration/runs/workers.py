"""Which process works on a run, so that a run whose process is gone does not count as running for ever.

Dagster's default launcher cannot ask a worker whether it lives: after a power cut, or a `kill -9` of everything, its
runs would stay STARTED and hold their pools, and everything that waits for them would wait for good.
"""

import os
import socket
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from orchestration.runs.interrupts import end_family

TAG = "lakehouse/worker"
"""Host, pid and start time, for people; and for runs of earlier versions, which have no more."""

PROCESS_TAG = "lakehouse/worker_process"
"""Run, boot and start in ticks since then: neither a copied tag nor a clock that is set makes another process of it."""

RUN_VARIABLE = "LAKEHOUSE_RUN_ID"
"""Set for what a run starts: dbt outlives a killed worker, and is found by it."""

WORKING = frozenset({dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING})
UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES)
CHILD_SECONDS = 20.0


def worker(pid: int | None = None) -> str:
    """A process, this one by default: host, pid, and start time, since pids are used again."""
    process = psutil.Process(pid)
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.0f}"


def signature(run_id: str, pid: int | None = None) -> dict[str, str]:
    """The tags with which a process, this one by default, signs a run."""
    return {TAG: worker(pid), PROCESS_TAG: f"{run_id}:{_boot()}:{_ticks(pid or os.getpid())}"}


def sign(instance: dg.DagsterInstance, run_id: str) -> None:
    """Writes on the run who works on it."""
    instance.add_run_tags(run_id, signature(run_id))


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


def is_orphan(run: dg.DagsterRun) -> bool:
    """Whether the process that signed the run is gone.

    A re-execution has its parent's tags until its own worker signs it: what names another run says nothing.
    """
    mark, process = run.tags.get(TAG), run.tags.get(PROCESS_TAG)
    if process is None:
        return run.status in WORKING and is_gone(mark)
    signed, _, started = process.partition(":")
    host, _, rest = (mark or "").partition(":")
    if signed != run.run_id or host != socket.gethostname():
        return False
    boot, _, ticks = started.partition(":")
    return boot != _boot() or ticks != str(_ticks(int(rest.partition(":")[0])))


def is_alive(run: dg.DagsterRun) -> bool:
    """Whether the process that signed the run is known to work, whatever the run's status says."""
    signed = run.tags.get(PROCESS_TAG, "").partition(":")[0]
    return signed == run.run_id and run.tags[TAG].startswith(f"{socket.gethostname()}:") and not is_orphan(run)


def fail_orphaned_runs(instance: dg.DagsterInstance) -> list[str]:
    """Marks the runs failed whose process is gone, ends what it left running, and frees the pools they hold.

    Of all jobs: such a run of any holds its pool and its place in the queue, which other jobs wait for. Returns
    their ids.
    """
    orphans = [run for run in instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED))) if is_orphan(run)]
    for run in orphans:
        end_children(run.run_id)
        instance.report_run_failed(run, f"its process {run.tags[TAG]} is gone: killed, or the machine was restarted")
        free_pools(instance, run.run_id)
    return [run.run_id for run in orphans]


def free_pools(instance: dg.DagsterInstance, run_id: str) -> None:
    """Frees the slots that a run holds or waits for."""
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def end_children(run_id: str) -> None:
    """Ends processes of a run that have outlived its worker; dbt takes back its queries when interrupted."""
    end_family([process for process in psutil.process_iter() if _belongs_to(process, run_id)], CHILD_SECONDS)


def _belongs_to(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == run_id
    except (psutil.Error, OSError):
        return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _ticks(pid: int) -> int | None:
    """When a process started, in ticks since the boot; None where there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
