"""Snapshot expiry: expires old snapshots and takes the files that only they refer to out of use.

This module chooses the snapshots one by one, because Iceberg's rule (age and count) does not know cuts.

The engine is PyIceberg: expiry writes one metadata file. Unlike Spark's procedure it deletes no files. It records them,
with the previous metadata file, and a later `purge` deletes them; until then a restore needs nothing else. The commit
applies to exactly the state that was inspected; after a concurrent commit the snapshots are chosen again.

The same commit removes expired references, statistics of expired snapshots, and metadata files beyond
`keep_metadata_files` from the table's log. Writers do not delete those (`delete-after-commit` is off), because a backup
of the catalog may point to one. They become orphans, and orphan removal deletes them later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.open import history
from lakehouse.catalog.past import newest_until
from lakehouse.catalog.pins import TAG, properties_of
from lakehouse.catalog.views.tags import after_rewrites
from lakehouse.catalog.writing.commit import commit_on, until_committed
from lakehouse.declarations.policies import ExpirePolicy, MaintenancePolicy
from maintenance.actions.action import action
from maintenance.actions.need import Need, Rate, Work
from maintenance.actions.purge import Purged, purge
from maintenance.inventory import removed
from maintenance.inventory.figures import measure_all, newest_data_chain
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.reachable import Sizes, only_of
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

NAME = "expire_snapshots"
MAX_CONFLICTS = 20
KEPT_METADATA, DELETES_METADATA = "write.metadata.previous-versions-max", "write.metadata.delete-after-commit.enabled"
KEPT_BY_DEFAULT = 100  # Iceberg's own, where the property is not set


@dataclass(frozen=True)
class Expiry:
    """Snapshots and references to expire, and properties to set."""

    snapshots: tuple[int, ...]
    references: tuple[str, ...]
    properties: dict[str, str]

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.references or self.properties)

    def __str__(self) -> str:
        parts = []
        if self.snapshots:
            parts.append(f"{len(self.snapshots)} snapshots")
        if self.references:
            parts.append(f"references {', '.join(self.references)}")
        if self.properties:
            parts.append(f"metadata files beyond {self.properties.get(KEPT_METADATA, 'the log')}")
        return ", ".join(parts)

    def updates(self, table: Table) -> Iterator[TableUpdate]:
        """The changes of the table's metadata."""
        from pyiceberg.table import update

        for name in self.references:
            yield update.RemoveSnapshotRefUpdate(ref_name=name)
        of_pins = (each for name in self.references for each in properties_of(name.removeprefix(TAG)))
        if told := [each for each in of_pins if each in table.properties]:
            yield update.RemovePropertiesUpdate(removals=told)
        if self.snapshots:
            yield update.RemoveSnapshotsUpdate(snapshot_ids=list(self.snapshots))
        for statistics in table.metadata.partition_statistics:
            if statistics.snapshot_id in self.snapshots:
                yield update.RemovePartitionStatisticsUpdate(snapshot_id=statistics.snapshot_id)
        if self.properties:
            yield update.SetPropertiesUpdate(updates=self.properties)


COST_PER_METADATA_MB = 0.02  # seconds of a reader to load metadata.json
MEGABYTE = 1024**2
RATE = Rate(0.5, 1e9, 0.005)


