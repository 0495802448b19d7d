"""Expiry against the real stack: old snapshots go, and nobody who may read one is harmed."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lakehouse.catalog.open import newest_data_snapshot
from maintenance.actions.compact import compact
from maintenance.actions.expire_snapshots import expire_snapshots
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import COMPACT, EXPIRE_NOW, look_again, paths, policy, rows

pytestmark = pytest.mark.stack


def test_expiry_drops_old_snapshots_and_their_files(session: Session, table: TableName) -> None:
    compact(session, table, COMPACT)
    before, objects = rows(session, table), paths(session, table)
    data = newest_data_snapshot(session.catalog, *table)
    outcome = expire_snapshots(look_again(session), table, EXPIRE_NOW)
    assert outcome.status == "done", outcome
    # The compaction, made of one or two commits, and the append before it, which sensors compare with.
    assert outcome.after.snapshots is not None and outcome.after.snapshots <= 3
    assert outcome.removed_files > 0
    assert len(paths(session, table)) < len(objects)
    assert newest_data_snapshot(session.catalog, *table) == data
    assert rows(session, table) == before


def test_expiry_keeps_the_last_snapshots_that_the_policy_names(session: Session, table: TableName) -> None:
    keep_three = policy(expire_snapshots={"older_than_hours": 0, "retain_last": 3, "keep_metadata_files": 20})
    outcome = expire_snapshots(look_again(session), table, keep_three)
    assert (outcome.before.snapshots, outcome.after.snapshots) == (8, 3)


def test_expiry_leaves_young_snapshots_alone(session: Session, table: TableName) -> None:
    outcome = expire_snapshots(
        session, table, policy(expire_snapshots={"older_than_hours": 24, "retain_last": 1, "keep_metadata_files": 20})
    )
    assert (outcome.status, outcome.reason) == ("skipped", "8 snapshots, none to expire after 24 h")


def test_a_reader_at_the_newest_cut_can_still_travel_there(session: Session, table: TableName, source: str) -> None:
    named = session.catalog.load_table(table).snapshots()[2].snapshot_id
    publish_cut(session, source, {table.name: named})
    at_cut = session.catalog.load_table(table).scan(snapshot_id=named).to_arrow()
    outcome = expire_snapshots(look_again(session), table, EXPIRE_NOW)
    assert outcome.after.snapshots == 2
    assert session.catalog.load_table(table).scan(snapshot_id=named).to_arrow() == at_cut
    assert session.trino(f"SELECT count(*) FROM {table.namespace}.{table.name} FOR VERSION AS OF {named}") == [[6]]


def publish_cut(session: Session, source: str, snapshots: dict[str, int]) -> None:
    """A row of meta.cuts, as ingestion writes it."""
    from ingestion.sink.publish import ensure_cuts

    now = datetime.now(UTC)
    row = {
        "source": source,
        "epoch": 1,
        "cut_lsn": 1,
        "cut_at": now,
        "published_at": now,
        "snapshots": [(name, str(snapshot)) for name, snapshot in snapshots.items()],
    }
    cuts = ensure_cuts(session.catalog)
    cuts.append(pa.Table.from_pylist([row], cuts.schema().as_arrow()))
