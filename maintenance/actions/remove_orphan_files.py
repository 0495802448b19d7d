"""Orphan removal: takes unreferenced objects below a table's location out of use.

Two independent readers must agree that an object is unreferenced. This module reads PyIceberg's metadata, which takes
milliseconds and spares most tables a Spark job. Spark's `remove_orphan_files` gets the candidates as its
`file_list_view` and reads the metadata again. With a view the procedure lists nothing, so it does not see objects that
ingestion has staged, nor `stores_old/` when it cleans `stores` (it compares string prefixes). It runs with `dry_run`:
objects that both call orphans are recorded, and a later `purge` deletes them.

The age limit is applied here, because the procedure refuses limits below 24 hours and uses its own clock: the view's
`last_modified` is a fixed time long ago, which always passes. The policy allows no limit below the longest write, since
a file is unreferenced until its writer commits.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.catalog.objects import StoredObject
from lakehouse.declarations.policies import MaintenancePolicy, OrphanPolicy
from lakehouse.text.sql import spark_ident, spark_literal, spark_relation
from maintenance.actions.action import action
from maintenance.actions.need import Need, Rate, Work
from maintenance.actions.purge import Purged, purge
from maintenance.inventory import removed
from maintenance.inventory.health import Health
from maintenance.inventory.in_use import elsewhere
from maintenance.inventory.lake import Lake
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
    """Takes unreferenced objects older than the policy's limit out of use, except `lakehouse.staged_files`."""
    rule, lake = policy.remove_orphan_files, session.lake()
    assert rule is not None
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
    """Orphans, removed files that are due for deletion, and removed files that are still kept."""
    rule = policy.remove_orphan_files
    if table is None or rule is None or (lake := session.lake()).sharing_location(name):
        return {}
    objects = lake.objects_of(name)
    gone = session.once("lake.removed", lambda: _removed(session)).get(name, {})
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


def _removed(session: Session) -> dict[tuple[str, str], dict[str, RemovedFile]]:
    with removed.catalog_database(session.settings) as connection:
        return removed.recorded_by_table(connection)


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The bytes of the orphans."""
    rule = policy.remove_orphan_files
    if rule is None or not health.orphans:
        return None
    reason = f"{health.orphans} orphans older than {rule.older_than_hours:g} h, {health.orphan_bytes / MEGABYTE:.1f} MB"
    return Need(NAME, reason, Work(0, health.objects), gain_bytes=health.orphan_bytes)


def _candidates(session: Session, lake: Lake, table: TableName, rule: OrphanPolicy) -> list[StoredObject]:
    """Old objects without a reference by PyIceberg's metadata that are not recorded as removed."""
    with removed.catalog_database(session.settings) as connection:
        gone = removed.recorded(connection, table).keys()
    orphans = unreferenced(lake, table, session.ago(rule.older_than_hours), gone)
    others = elsewhere(session, table) if orphans else set()
    return [stored for stored in orphans if stored.path not in others]


def _confirmed(session: Session, table: TableName, orphans: list[StoredObject], files: int) -> list[StoredObject]:
    """The candidates that Spark also finds unreferenced; `files` is the table's number of files."""
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
