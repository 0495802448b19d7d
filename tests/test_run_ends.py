"""`lakehouse run` is ended by signals and kills at any moment, and the next one is not held up by it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psutil
import pytest
from trino.exceptions import TrinoQueryError

from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from orchestration.runs.processes import workers
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.steady_load import SteadyLoad

pytestmark = pytest.mark.stack
SEED = int(os.environ.get("LAKEHOUSE_TEST_SEED", "20260506"))
ENDS_WITHIN = 30.0


class Load:
    """A running `lakehouse run load_<source>` of a user's."""

    def __init__(self, o: Orchestrated) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [str(BIN / "lakehouse"), "run", f"load_{o.name}"], env=o.environment, text=True, start_new_session=True,
            cwd=o.environment["LAKEHOUSE_PROJECT_DIR"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)  # type: ignore[arg-type]
        self._reader.start()

    @property
    def output(self) -> str:
        """What it has printed."""
        return "".join(self.lines)

    @property
    def run_id(self) -> str:
        """The first eight characters of its run's id."""
        [found] = re.findall(r"run (\w{8})\n", self.output)
        return str(found)

    def says(self, text: str, seconds: float = 240) -> None:
        """Waits until it has printed that."""
        wait_for(lambda: text in self.output or self.process.poll() is not None, seconds)
        assert text in self.output, self.output

    def signalled(self, *numbers: signal.Signals) -> int:
        """Its exit status after signals, a moment apart; it leaves no process behind."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.2)
        status = self.process.wait(ENDS_WITHIN)
        self._reader.join()
        if signal.SIGKILL not in numbers:  # what a killed one leaves is for the next run to end
            assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        return status


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of that signal by now; see proc(5)."""
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (number - 1) & 1)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture
def o(settings: Settings, tmp_path: Path) -> Orchestrated:
    return make_orchestrated(settings, tmp_path, SEED, count=1)


@pytest.fixture
def instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as opened:
        yield opened


@contextmanager
def started(o: Orchestrated) -> Iterator[Load]:
    load = Load(o)
    try:
        yield load
    finally:
        if load.process.poll() is None:
            for process in psutil.Process(load.process.pid).children(recursive=True):
                process.kill()
            load.process.kill()
            load.process.wait()


