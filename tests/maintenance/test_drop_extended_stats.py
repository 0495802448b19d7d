"""Statistics against the real stack: made when they are stale, and by the engine that reads them."""

import pytest

from maintenance.compact import compact
from maintenance.drop_extended_stats import drop_extended_stats
from maintenance.outcome import TableName
from maintenance.session import Session
from tests.maintained import COMPACT, append, policy

pytestmark = pytest.mark.stack

STATISTICS = policy(statistics={"analyze": True, "stale_share": 0})


def test_statistics_are_made_once_and_left_alone_while_the_data_is_the_same(session: Session, table: TableName) -> None:
    assert drop_extended_stats(session, table, STATISTICS).status == "done"
    assert distinct_values(session, table) == 8
    assert drop_extended_stats(session, table, STATISTICS).reason == "statistics describe the newest data"
    compact(session, table, COMPACT)
    assert drop_extended_stats(session, table, STATISTICS).status == "skipped"
    append(session, table)
    assert drop_extended_stats(session, table, STATISTICS).status == "done"


def distinct_values(session: Session, table: TableName) -> float:
    statistics = session.trino(f"SHOW STATS FOR {table.namespace}.{table.name}")
    return next(row[2] for row in statistics if row[0] == "id")
