"""Loads and backfills of a source the code has never seen, by the commands a user types, against real servers."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.settings import Settings
from tests.orchestrated import Orchestrated, make_orchestrated

pytestmark = pytest.mark.stack
SEED = int(os.environ.get("LAKEHOUSE_TEST_SEED", "20260504"))


def assert_equal_to_the_source(o: Orchestrated) -> None:
    for table in o.tables:
        assert o.lake_rows(table) == o.source_rows(table), table.name


@pytest.mark.slow
def test_a_new_source_is_loaded_and_backfilled_by_yaml_and_models_alone(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, SEED)
    first, second = o.tables

    o.command("lakehouse", "run", f"load_{o.name}")
    assert_equal_to_the_source(o)
    assert o.count("vault", f"hub_{o.name}_{first.name}") == 500

    o.world.sql(
        first.insert(501, 600),
        f"UPDATE {second.name} SET {second.columns[1][0]} = NULL WHERE {second.key} <= 50",
        f"DELETE FROM {first.name} WHERE {first.key} % 10 = 0",
    )
    o.command("lakehouse", "run", f"load_{o.name}")
    assert_equal_to_the_source(o)

    counts, snapshots = o.counts(), o.snapshots()
    o.command("lakehouse", "run", f"load_{o.name}")
    assert o.snapshots() == snapshots, "a rerun with no new data adds no snapshot"

    today = datetime.now(UTC).date()
    start = (today - timedelta(days=3)).isoformat()
    o.command("lakehouse", "run", f"load_{o.name}", "--from", start, "--to", today.isoformat())
    assert o.counts() == counts, "a backfill never duplicates"
    assert_equal_to_the_source(o)


@pytest.mark.slow
def test_a_backfill_of_another_day_passes_nothing_over(settings: Settings, tmp_path: Path) -> None:
    """The rows of today must not be taken for loaded because a backfill of yesterday has run after they arrived."""
    o = make_orchestrated(settings, tmp_path, SEED + 1)
    o.command("lakehouse", "run", f"load_{o.name}")
    o.world.sql(o.tables[0].insert(501, 600))
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    o.command("lakehouse", "run", f"load_{o.name}", "--partition", yesterday)
    assert_equal_to_the_source(o)

    counts = o.counts()
    o.command("lakehouse", "run", f"load_{o.name}", "--partition", datetime.now(UTC).date().isoformat())
    assert o.counts() == counts, "a backfill never duplicates"


@pytest.mark.slow
def test_mistakes_are_one_line(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, SEED + 2)
    for arguments, message in (
        (("load_nothing",), "no job 'load_nothing'; there are clean_dbt_temporary, compact"),
        (("compact", "--partition", "2026-05-04"), "job 'compact' has no days to derive again"),
        ((f"load_{o.name}", "--partition", "1999-01-01"), "1999-01-01 cannot be derived again"),
        ((f"load_{o.name}", "--from", "2026-05-04"), "give both --from and --to, the earlier day first"),
    ):
        with pytest.raises(AssertionError) as caught:
            o.command("lakehouse", "run", *arguments)
        assert f"error: {message}" in str(caught.value)
        assert "Traceback" not in str(caught.value)