def hold(instance: dg.DagsterInstance, pool: str, worker: subprocess.Popen[bytes] | None) -> dg.DagsterRun:
    """A run at work in that pool, signed by a process, or by nobody whom this host knows."""
    run = dg.DagsterRun(job_name="load_other", status=dg.DagsterRunStatus.STARTED)
    tags = {workers.TAG: "another-host:7:1"}
    if worker is not None:
        tags = workers.signature(run.run_id, worker.pid)
    instance.add_run(run.with_tags(tags))
    instance.event_log_storage.initialize_concurrency_limit_to_default(pool)
    assert instance.event_log_storage.claim_concurrency_slot(pool, run.run_id, "step").is_claimed
    return run


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    [run] = [run for run in instance.get_runs(limit=50) if run.run_id.startswith(run_id)]
    return run.status


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["it", "its group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_ends_at_the_first_signal(
    o: Orchestrated, tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """After one Ctrl-C it went on for ever: PySpark had replaced the handler, and the main thread alone ended.

    systemd sends SIGTERM to the JVM too: the cycle that it ended was told with a traceback of Java.
    """
    said = tmp_path / "said"
    with said.open("w") as output:
        process = subprocess.Popen(
            [str(BIN / "lakehouse"), "ingest", o.name, "--follow"], env=o.environment, start_new_session=True,
            cwd=o.environment["LAKEHOUSE_PROJECT_DIR"], stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    load = SteadyLoad(o.world.owner_url, o.tables, changes_per_second=1000)
    try:
        wait_for(lambda: "published" in said.read_text(), 240)
        load.start()
        wait_for(lambda: said.read_text().count("published") > 2, 60)
        send(process.pid, number)
        assert process.wait(ENDS_WITHIN) == 0
    finally:
        load.stop.set()
        process.kill()
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
def test_a_load_says_whom_it_waits_for_without_a_busy_loop_and_ends_when_told(
    o: Orchestrated, instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    """It waited at full CPU, silently, and was deaf to SIGTERM."""
    pool = f"raw_{o.name}"
    holder = hold(instance, pool, sleeper)
    try:
        with started(o) as load:
            load.says(f"waiting for pool {pool}, held by run {holder.run_id[:8]} of load_other")
            times = psutil.Process(load.process.pid).cpu_times
            before, begun = times(), time.monotonic()
            time.sleep(6)  # it looks again at the holder in between, which lives
            spent = sum(times()[:2]) - sum(before[:2])
            assert spent / (time.monotonic() - begun) < 0.2, f"{spent} s of CPU in 6 s"
            assert load.signalled(signal.SIGTERM, signal.SIGTERM) == 143
        assert status_of(instance, load.run_id) is dg.DagsterRunStatus.CANCELED
        info = instance.event_log_storage.get_concurrency_info(pool)
        assert info.active_run_ids == {holder.run_id} and not info.pending_step_count, "a live run keeps its slot"
        assert status_of(instance, holder.run_id) is dg.DagsterRunStatus.STARTED
    finally:
        workers.free_pools(instance, holder.run_id)
        instance.delete_run(holder.run_id)


@pytest.mark.slow
def test_a_load_takes_the_place_of_a_dead_run_and_ends_what_that_left_running(
    o: Orchestrated, instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    dead = hold(instance, f"raw_{o.name}", sleeper)
    heeding = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(600)"
    left = subprocess.Popen(  # SIGINT is ignored in a background job of a shell, such as this test may be
        [sys.executable, "-c", heeding],
        env={**os.environ, workers.RUN_VARIABLE: dead.run_id},
    )
    sleeper.kill()
    with started(o) as load:
        load.says(f"raw_{o.name} …")
        assert "waiting for pool" not in load.output
        assert load.signalled(signal.SIGINT) == 130
    assert left.wait(5) == -signal.SIGINT
    assert status_of(instance, dead.run_id) is dg.DagsterRunStatus.FAILURE
    assert status_of(instance, load.run_id) is dg.DagsterRunStatus.CANCELED
    assert f"error: interrupted by SIGINT: run {load.run_id} of load_{o.name} is CANCELED" in load.output
    assert "Traceback" not in load.output
    assert not instance.event_log_storage.get_concurrency_info(f"raw_{o.name}").claimed_slots


@pytest.mark.slow
def test_what_a_killed_dbt_left_running_in_trino_ends_before_the_next_load_writes(
    o: Orchestrated, instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    """Worker and dbt were killed together, as where a container ends: their insert went on beside the next one."""
    dead = hold(instance, f"raw_{o.name}", sleeper)
    sleeper.kill()
    endless = " CROSS JOIN ".join(["unnest(sequence(1, 10000))"] * 4)
    comment = f'/* {{"app": "dbt", "lakehouse_run": "{dead.run_id}", "node": "model.x"}} */'
    ended: list[str] = []

    def insert() -> None:
        with pytest.raises(TrinoQueryError) as error:
            query(o.settings, f"{comment}\nCREATE TABLE lake.meta.{o.name} AS SELECT count(*) AS n FROM {endless}")
        ended.append(error.value.message)

    left = threading.Thread(target=insert)
    left.start()
    with started(o) as load:
        assert load.process.wait(240) == 0, load.output
    left.join(1)
    assert ended == ["Query killed. Message: its dbt was killed"]
    marked = f'SELECT count(*) FROM system.runtime.queries WHERE query LIKE \'/* {{%"lakehouse_run": "{load.run_id}%\''
    assert query(o.settings, marked)[0][0] > 0


@pytest.mark.parametrize("seconds", [1.5, 4.0])
def test_a_load_ends_while_it_starts(o: Orchestrated, seconds: float) -> None:
    with started(o) as load:
        wait_for(lambda: catches(load.process.pid, signal.SIGTERM), 60)
        time.sleep(seconds)
        assert load.signalled(signal.SIGTERM, signal.SIGINT) == 143
    assert "Traceback" not in load.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment", "later"),
    [
        (signal.SIGKILL, "  run ", 0.0),
        (signal.SIGINT, "raw_{} …", 6.0),
        (signal.SIGKILL, "raw_{} …", 6.0),
        (signal.SIGTERM, "load_models_{} …", 0.3),
        (signal.SIGINT, "load_models_{} …", 8.0),
        (signal.SIGKILL, "load_models_{} …", 8.0),
    ],
)
def test_after_a_load_that_was_ended_at_any_moment_the_next_one_finishes(
    o: Orchestrated, instance: dg.DagsterInstance, number: signal.Signals, moment: str, later: float
) -> None:
    with started(o) as load:
        load.says(moment.format(o.name))
        time.sleep(later)
        status = load.signalled(number)
    assert status == (-9 if number is signal.SIGKILL else 128 + number)
    o.world.sql(o.tables[0].insert(501, 600))
    with started(o) as second:
        assert second.process.wait(240) == 0, second.output
    [table] = o.tables
    assert o.lake_rows(table) == o.source_rows(table)
    assert o.count("vault", f"hub_{o.name}_{table.name}") == 600
    finished = {dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
    assert status_of(instance, load.run_id) in finished
