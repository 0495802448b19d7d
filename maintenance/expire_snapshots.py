"""Snapshot expiry: drops old snapshots and the files that only they refer to.

Which snapshots go is decided here, one by one, because Iceberg's own rule (age and count) knows nothing of cuts.
Iceberg gets the list: for a small table through its API in Spark's driver (50 ms), otherwise through the Spark
procedure, which compares the files in parallel (1 s at least).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lakehouse.policies import ExpirePolicy, MaintenancePolicy
from lakehouse.sql import spark_literal, spark_relation
from maintenance.action import action
from maintenance.figures import history, measure, newest_data_chain
from maintenance.outcome import Outcome, TableName
from maintenance.reachable import reachable_files
from maintenance.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "expire_snapshots"
FEW_FILES, FEW_SNAPSHOTS = 10_000, 1_000
NO_AGE_RULE = "older_than => TIMESTAMP '1970-01-02 00:00:00'"


@action(NAME)
def expire_snapshots(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Expires snapshots older than the policy says, except those that must stay; see `must_stay`."""
    rule, loaded = policy.expire_snapshots, session.load(table)
    if rule is None:
        return Outcome(NAME, table, "skipped", "the policy has no expire_snapshots part")
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before = measure(loaded)
    named = session.snapshots_of_cuts(table, rule.older_than_hours)
    expired = expirable(loaded, rule, named, int(session.ago(rule.older_than_hours).timestamp() * 1000))
    if not expired:
        reason = f"{before.snapshots} snapshots, none to expire after {rule.older_than_hours:g} h"
        return Outcome(NAME, table, "skipped", reason, before=before, after=before)
    if session.dry_run:
        return Outcome(NAME, table, "planned", f"expires {len(expired)} snapshots", before=before)
    removed = _expire(session, table, loaded, expired)
    after = measure(session.load(table) or loaded)
    reason = f"expired {len(expired)} snapshots and {removed} files"
    return Outcome(NAME, table, "done", reason, before=before, after=after, removed_files=removed)


def expirable(table: Table, rule: ExpirePolicy, named_by_cuts: frozenset[int], limit_ms: int) -> list[int]:
    """The snapshots to expire: committed before the limit, and not among those that must stay."""
    keep = must_stay(table, rule.retain_last) | named_by_cuts
    return [s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms < limit_ms and s.snapshot_id not in keep]


def must_stay(table: Table, retain_last: int) -> set[int]:
    """The newest snapshots, the way back to the newest data, and all that a tag or another branch refers to."""
    stays: set[int] = {snapshot.snapshot_id for snapshot in islice(history(table), retain_last)}
    stays.update(snapshot.snapshot_id for snapshot in newest_data_chain(table))
    for name, reference in table.metadata.refs.items():
        if name != "main":
            stays.update(snapshot.snapshot_id for snapshot in history(table, reference.snapshot_id))
    return stays


def _expire(session: Session, table: TableName, loaded: Table, expired: list[int]) -> int:
    files = measure(loaded).files or 0
    if files <= FEW_FILES and len(loaded.metadata.snapshots) <= FEW_SNAPSHOTS:
        known = reachable_files(loaded)
        _in_the_driver(session, table, expired)
        return len(known - reachable_files(session.load(table) or loaded))
    return _by_procedure(session, table, expired, files)


def _in_the_driver(session: Session, table: TableName, expired: list[int]) -> None:
    spark = session.spark(files=0)
    assert spark._jvm is not None
    utility = spark._jvm.org.apache.iceberg.spark.Spark3Util
    name = spark_relation(session.settings.catalog_name, *table)
    update = utility.loadIcebergTable(spark._jsparkSession, name).expireSnapshots()
    for snapshot_id in expired:
        update.expireSnapshotId(snapshot_id)
    update.commit()


def _by_procedure(session: Session, table: TableName, expired: list[int], files: int) -> int:
    ids = ", ".join(f"{snapshot_id}L" for snapshot_id in expired)
    rows = session.call(
        NAME,
        f"table => {spark_literal(spark_relation(*table))}, {NO_AGE_RULE}, snapshot_ids => array({ids}),"
        " stream_results => true",
        files,
    )
    return sum(count for row in rows for count in row)
