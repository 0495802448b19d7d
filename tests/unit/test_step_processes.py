"""A process per step, as the daemon's runs have it with `LAKEHOUSE_DAGSTER__STEP_PROCESSES`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from orchestration.resources import Lake
from orchestration.runs.pools import pool_executor
from orchestration.runs.processes import workers

HOW = "HOW_THE_SECOND_STEP_ENDS"


@dg.asset
def first(lake: Lake) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"pid": os.getpid()})


@dg.asset(deps=[first], pool="vault")
def second(context: dg.AssetExecutionContext, lake: Lake) -> dg.MaterializeResult:
    run = context.instance.get_run_by_id(context.run.run_id)
    assert run is not None and workers.is_alive(run), "the run is signed by a process that goes on"
    if os.environ.get(HOW) == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(HOW) == "never":
        Path(os.environ["DAGSTER_HOME"], "sleeps").write_text(str(os.getpid()))
        time.sleep(300)
    return dg.MaterializeResult(metadata={"pid": os.getpid()})


defs = dg.Definitions(
    assets=[first, second], jobs=[dg.define_asset_job("load_shop")], executor=pool_executor, resources={"lake": Lake()}
)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__STEP_PROCESSES", "true")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def load(instance: dg.DagsterInstance) -> tuple[bool, list[int], str]:
    """Whether it succeeded, the processes of its steps, and the last error."""
    job = ReconstructableRepository.for_module("test_step_processes", "defs").get_reconstructable_job("load_shop")
    with dg.execute_job(job, instance) as result:
        made = [
            event.step_materialization_data.materialization
            for event in result.all_events
            if event.is_step_materialization
        ]
        errors = [str(e.event_specific_data) for e in result.all_events if e.is_step_failure]
    return result.success, [int(str(each.metadata["pid"].value)) for each in made], "".join(errors)


def test_each_step_has_a_process_of_its_own(instance: dg.DagsterInstance) -> None:
    success, pids, _ = load(instance)
    assert success and len({*pids, os.getpid()}) == 3
    assert not any(map(psutil.pid_exists, pids)), "each has ended before its run"


@pytest.mark.slow
def test_a_killed_step_fails_its_run_and_frees_its_pool(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOW, "killed")
    success, pids, said = load(instance)
    assert not success and len(pids) == 1 and "its process ended with status -9" in said
    monkeypatch.delenv(HOW)
    assert load(instance)[0], "the pool that admits one run has been freed"


@pytest.mark.slow
def test_the_steps_of_a_killed_run_end_with_it(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for orphaned runs ends what they have left."""
    monkeypatch.setenv(HOW, "never")
    sleeps = Path(os.environ["DAGSTER_HOME"], "sleeps")
    thread = threading.Thread(target=load, args=(instance,), daemon=True)
    thread.start()
    while not (sleeps.exists() and sleeps.read_text()):
        time.sleep(0.2)
    [run] = instance.get_runs()
    step = psutil.Process(int(sleeps.read_text()))
    workers.end_children(run.run_id)
    assert not step.is_running() or step.status() == psutil.STATUS_ZOMBIE
    thread.join(60)
    assert not thread.is_alive()
