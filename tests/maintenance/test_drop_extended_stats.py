"""Statistics against the real stack: made when they are stale, and by the engine that reads them."""

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from lakehouse.catalog.statistics import carry
from lakehouse.catalog.writing.commit import commit_on
from maintenance.actions.compact import compact
from maintenance.actions.drop_extended_stats import drop_extended_stats
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import COMPACT, append, policy

pytestmark = pytest.mark.stack

STATISTICS = policy(statistics={"analyze": True, "stale_share": 0})


@pytest.mark.slow
def test_statistics_are_made_once_and_left_alone_while_the_data_is_the_same(session: Session, table: TableName) -> None:
    assert drop_extended_stats(session, table, STATISTICS).status == "done"
    assert distinct_values(session, table) == 8
    assert drop_extended_stats(session, table, STATISTICS).reason == "statistics describe the newest data"
    compact(session, table, COMPACT)
    assert drop_extended_stats(session, table, STATISTICS).status == "skipped"
    append(session, table)
    assert drop_extended_stats(session, table, STATISTICS).status == "done"


def test_trino_reads_statistics_whose_snapshot_left_the_metadata(session: Session, table: TableName) -> None:
    """As ingestion bounds the snapshots of a table that is published each second."""
    drop_extended_stats(session, table, STATISTICS)
    append(session, table)
    loaded = session.catalog.load_table(table)
    gone = [snapshot.snapshot_id for snapshot in loaded.snapshots()[:-1]]
    carried = carry(loaded.metadata, gone)
    loaded = commit_on(session.catalog, loaded, (RemoveSnapshotsUpdate(snapshot_ids=gone), *carried))
    assert len(loaded.snapshots()) == 1 and distinct_values(session, table) == 8
    tolerant = policy(statistics={"analyze": True, "stale_share": 0.5})
    assert (
        "of the rows changed since the statistics were made, below 50%"
        in drop_extended_stats(session, table, tolerant).reason
    )
    outcome = drop_extended_stats(session, table, STATISTICS)
    assert outcome.status == "done" and outcome.reason.endswith("of the rows changed since"), outcome
    assert drop_extended_stats(session, table, STATISTICS).reason == "statistics describe the newest data"
    assert distinct_values(session, table) == 8


def distinct_values(session: Session, table: TableName) -> float:
    statistics = session.trino(f"SHOW STATS FOR {table.namespace}.{table.name}")
    return next(row[2] for row in statistics if row[0] == "id")