@action(NAME)
def expire_snapshots(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Expires snapshots older than the policy's limit, except those that `must_stay` returns."""
    rule, loaded = policy.expire_snapshots, session.load(table)
    assert rule is not None
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before = measure_all(loaded)
    if session.dry_run:
        if expiry := _decide(session, table, loaded, rule):
            return Outcome(NAME, table, "planned", f"expires {expiry}", before=before)
        return Outcome(NAME, table, "skipped", _why_not(before, rule), before=before)
    until_committed(session.catalog, table, lambda found: after_rewrites(found.metadata))
    expiry, files = _expire(session, table, rule)
    purged = purge(session, table, policy.keep_removed_hours)
    return _outcome(session, table, rule, before, expiry, files, purged)


def inspect(session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy) -> dict[str, Any]:
    """Expirable snapshots, and properties of the metadata log to set."""
    if table is None or (rule := policy.expire_snapshots) is None:
        return {}
    named = session.snapshots_of_cuts(name, rule.older_than_hours, of_now=False)
    limit_ms = int(session.ago(rule.older_than_hours).timestamp() * 1000)
    return {
        "expirable_snapshots": len(expirable(table, rule, named, limit_ms)),
        "properties_to_set": len(properties_to_set(table, rule)),
    }


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The gain is less metadata to load, and the files that only old snapshots refer to."""
    rule, count = policy.expire_snapshots, health.expirable_snapshots
    if rule is None:
        return None
    if not count and not health.properties_to_set:
        return None
    reason = f"{count} of {health.snapshots} snapshots older than {rule.older_than_hours:g} h"
    if (surplus := health.metadata_files - rule.keep_metadata_files) > 0:
        reason += f", {surplus} metadata files more than {rule.keep_metadata_files}"
    elif health.properties_to_set:
        reason += f", the log of metadata files is not kept as declared ({rule.keep_metadata_files})"
    share = count / health.snapshots if health.snapshots else 0.0
    freed = int(share * max(0, health.object_bytes - health.bytes - health.orphan_bytes - health.kept_aside_bytes))
    saved = share * health.metadata_bytes / MEGABYTE * COST_PER_METADATA_MB
    return Need(NAME, reason, Work(0, health.snapshots), saved, freed)


def decide(table: Table, rule: ExpirePolicy, named_by_cuts: frozenset[int], limit_ms: int, now_ms: int) -> Expiry:
    """Chooses the snapshots before the limit that need not stay, and the references whose age is over."""
    refs = table.metadata.refs
    over = tuple(
        name
        for name, reference in refs.items()
        if name != "main"
        and reference.max_ref_age_ms is not None
        and (snapshot := table.snapshot_by_id(reference.snapshot_id)) is not None
        and snapshot.timestamp_ms + reference.max_ref_age_ms < now_ms
    )
    return Expiry(tuple(expirable(table, rule, named_by_cuts, limit_ms, over)), over, properties_to_set(table, rule))


def expirable(
    table: Table, rule: ExpirePolicy, named_by_cuts: frozenset[int], limit_ms: int, over: tuple[str, ...] = ()
) -> list[int]:
    """The snapshots to expire: committed before the limit, and not among those that must stay."""
    keep = must_stay(table, rule.retain_last, limit_ms, over) | named_by_cuts
    return [s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms < limit_ms and s.snapshot_id not in keep]


def must_stay(table: Table, retain_last: int, limit_ms: int, over: tuple[str, ...] = ()) -> set[int]:
    """The newest snapshots, the one in force at the limit, which a reader of a moment after it reads, those back to the
    newest data, and those of tags and branches that are not `over`.

    The newest are those of the table's line and of all: one that replaces the table descends from no other.
    """
    made = sorted(table.metadata.snapshots, key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
    newest = (*islice(history(table.metadata), retain_last), *made[-retain_last:])
    stays: set[int] = {snapshot.snapshot_id for snapshot in newest}
    in_force, _ = newest_until(table.metadata, datetime.fromtimestamp(limit_ms / 1000, UTC))
    if in_force is not None:
        stays.add(in_force)
    stays.update(snapshot.snapshot_id for snapshot in newest_data_chain(table))
    for name, reference in table.metadata.refs.items():
        if name in over:
            continue
        if reference.snapshot_ref_type == "tag":
            stays.add(reference.snapshot_id)
        elif name != "main":
            stays.update(snapshot.snapshot_id for snapshot in history(table.metadata, reference.snapshot_id))
    return stays


def properties_to_set(table: Table, rule: ExpirePolicy) -> dict[str, str]:
    """Properties that limit the metadata log, and keep writers from deleting the files that leave it."""
    keep, wanted = rule.keep_metadata_files, {}
    if len(table.metadata.metadata_log) > keep or int(table.properties.get(KEPT_METADATA, KEPT_BY_DEFAULT)) < keep:
        wanted[KEPT_METADATA] = str(keep)
    if DELETES_METADATA in table.properties:
        wanted[DELETES_METADATA] = "false"
    return {name: value for name, value in wanted.items() if table.properties.get(name) != value}


def _decide(session: Session, table: TableName, loaded: Table, rule: ExpirePolicy) -> Expiry:
    """The cuts are read after the table: what a cut names that is not seen here is newer than all that may go."""
    named = session.snapshots_of_cuts(table, rule.older_than_hours)
    limit, now = (int(moment.timestamp() * 1000) for moment in (session.ago(rule.older_than_hours), session.now))
    return decide(loaded, rule, named, limit, now)


def _expire(session: Session, table: TableName, rule: ExpirePolicy) -> tuple[Expiry, Sizes]:
    """Writes the files down, then commits; what was written down for a commit that failed is in use and stays.

    To find the files takes seconds, and ingestion may commit each second: they are found once, and again only where a
    snapshot that was to go must stay after all. A commit that came between can only have added to what is there.
    """
    from pyiceberg.exceptions import CommitFailedException

    expiry, files = Expiry((), (), {}), dict[str, int | None]()
    for _ in range(MAX_CONFLICTS):
        loaded = session.catalog.load_table(table)
        now = _decide(session, table, loaded, rule)
        if not expiry or not set(expiry.snapshots) <= set(now.snapshots):
            expiry = now
            if not expiry:
                break
            files = _only_of(loaded, expiry)
            _write_down(session, table, loaded, files)
            continue
        try:
            commit_on(session.catalog, loaded, tuple(replace(now, snapshots=expiry.snapshots).updates(loaded)))
        except CommitFailedException:
            continue
        return expiry, files
    else:
        raise RuntimeError(f"{MAX_CONFLICTS} commits of other writers in a row; the next run tries again")
    return expiry, {}


def _only_of(table: Table, expiry: Expiry) -> Sizes:
    """The files without a reference after the expiry."""
    if not expiry.snapshots:
        return {}
    gone = set(expiry.snapshots)
    metadata = table.metadata
    sizes = only_of(
        table,
        (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in gone),
        (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone),
    )
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in gone:
            sizes[one_spelling(statistics.statistics_path)] = statistics.file_size_in_bytes
    return sizes


def _write_down(session: Session, table: TableName, loaded: Table, files: Sizes) -> None:
    location = loaded.metadata_location
    with removed.catalog_database(session.settings) as connection:
        removed.record(connection, table, [*files.items(), (location, None)], NAME, location)


def _outcome(
    session: Session,
    table: TableName,
    rule: ExpirePolicy,
    before: Figures,
    expiry: Expiry,
    files: Sizes,
    purged: Purged,
) -> Outcome:
    if not (expiry or purged.files):
        return Outcome(NAME, table, "skipped", _why_not(before, rule), before=before, after=before)
    after = measure_all(session.catalog.load_table(table))
    done = [f"expired {expiry}, {len(files)} files out of use"] if expiry else []
    reason = "; ".join([*done, *([str(purged)] if purged.files else [])])
    size = sum(size or 0 for size in files.values())
    return Outcome(
        NAME, table, "done", reason, before=before, after=after, removed_files=len(files), removed_bytes=size
    )


def _why_not(before: Figures, rule: ExpirePolicy) -> str:
    return f"{before.snapshots} snapshots, none to expire after {rule.older_than_hours:g} h"
