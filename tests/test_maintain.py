"""Plan and act against the real stack, on a dbt project of its own: what is decided, why, and what is written down."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from typer.testing import CliRunner

from lakehouse.catalog.objects import list_objects
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import Settings
from maintenance.actions.compact import compact
from maintenance.command.maintain import app
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.planning.health import measure_health
from maintenance.runner.maintain import Run, maintain
from tests.slots import until

pytestmark = pytest.mark.stack

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("note", pa.string())])
PROJECT = """
name: mine
version: "1.0.0"
profile: lakehouse
model-paths: [models]
vars:
  maintenance:
    longest_write_hours: 0.0001
    max_failed_share: 0
    groups:
      hourly: {cron: "17 * * * *", budget_minutes: 10}
      never: {cron: "*/5 * * * *", budget_minutes: 10, window: "%s"}
"""
SOURCES = """
sources:
  - name: mine
    schema: %s
    config:
      meta:
        maintenance: &all
          schedule_group: hourly
          compact: {target_file_size_mb: 128, min_input_files: 5}
          expire_snapshots: {older_than_hours: 0.0001, retain_last: 1, keep_metadata_files: 20}
          remove_orphan_files: {older_than_hours: 0.0001}
          keep_removed_hours: 72
    tables:
      - name: busy
        config: {meta: {maintenance: {<<: *all, probe: {key: id}}}}
      - name: quiet
      - name: archive
        config: {meta: {maintenance: {schedule_group: hourly, opt_out: read by nobody}}}
      - name: later
        config: {meta: {maintenance: {<<: *all, schedule_group: never}}}
      - name: broken
      - name: missing
