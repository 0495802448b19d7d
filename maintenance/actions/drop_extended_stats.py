"""Optimizer statistics: drops Trino's extended statistics (distinct counts) and analyzes the table again.

The engine is Trino, because the statistics are in Trino's format. They are dropped first, because ANALYZE merges into
existing statistics, so that a distinct count would never fall.

ANALYZE reads the whole table, so it waits until the rows added and deleted since reach a declared share (`stale_share`)
of all. These are counted over the snapshots back to the one that was analyzed, or to which its statistics were copied
(`lakehouse.catalog.statistics`). If that snapshot has expired, Trino does not find the statistics either, and the table
is analyzed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import total
from lakehouse.declarations.policies import MaintenancePolicy, StatisticsPolicy
from lakehouse.text.sql import relation
from maintenance.actions.action import action
from maintenance.actions.need import SCAN_THROUGHPUT, Need, Rate, Work
from maintenance.inventory.figures import measure, unanalyzed_share
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "drop_extended_stats"
RATE = Rate(1.0, 50e6, 0.0)


@action(NAME)
def drop_extended_stats(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Drops the extended statistics and, if the policy says so, runs ANALYZE."""
    rule, loaded = policy.statistics, session.load(table)
    assert rule is not None
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before = measure(loaded)
    if reason := _why_not(loaded, rule):
        return Outcome(NAME, table, "skipped", reason, before=before, after=before)
    what = "dropped statistics" + (" and analyzed" if rule.analyze else "") + _why(loaded)
    if session.dry_run:
        return Outcome(NAME, table, "planned", what, before=before)
    session.trino(f"ALTER TABLE {relation(*table)} EXECUTE drop_extended_stats")
    if rule.analyze:
        session.trino(f"ANALYZE {relation(*table)}")
    return Outcome(NAME, table, "done", what, before=before, after=measure(session.load(table) or loaded))


def inspect(session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy) -> dict[str, Any]:
    """The share of changed rows, and the age of the statistics."""
    if table is None or policy.statistics is None:
        return {}
    share, made_ms = unanalyzed_share(table)
    age = None if made_ms is None else (session.now.timestamp() * 1000 - made_ms) / 3_600_000
    return {"unanalyzed_share": share, "statistics_age_hours": age}


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The gain is the scans that statistics avoid."""
    rule, share = policy.statistics, health.unanalyzed_share
    there = health.statistics_age_hours is not None
    if rule is None or not health.rows or (rule.analyze and share == 0):
        return None
    if not rule.analyze:
        return Need(NAME, "statistics without `analyze`", Work()) if there else None
    if there and share < rule.stale_share:
        return None
    reason = "no statistics"
    if there:
        reason = f"{share:.0%} of the rows changed since the statistics, {health.statistics_age_hours:.0f} h ago"
    return Need(NAME, reason, Work(health.bytes), share * health.bytes / SCAN_THROUGHPUT)


def _why_not(table: Table, rule: StatisticsPolicy) -> str | None:
    if not rule.analyze:
        return None if table.metadata.statistics else "no statistics to drop"
    if total(table.current_snapshot(), "total-records") == 0:
        return "no rows"
    share, made = unanalyzed_share(table)
    if made is not None and share == 0:
        return "statistics describe the newest data"
    if made is not None and share < rule.stale_share:
        return f"{share:.1%} of the rows changed since the statistics were made, below {rule.stale_share:.0%}"
    return None


def _why(table: Table) -> str:
    share, made = unanalyzed_share(table)
    if made is not None:
        return f": {share:.0%} of the rows changed since"
    return ": what they described has expired" if table.metadata.statistics else ""
