"""Orphan removal: deletes objects below a table's location that no snapshot of it refers to.

Two independent readers must agree that an object is unreferenced: this module's, from PyIceberg's metadata, which
costs milliseconds and leaves most tables without a Spark job; and Spark's `remove_orphan_files`, which is given the
candidates as its `file_list_view`, reads the metadata again and deletes. Given a view, the procedure lists nothing,
so it can be kept from what ingestion has staged, and from `stores_old/` when it cleans `stores` (it compares bare
string prefixes).

The age limit is applied here. The procedure refuses limits below 24 hours and knows no others than its own clock's,
so the view's `last_modified` is a fixed time long ago: the procedure's age test always passes.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pyarrow as pa

from lakehouse.policies import MaintenancePolicy
from lakehouse.sql import spark_ident, spark_literal, spark_relation
from maintenance.action import action
from maintenance.lake import StoredObject
from maintenance.outcome import Figures, Outcome, TableName
from maintenance.reachable import reachable_files
from maintenance.session import Session

NAME = "remove_orphan_files"
LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)


@action(NAME)
def remove_orphan_files(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Removes unreferenced objects older than the policy says; spares `lakehouse.staged_files`."""
    rule, lake = policy.remove_orphan_files, session.lake()
    if rule is None:
        return Outcome(NAME, table, "skipped", "the policy has no remove_orphan_files part")
    if table not in lake.tables:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    if others := lake.sharing_location(table):
        return Outcome(NAME, table, "skipped", f"shares its location with {', '.join(map(str, others))}")
    objects = lake.objects_of(table)
    limit = session.ago(rule.older_than_hours)
    old = [stored for stored in objects if stored.modified < limit and not lake.is_staged(stored.path)]
    known = reachable_files(lake.tables[table]) if old else set()
    orphans = [stored for stored in old if stored.path not in known]
    before = _figures(objects)
    if not orphans:
        reason = f"{len(objects)} objects, no orphan older than {rule.older_than_hours:g} h"
        return Outcome(NAME, table, "skipped", reason, before=before, after=before)
    if session.dry_run:
        return Outcome(NAME, table, "planned", f"removes {len(orphans)} orphans", before=before)
    removed = _remove(session, table, orphans, len(known))
    return _outcome(table, objects, [stored for stored in orphans if stored.path in removed])


def _remove(session: Session, table: TableName, orphans: list[StoredObject], files: int) -> set[str]:
    """Has Spark delete those of the candidates that it, too, finds unreferenced; returns their paths."""
    spark, view = session.spark(files), f"orphans_{uuid.uuid4().hex}"
    listing = pa.table(
        {
            "file_path": [stored.path for stored in orphans],
            "last_modified": pa.array([LONG_AGO] * len(orphans), pa.timestamp("us", tz="UTC")),
        }
    )
    spark.createDataFrame(listing).createOrReplaceTempView(view)  # from Arrow: rows would start Python workers
    try:
        name = spark_literal(spark_relation(*table))
        arguments = f"table => {name}, file_list_view => {spark_literal(spark_ident(view))}"
        deleted = session.call(NAME, arguments, files)
        return {row.orphan_file_location for row in deleted}
    finally:
        spark.catalog.dropTempView(view)


def _outcome(table: TableName, objects: list[StoredObject], removed: list[StoredObject]) -> Outcome:
    before, gone = _figures(objects), sum(stored.size for stored in removed)
    after = Figures(files=len(objects) - len(removed), bytes=(before.bytes or 0) - gone)
    return Outcome(
        NAME,
        table,
        "done",
        f"removed {len(removed)} orphans",
        before=before,
        after=after,
        removed_files=len(removed),
        removed_bytes=gone,
    )


def _figures(objects: list[StoredObject]) -> Figures:
    return Figures(files=len(objects), bytes=sum(stored.size for stored in objects))
