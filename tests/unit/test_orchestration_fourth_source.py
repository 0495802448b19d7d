"""A fourth source needs only YAML and dbt models: its Dagster definitions follow from them."""

import shutil
from pathlib import Path

import pytest

from lakehouse.settings import load_settings
from tests.fourth_source import declare, make_tables

SEED = 20260504


@pytest.mark.slow
def test_a_new_source_appears_with_all_that_belongs_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestration.definitions import definitions
    from orchestration.graph import describe

    shutil.copytree(load_settings().dbt_project_dir, tmp_path / "dbt_project")
    tables = make_tables(SEED)
    declare(tmp_path / "dbt_project", "harbour", tables)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_PROJECT_DIR", str(tmp_path))

    found = set(describe(definitions(load_settings())))

    assert {"job load_harbour by day", "sensor new_data_harbour → load_harbour RUNNING"} <= found
    assert "schedule maintain_weekly → maintain 45 3 * * 0 RUNNING" in found
    assert "schedule compact_weekly → compact 47 3 * * 0 STOPPED" in found
    for table in (t.name for t in tables):
        for asset in (
            f"raw_harbour/{table}", f"parsed/parsed_harbour__{table}", f"parsed/current_harbour__{table}",
            f"vault/hub_harbour_{table}", f"vault/sat_harbour_{table}",
        ):  # fmt: skip
            assert {f"asset {asset}", f"job load_harbour {asset}"} <= found
        checks = {line for line in found if line.startswith(f"check raw_harbour/{table} ")}
        assert len(checks) == 4, "the cut, the declared columns, the source's rows, and the source's dbt test"
