"""Orphan removal: takes objects out of use that lie below a table's location and that nothing refers to.

Two independent readers must agree that an object is unreferenced: this module's, from PyIceberg's metadata, which
costs milliseconds and leaves most tables without a Spark job; and Spark's `remove_orphan_files`, which is given the
candidates as its `file_list_view` and reads the metadata again. Given a view, the procedure lists nothing, so it can
be kept from what ingestion has staged, and from `stores_old/` when it cleans `stores` (it compares bare string
prefixes). It deletes nothing (`dry_run`): what both call an orphan is written down, and deleted by a later `purge`.

The age limit is applied here. The procedure refuses limits below 24 hours and knows no others than its own clock's,
so the view's `last_modified` is a fixed time long ago: the procedure's age test always passes. No limit may be below
the longest write (the policy sees to it): a file that a load is writing is unreferenced until it commits.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.declarations.policies import MaintenancePolicy, OrphanPolicy
from lakehouse.text.sql import spark_ident, spark_literal, spark_relation
from maintenance.actions.action import Need, Rate, Work, action
from maintenance.actions.purge import Purged, purge
from maintenance.inventory import removed
from maintenance.inventory.health import Health
from maintenance.inventory.in_use import elsewhere
from maintenance.inventory.lake import Lake, StoredObject
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.removed import RemovedFile
from maintenance.inventory.session import Session
from maintenance.inventory.unreferenced import unreferenced

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "remove_orphan_files"
LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
MEGABYTE = 1024**2
RATE = Rate(1.0, 1e9, 0.002)


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
    before = _figures(lake.objects_of(table))
    candidates = _candidates(session, lake, table, rule)
    if session.dry_run:
        if not candidates:
            return Outcome(NAME, table, "skipped", _why_not(before, rule), before=before)
        return Outcome(NAME, table, "planned", f"removes {len(candidates)} orphans", before=before)
    orphans = _confirmed(session, table, candidates, before.files or 0) if candidates else []
    if orphans:
        location = lake.tables[table].metadata_location
        with removed.catalog_database(session.settings) as connection:
            removed.record(connection, table, [(stored.path, stored.size) for stored in orphans], NAME, location)
    return _outcome(table, rule, before, orphans, purge(session, table, policy.keep_removed_hours))


def inspect(session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy) -> dict[str, Any]:
    """Objects that nothing refers to, and those that are out of use already, kept for a while or due to go."""
    rule = policy.remove_orphan_files
    if table is None or rule is None or (lake := session.lake()).sharing_location(name):
        return {}
    objects = lake.objects_of(name)
    gone = session.once(f"lake.removed.{name}", lambda: _removed(session, name))
    since = session.ago(policy.keep_removed_hours or 0)
    aside = [stored.size for stored in objects if (file := gone.get(stored.path)) and file.removed_at > since]
    due = [stored.size for stored in objects if (file := gone.get(stored.path)) and file.removed_at <= since]
    found = unreferenced(lake, name, session.ago(rule.older_than_hours), gone)
    orphans = [*due, *(stored.size for stored in found)]
    return {
        "orphans": len(orphans),
        "orphan_bytes": sum(orphans),
        "kept_aside": len(aside),
        "kept_aside_bytes": sum(aside),
    }


def _removed(session: Session, name: TableName) -> dict[str, RemovedFile]:
    with removed.catalog_database(session.settings) as connection:
        return removed.recorded(connection, name)


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The bytes of the orphans."""
    rule = policy.remove_orphan_files
    if rule is None or not health.orphans:
        return None
    reason = f"{health.orphans} orphans older than {rule.older_than_hours:g} h, {health.orphan_bytes / MEGABYTE:.1f} MB"
    return Need(NAME, reason, Work(0, health.objects), gain_bytes=health.orphan_bytes)


def _candidates(session: Session, lake: Lake, table: TableName, rule: OrphanPolicy) -> list[StoredObject]:
    """Old objects that PyIceberg finds no reference to and that are not out of use already."""
    with removed.catalog_database(session.settings) as connection:
        gone = removed.recorded(connection, table).keys()
    orphans = unreferenced(lake, table, session.ago(rule.older_than_hours), gone)
    others = elsewhere(session, table) if orphans else set()
    return [stored for stored in orphans if stored.path not in others]


def _confirmed(session: Session, table: TableName, orphans: list[StoredObject], files: int) -> list[StoredObject]:
    """Those of the candidates that Spark, too, finds unreferenced; `files` are all of the table's."""
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
        arguments = f"table => {name}, dry_run => true, file_list_view => {spark_literal(spark_ident(view))}"
        found = {row.orphan_file_location for row in session.call(NAME, arguments, files)}
    finally:
        spark.catalog.dropTempView(view)
    return [stored for stored in orphans if stored.path in found]


def _outcome(
    table: TableName, rule: OrphanPolicy, before: Figures, orphans: list[StoredObject], purged: Purged
) -> Outcome:
    if not (orphans or purged.files):
        return Outcome(NAME, table, "skipped", _why_not(before, rule), before=before, after=before)
    size = sum(stored.size for stored in orphans)
    after = Figures(files=(before.files or 0) - purged.files, bytes=(before.bytes or 0) - purged.bytes)
    done = [f"{len(orphans)} orphans out of use"] if orphans else []
    reason = "; ".join([*done, *([str(purged)] if purged.files else [])])
    return Outcome(
        NAME, table, "done", reason, before=before, after=after, removed_files=len(orphans), removed_bytes=size
    )


def _why_not(before: Figures, rule: OrphanPolicy) -> str:
    return f"{before.files} objects, no orphan older than {rule.older_than_hours:g} h"


def _figures(objects: list[StoredObject]) -> Figures:
    return Figures(files=len(objects), bytes=sum(stored.size for stored in objects))
