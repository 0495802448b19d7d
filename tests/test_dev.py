"""`lakehouse dev` as a user has it: sensors load by themselves, the UI and Dagster's commands launch and backfill."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from lakehouse.settings import Settings
from orchestration.web.login import ui_secret
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.ports import free_port

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3600)]
LAUNCH = """
mutation Launch($executionParams: ExecutionParams!) {
  launchRun(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""


class Dev:
    """A running `lakehouse dev` and the Dagster instance it works on."""

    def __init__(
        self, o: Orchestrated, port: int, process: subprocess.Popen[bytes], instance: dg.DagsterInstance
    ) -> None:
        self.o, self.port, self.process, self.instance = o, port, process, instance
        self.job = f"load_{o.name}"

    def runs(self, status: dg.DagsterRunStatus | None = None) -> list[dg.DagsterRun]:
        """Runs of the load job, newest first."""
        filters = dg.RunsFilter(job_name=self.job, statuses=[status] if status else None)
        return list(self.instance.get_runs(filters))

    def settle(self) -> None:
        """Waits until no run of the job is queued or running."""
        wait_for(lambda: bool(self.runs()) and all(run.is_finished for run in self.runs()))

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """What the UI sends."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        shown = {"Authorization": f"Bearer {ui_secret(self.o.settings)}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/graphql", body, shown)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["data"]  # type: ignore[no-any-return]

    def answers(self) -> bool:
        """Whether the UI is there and has loaded the code location."""
        try:
            found = self.graphql("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")
        except OSError:
            return False
        return bool(found["repositoriesOrError"].get("nodes"))

    def children(self) -> dict[str, psutil.Process]:
        """The processes it keeps running."""
        found = psutil.Process(self.process.pid).children()
        words = {process: process.cmdline()[1:3] for process in found}
        return {Path(said[said[0] == "-m"]).name: process for process, said in words.items() if said}


def wait_for(condition: Callable[[], bool], seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(2)


@pytest.fixture
def dev(settings: Settings, tmp_path: Path) -> Iterator[Dev]:
    with running_dev(make_orchestrated(settings, tmp_path, 20260505), tmp_path / "dev.log") as running:
        yield running


@contextmanager
def running_dev(o: Orchestrated, output: Path) -> Iterator[Dev]:
    """`lakehouse dev` without the stack, once its UI answers; ended as by Ctrl-C."""
    port = free_port()
    environment = {**o.environment, "LAKEHOUSE_DAGSTER__PORT": str(port)}
    with output.open("wb") as log:
        process = subprocess.Popen(
            [str(BIN / "lakehouse"), "dev", "--no-stack"],
            stdout=log, stderr=log, env=environment, cwd=output.parent, start_new_session=True,
        )  # fmt: skip
    try:
        with dg.DagsterInstance.from_config(str(o.settings.dagster_home)) as instance:
            running = Dev(o, port, process, instance)
            wait_for(running.answers)
            yield running
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)


def test_a_day_with_lakehouse_dev(dev: Dev) -> None:
    o, first = dev.o, dev.o.tables[0]
    today = datetime.now(UTC).date()

    def equal() -> bool:
        return all(o.lake_rows(table) == o.source_rows(table) for table in o.tables)

    # The sensor loads what the follower brings, and stays quiet afterwards.
    wait_for(lambda: bool(dev.runs(dg.DagsterRunStatus.SUCCESS)))
    dev.settle()
    assert equal()
    o.world.sql(first.insert(501, 600), f"DELETE FROM {first.name} WHERE {first.key} <= 10")
    wait_for(lambda: o.count("parsed", f"current_{o.name}__{first.name}") == 590)
    wait_for(lambda: o.count("vault", f"hub_{o.name}_{first.name}") == 600)  # the view is as new as the cut
    dev.settle()
    assert equal()
    settled, counts = len(dev.runs()), o.counts()
    time.sleep(100)
    assert len(dev.runs()) == settled, "without new data nothing is launched"

    # Dagster's own commands: a launch, a backfill (one run per day), a range (one run).
    workspace = ("-w", str(Path(o.environment["LAKEHOUSE_PROJECT_DIR"]) / "workspace.yaml"))
    o.command("dagster", "job", "launch", *workspace, "-j", dev.job)
    dev.settle()
    yesterday = today - timedelta(days=1)
    days = f"{yesterday.isoformat()},{today.isoformat()}"
    o.command("dagster", "job", "backfill", *workspace, "-j", dev.job, "--partitions", days, "--noprompt")
    dev.settle()
    span = {
        "dagster/asset_partition_range_start": yesterday.isoformat(),
        "dagster/asset_partition_range_end": today.isoformat(),
    }
    o.command("dagster", "job", "launch", *workspace, "-j", dev.job, "--tags", json.dumps(span))
    dev.settle()
    assert len(dev.runs()) == settled + 4
    assert not dev.runs(dg.DagsterRunStatus.FAILURE)
    assert o.counts() == counts, "a backfill never duplicates"

    # What the button "Materialize" of a raw table sends.
    selector = {
        "repositoryLocationName": "lakehouse", "repositoryName": "__repository__", "jobName": "__ASSET_JOB",
        "assetSelection": [{"path": [f"raw_{o.name}", first.name]}],
    }  # fmt: skip
    launched = dev.graphql(LAUNCH, executionParams={"selector": selector, "mode": "default"})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    wait_for(lambda: dev.instance.get_run_by_id(run_id).is_finished)  # type: ignore[union-attr]
    assert dev.instance.get_run_by_id(run_id).is_success  # type: ignore[union-attr]

    # A daemon that is killed comes back and goes on where it was.
    dev.children()["orchestration.daemon"].kill()
    o.world.sql(first.insert(601, 650))
    wait_for(lambda: o.count("parsed", f"current_{o.name}__{first.name}") == 640)
    dev.settle()

    # Ctrl-C ends all of it.
    family = psutil.Process(dev.process.pid).children(recursive=True)
    os.kill(dev.process.pid, signal.SIGINT)
    assert dev.process.wait(timeout=120) == 0
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
