"""Optimizer statistics: Trino drops its extended ones (distinct counts) and analyzes the table anew.

Dropped first, because ANALYZE merges into what is there and a distinct count would never fall. A table whose
statistics already describe its newest data is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.policies import MaintenancePolicy
from lakehouse.sql import relation
from maintenance.action import action
from maintenance.figures import measure, newest_data_chain, total
from maintenance.outcome import Outcome, TableName
from maintenance.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "drop_extended_stats"


@action(NAME)
def drop_extended_stats(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Drops the extended statistics and, where the policy says so, runs ANALYZE."""
    rule, loaded = policy.statistics, session.load(table)
    if rule is None:
        return Outcome(NAME, table, "skipped", "the policy has no statistics part")
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before = measure(loaded)
    if reason := _why_not(loaded, rule.analyze):
        return Outcome(NAME, table, "skipped", reason, before=before, after=before)
    what = "dropped statistics" + (" and analyzed" if rule.analyze else "")
    if session.dry_run:
        return Outcome(NAME, table, "planned", what, before=before)
    session.trino(f"ALTER TABLE {relation(*table)} EXECUTE drop_extended_stats")
    if rule.analyze:
        session.trino(f"ANALYZE {relation(*table)}")
    return Outcome(NAME, table, "done", what, before=before, after=measure(session.load(table) or loaded))


def _why_not(table: Table, analyze: bool) -> str | None:
    described = {statistics.snapshot_id for statistics in table.metadata.statistics}
    if not analyze:
        return None if described else "no statistics to drop"
    if total(table.current_snapshot(), "total-records") == 0:
        return "no rows"
    if any(snapshot.snapshot_id in described for snapshot in newest_data_chain(table)):
        return "statistics describe the newest data"
    return None
