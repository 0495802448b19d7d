"""A dry run of all actions that change a table."""

import pytest

from lakehouse.settings import Settings
from maintenance.actions.compact import compact
from maintenance.actions.drop_extended_stats import drop_extended_stats
from maintenance.actions.expire_snapshots import expire_snapshots
from maintenance.actions.remove_orphan_files import remove_orphan_files
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.inventory.session import Session
from tests.maintained import paths, plant, policy

pytestmark = pytest.mark.stack


def test_a_dry_run_changes_nothing(settings: Settings, session: Session, table: TableName) -> None:
    plant(session, session.catalog.load_table(table).location() + "/data/orphan.parquet")
    location, objects = session.catalog.load_table(table).metadata_location, paths(session, table)
    dry = Session(settings, dry_run=True)
    everything = policy(
        compact={"target_file_size_mb": 128, "min_input_files": 5},
        expire_snapshots={"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 20},
        remove_orphan_files={"older_than_hours": 0},
        statistics={"analyze": True, "stale_share": 0},
    )
    for act in (compact, expire_snapshots, remove_orphan_files, drop_extended_stats):
        outcome: Outcome = act(dry, table, everything)
        assert outcome.status == "planned", outcome
    assert session.catalog.load_table(table).metadata_location == location
    assert paths(session, table) == objects
    assert "spark" not in dry._shared
