"""A load in which dbt fails: the last lines say which model and test, in the database's words, and how to look."""

import json
import re
import subprocess
from pathlib import Path

import dagster as dg
import pytest

from lakehouse.settings import Settings
from tests.orchestrated import BIN, make_orchestrated

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_a_failed_load_ends_with_what_failed_and_other_jobs_go_on(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, 20260507, count=1)
    project, [table] = tmp_path / "dbt_project", o.tables
    hub, stage = f"hub_{o.name}_{table.name}", f"stg_{o.name}__{table.name}"
    broken = f"{{{{ config(materialized='append_only') }}}}\nSELECT no_such FROM {{{{ ref('{stage}') }}}}\n"
    (project / "models" / "vault" / o.name / "broken.sql").write_text(broken)
    (project / "tests").mkdir(exist_ok=True)
    failing = f"SELECT {table.key} FROM {{{{ ref('{hub}') }}}} WHERE {table.key} <= 3\n"
    (project / "tests" / "no_small_keys.sql").write_text(failing)
    done = subprocess.run(
        [str(BIN / "lakehouse"), "run", f"load_{o.name}", "measure_table_health", "--json"],
        capture_output=True, text=True, env=o.environment, cwd=tmp_path, timeout=500,
    )  # fmt: skip
    assert done.returncode == 1 and "The dbt CLI process" not in done.stderr and "Traceback" not in done.stderr
    load, health = json.loads(done.stdout)
    assert not load["success"] and health["success"], "a job that reads nothing of the failed one goes on"
    error = done.stderr.partition("error: ")[2]
    assert "dbt: 2 failed; full log: " in error
    assert re.match(
        rf"load_{o.name}: run {load['run_id'][:8]}: "
        r"vault\.broken \(dbt_project/models/vault/\w+/broken\.sql\): line \d+:\d+:"
        r" Column 'no_such' cannot be resolved \(COLUMN_NOT_FOUND, query \w+\)\n",
        error,
    ), error
    found = re.search(rf"\ntest no_small_keys of vault\.{hub} found 3 failing rows; to see them: (.*)\n", error)
    assert found, error
    look = subprocess.run(
        f"{BIN}/{found[1]} --json", shell=True, capture_output=True, text=True, env=o.environment, cwd=tmp_path
    )
    assert len(look.stdout.splitlines()) == 3, look

    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        events = instance.all_logs(load["run_id"], of_type=dg.DagsterEventType.STEP_FAILURE)
    [step] = [entry.dagster_event for entry in events]
    assert step is not None and "vault.broken" in step.step_failure_data.error_display_string, "the UI shows the same"
