"""Orphaned runs: never a run whose process is alive or cannot be checked from this host."""

import os
import socket
import subprocess
import sys

import dagster as dg
import psutil
import pytest

from orchestration.runs.processes import workers

STARTED, STARTING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING
OLD = {"lakehouse/worker": f"{socket.gethostname()}:1:12345"}
"""The signature of an earlier version, for a process that has ended."""


def run_with(tags: dict[str, str], status: dg.DagsterRunStatus = STARTED, run_id: str = "r1") -> dg.DagsterRun:
    return dg.DagsterRun(job_name="load_shop", run_id=run_id, status=status, tags=tags)


@pytest.fixture(scope="module")
def gone() -> dict[str, str]:
    """The signature of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    signed = workers.signature("r1", process.pid)
    process.kill()
    process.wait()
    return signed


def test_a_run_is_an_orphan_once_its_process_has_ended(gone: dict[str, str]) -> None:
    assert workers.is_orphan(run_with(gone)) and not workers.is_alive(run_with(gone))
    assert workers.is_orphan(run_with(gone, dg.DagsterRunStatus.NOT_STARTED)), "it was killed before it began"


def test_a_run_of_a_living_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(workers.signature("r1"))
    assert workers.is_alive(run) and not workers.is_orphan(run)
    set_back = {**run.tags, workers.TAG: f"{socket.gethostname()}:{os.getpid()}:1"}
    assert not workers.is_orphan(run_with(set_back)), "a clock that is set makes no other process of it"


def test_a_pid_that_is_used_again_is_another_process() -> None:
    signed = workers.signature("r1")
    other = {**signed, workers.PROCESS_TAG: signed[workers.PROCESS_TAG] + "0"}
    assert workers.is_orphan(run_with(other))
    rebooted = {**signed, workers.PROCESS_TAG: "r1:another-boot:1"}
    assert workers.is_orphan(run_with(rebooted))


def test_a_zombie_works_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run = run_with(workers.signature("r1", process.pid))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert workers.is_orphan(run)
    finally:
        process.wait()


def test_a_re_execution_has_its_parents_tags_until_its_own_worker_signs_it(gone: dict[str, str]) -> None:
    for status in (STARTED, STARTING):
        assert not workers.is_orphan(run_with(gone, status, run_id="r2"))


def test_what_names_the_process_is_not_in_the_list_of_runs() -> None:
    """The UI shows every tag that has not Dagster's own prefix."""
    assert all(name.startswith(".dagster/") for name in workers.signature("r1"))


def test_what_another_host_does_is_not_known(gone: dict[str, str]) -> None:
    away = {**gone, workers.TAG: "another-host:7:1"}
    assert not workers.is_orphan(run_with(away)) and not workers.is_alive(run_with(away))


def test_runs_that_an_earlier_version_signed_are_judged_as_it_did() -> None:
    assert workers.is_orphan(run_with(OLD)) and not workers.is_orphan(run_with(OLD, STARTING))
    assert not workers.is_orphan(run_with({workers.TAG: workers.worker()}))
    assert not workers.is_orphan(run_with({}))


def test_orphans_are_failed_and_what_they_started_is_ended(gone: dict[str, str]) -> None:
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, workers.RUN_VARIABLE: "r1"}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(run_with(gone))
        instance.add_run(run_with(workers.signature("r2"), run_id="r2"))
        assert workers.fail_orphaned_runs(instance) == ["r1"]
        statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert statuses == {"r1": dg.DagsterRunStatus.FAILURE, "r2": STARTED}
    assert not psutil.pid_exists(left.pid)