"""
HOLDER = """
import sys, time
from lakehouse.settings import load_settings
from maintenance.actions.exclusion import exclusive
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
with exclusive(Session(load_settings()), TableName(*sys.argv[1:])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def namespace() -> str:
    return f"mine{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def mine(settings: Settings, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with a dbt project that declares this module's tables alone."""
    place = tmp_path_factory.mktemp("project")
    project = place / "dbt_project"
    (project / "models").mkdir(parents=True)
    noon = datetime.now(UTC) + timedelta(hours=12)
    window = f"{noon:%H:%M}-{noon + timedelta(minutes=30):%H:%M}"
    (project / "dbt_project.yml").write_text(PROJECT % window)
    (project / "models" / "sources.yml").write_text(SOURCES % namespace)
    (project / "profiles.yml").write_text((settings.dbt_project_dir / "profiles.yml").read_text())
    return settings.model_copy(update={"project_dir": place, "home": place})


@pytest.fixture(scope="module", autouse=True)
def tables(mine: Settings, namespace: str) -> Iterator[None]:
    with closing(Session(mine)) as session:
        session.catalog.create_namespace(namespace)
        for name, times in (("busy", 6), ("quiet", 1), ("archive", 6), ("later", 6)):
            append(session, TableName(namespace, name), times)
        broken = append(session, TableName(namespace, "broken"), 6)
        session.io.delete(next(iter(broken.scan().plan_files())).file.file_path)
        yield
        for table in session.catalog.list_tables(namespace):
            session.catalog.drop_table(table)
        session.catalog.drop_namespace(namespace)


def append(session: Session, name: TableName, times: int) -> Table:
    table = session.catalog.create_table_if_not_exists(name, SCHEMA)
    if not table.spec().fields:
        with table.update_spec() as spec:
            spec.add_field("at", DayTransform())
    for number in range(times):
        table.append(
            pa.Table.from_pylist([{"id": number, "at": datetime(2026, 1, 1, tzinfo=UTC), "note": "x"}], SCHEMA)
        )
    return table


def act(mine: Settings, *names: str, minutes: float | None = None) -> Run:
    with closing(Session(mine)) as session:
        return maintain(session, names, budget_minutes=minutes)


def reasons(run: Run) -> dict[str, str]:
    return {passed.table.name: passed.reason for passed in (*run.plan.skipped, *run.plan.put_off)}


def call(mine: Settings, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """The command line in this process; returns what its JSON says."""
    monkeypatch.setattr("maintenance.command.maintain.load_settings", lambda: mine)
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_status_and_a_dry_run_say_what_would_be_done_and_do_nothing(
    mine: Settings, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {line["table"].split(".")[1]: line for line in call(mine, monkeypatch, "status")["tables"]}
    assert set(status) == {"busy", "quiet", "archive", "later", "broken", "missing"}
    health = status["busy"]["health"]
    assert (health["files"], health["small_share"], health["snapshots"]) == (6, 1.0, 6)
    assert health["metadata_bytes"] > 1000
    assert [due["action"] for due in status["busy"]["due"]] == ["compact", "expire_snapshots"]
    assert status["busy"]["gain_seconds"] > 0
    assert (status["busy"]["last"], status["quiet"]["due"]) == (None, [])
    assert status["archive"]["reason"] == "opted out: read by nobody"
    assert status["missing"]["reason"] == "not in the lake yet"
    plan = call(mine, monkeypatch, "--dry-run", "--table", f"{namespace}.busy")["plan"]
    assert {step["action"] for step in plan["steps"]} == {"compact", "expire_snapshots"}
    with closing(Session(mine)) as session:
        assert len(session.catalog.load_table((namespace, "busy")).snapshots()) == 6


def test_a_step_that_does_not_fit_is_put_off_and_nothing_begins_outside_of_the_window(
    mine: Settings, namespace: str
) -> None:
    run = act(mine, f"{namespace}.busy", minutes=0.001)
    assert run.result.outcomes == ()
    assert "left of the budget of 0.001 min" in reasons(run)["busy"]
    run = act(mine, f"{namespace}.later")
    assert run.plan.steps == ()
    assert "the window of never" in reasons(run)["later"] and "is closed" in reasons(run)["later"]


def test_acting_heals_a_table_and_is_written_down_with_probes(mine: Settings, namespace: str) -> None:
    names = [f"{namespace}.{name}" for name in ("busy", "quiet", "archive")]
    run = act(mine, *names)
    done = {outcome.action: outcome for outcome in run.result.outcomes}
    assert {(o.status, o.table.name) for o in run.result.outcomes} == {("done", "busy")}, run.result
    assert (done["compact"].before.files, done["compact"].after.files) == (6, 1)
    assert reasons(run)["quiet"].startswith("healthy: 1 files")
    assert reasons(run)["archive"] == "opted out: read by nobody"
    with closing(Session(mine)) as session:
        written = session.trino(
            "SELECT action, status, files_before, files_after, expected_seconds > 0, cardinality(probes_before),"
            f" cardinality(probes_after) FROM meta.maintenance WHERE \"table\" = '{names[0]}' ORDER BY started_at"
        )
        assert written[0] == ["compact", "done", 6, 1, True, 3, 3]
        assert {row[0] for row in written} == set(done)
        assert session.trino(f"SELECT count(DISTINCT run_id) FROM meta.maintenance WHERE \"table\" = '{names[0]}'") == [
            [1]
        ]
    again = act(mine, *names)
    assert not [step for step in again.plan.steps if step.action == "compact"]


def test_what_a_run_did_is_the_last_action_of_the_status_and_the_rate_of_the_next_plan(
    mine: Settings, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [line] = call(mine, monkeypatch, "status", "--table", f"{namespace}.busy")["tables"]
    assert line["last"]["status"] == "done"
    with closing(Session(mine)) as session:
        append(session, TableName(namespace, "busy"), 6)
    plan = call(mine, monkeypatch, "--dry-run", "--table", f"{namespace}.busy")["plan"]
    assert {s["expected_from"] for s in plan["steps"] if s["action"] == "compact"} == {"history of the table"}


@pytest.mark.slow
def test_a_failing_table_does_not_stop_the_others_and_is_shown_first(mine: Settings, namespace: str) -> None:
    run = act(mine, f"{namespace}.broken", f"{namespace}.busy")
    assert run.result.outcomes[0].table.name == "broken"
    assert run.result.failed_share == 0.5, [(o.table.name, o.action, o.status, o.error) for o in run.result.outcomes]
    assert ("busy", "done") in {(outcome.table.name, outcome.status) for outcome in run.result.outcomes}


def test_another_process_excludes_this_one_until_it_is_killed(mine: Settings, namespace: str) -> None:
    policy = MaintenancePolicy.model_validate(
        {"schedule_group": "hourly", "compact": {"target_file_size_mb": 128, "min_input_files": 5}}
    )
    table = TableName(namespace, "archive")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, *table], stdout=subprocess.PIPE, env=os.environ.copy())
    with closing(Session(mine)) as session:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            outcome = compact(session, table, policy)
            assert outcome.status == "skipped"
            assert outcome.reason.startswith("another maintenance run (") and f"process {holder.pid}," in outcome.reason
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        until(lambda: compact(session, table, policy).status == "done")  # once the server has noticed


def test_health_counts_orphans_and_spares_files_in_flight(mine: Settings, namespace: str) -> None:
    name = TableName(namespace, "quiet")
    policy = MaintenancePolicy.model_validate(
        {"schedule_group": "hourly", "remove_orphan_files": {"older_than_hours": 0}, "keep_removed_hours": 72}
    )
    with closing(Session(mine)) as session:
        location = session.catalog.load_table(name).location()
        with session.io.new_output(f"{location}/data/orphan.parquet").create(overwrite=True) as stream:
            stream.write(b"planted")
    with closing(Session(mine)) as session:
        health = measure_health(session, name, policy)
        assert health is not None
        assert (health.orphans, health.orphan_bytes) == (1, 7)
        assert health.objects == len(list_objects(session.io, location))
        assert health.metadata_bytes == len(session.io.new_input(session.load(name).metadata_location))
        session.io.delete(f"{location}/data/orphan.parquet")
