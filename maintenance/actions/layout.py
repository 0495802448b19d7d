"""What is worth rewriting in a table, decided from its metadata alone.

Without a declared order, the files off the target size are counted per partition, by Spark's limits.

With an order, files that a compaction has sorted are known by their sequence numbers: a rewritten file keeps the data
sequence number, which is below that of the commit that added it; of a loaded file both are equal. A table property
records the order and the sequence number since which it applies, so that after another declaration all files count as
unsorted. Small unsorted files are sorted together into a sorted run. A partition is sorted as a whole only when it has
many runs, or a large share in large unsorted files. Thus each row is rewritten about log(partition size) times, and a
sorted partition without new data is never rewritten. (A partition without a condition, such as a bucket, only gets
runs.)

Today's partition is included: it has the most readers, and one run rewrites at most about one target size of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from lakehouse.catalog.open import total
from lakehouse.catalog.writing.growing import grows, may_grow
from lakehouse.declarations import RESERVED_BY_ICEBERG
from lakehouse.declarations.policies import CompactPolicy
from maintenance.actions.partitions import condition
from maintenance.inventory.figures import live_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table

MEGABYTE = 1024 * 1024
SMALL, LARGE = 0.75, 1.8  # of the target size: Spark does not rewrite files in between
MANIFEST_BYTES = 8 * MEGABYTE  # Iceberg's default target size of a manifest
GROUP_BYTES = 100 * 1024 * MEGABYTE  # Iceberg's default limit of a file group, which is sorted in one piece
UNSORTED_SHARE = 0.25  # a partition with more than this in large unsorted files is sorted as a whole
DELETED_SHARE = 0.05  # from this share of rows on, deletes are applied instead of merging their files
CLUSTERED = "lakehouse.clustered"  # property: `<order>@<sequence number>`


@dataclass
class Partition:
    """The data files of one partition; `off` are the sizes of files to merge, `runs` the commits of its sorted runs.

    `where` is its SQL condition, see `partitions.condition`.
    """

    where: str | None
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    off: list[int] = field(default_factory=list)
    unsorted_bytes: int = 0  # in large files
    runs: set[int] = field(default_factory=set)

    def is_to_be_sorted(self, rule: CompactPolicy) -> bool:
        """Whether the whole partition is sorted."""
        if not order_of(rule) or self.where is None:
            return False
        much = self.unsorted_bytes > UNSORTED_SHARE * self.bytes
        return much or len(self.runs) >= rule.min_input_files + self.bytes // GROUP_BYTES

    def is_to_be_merged(self, rule: CompactPolicy) -> bool:
        """Whether its small files are merged."""
        target = rule.target_file_size_mb * MEGABYTE
        return len(self.off) >= rule.min_input_files or (not order_of(rule) and sum(self.off) > LARGE * target)


@dataclass(frozen=True)
class Plan:
    """What is worth rewriting: whole partitions, their small files, deletes, manifests.

    `small_files` counts all files below 75 % of the target size. `reserved` is a column for which Spark cannot read the
    table, if data would be rewritten.
    """

    merged: tuple[Partition, ...] = ()
    sorted: tuple[Partition, ...] = ()
    delete_files: Literal["leave", "merge", "apply"] = "leave"
    manifests: bool = False
    small_files: int = 0
    small_bytes: int = 0
    reserved: str | None = None

    @property
    def why_refused(self) -> str | None:
        """Why worthwhile data is not rewritten."""
        return self.reserved and not_compacted(self.reserved)

    @property
    def files(self) -> int:
        """The number of small files to merge."""
        return sum(len(partition.off) for partition in (*self.merged, *self.sorted))

    @property
    def bytes(self) -> int:
        """The bytes to read, of small files and of partitions to sort."""
        return sum(sum(p.off) for p in self.merged) + sum(p.bytes for p in self.sorted)

    @property
    def partitions(self) -> int:
        """The number of partitions to rewrite."""
        return len(self.merged) + len(self.sorted)

    @property
    def deletes(self) -> bool:
        """Whether delete files are merged or applied."""
        return self.delete_files != "leave"

    @property
    def data(self) -> bool:
        """Whether data or delete files are to be rewritten."""
        return self.partitions > 0 or self.deletes


def plan_for(table: Table, rule: CompactPolicy) -> Plan:
    """Decides what to rewrite; reads the table's manifests."""
    manifests = live_manifests(table)
    partitions = _partitions(table, manifests, rule)
    plan = Plan(
        merged=tuple(p for p in partitions if not p.is_to_be_sorted(rule) and p.is_to_be_merged(rule)),
        sorted=tuple(p for p in partitions if p.is_to_be_sorted(rule)),
        delete_files=_delete_files(table, rule),
        manifests=manifests_worth_rewriting(manifests, rule) and not grows(table),  # its writers merge them
        small_files=sum(partition.small_files for partition in partitions),
        small_bytes=sum(partition.small_bytes for partition in partitions),
    )
    if plan.data and (reserved := reserved_column(table)) is not None:
        return replace(plan, merged=(), sorted=(), delete_files="leave", reserved=reserved)
    return plan


def reserved_column(table: Table) -> str | None:
    """A column with a name that Iceberg reserves: Spark cannot read such a table."""
    return next((field.name for field in table.schema().fields if field.name in RESERVED_BY_ICEBERG), None)


def not_compacted(column: str) -> str:
    """The reason and the remedy for a table with a reserved column."""
    return (
        f"not compacted: column {column!r} has a name that Iceberg reserves, so Spark cannot read the table: "
        "declare meta.raw.alias for it, or rename it in its model"
    )


def order_of(rule: CompactPolicy) -> str:
    """The declared order as the property has it; empty if there is none."""
    if rule.zorder_by:
        return f"zorder:{','.join(rule.zorder_by)}"
    return f"sort:{','.join(rule.sort_by)}" if rule.sort_by else ""


def ordered_since(table: Table, rule: CompactPolicy) -> int | None:
    """The sequence number since which compactions keep the declared order; None if they do not yet."""
    order, _, since = table.properties.get(CLUSTERED, "").rpartition("@")
    return int(since) if order and order == order_of(rule) else None


def manifests_worth_rewriting(manifests: list[ManifestFile], rule: CompactPolicy) -> bool:
    """Whether there are at least `min_input_files` manifests, and more than twice as many as their size requires."""
    needed = -(-sum(manifest.manifest_length for manifest in manifests) // MANIFEST_BYTES)
    return len(manifests) >= max(rule.min_input_files, 2 * needed + 1)


def _partitions(table: Table, manifests: list[ManifestFile], rule: CompactPolicy) -> list[Partition]:
    target, since, ordered = rule.target_file_size_mb * MEGABYTE, ordered_since(table, rule), bool(order_of(rule))
    found: dict[object, Partition] = {}
    now = datetime.now(UTC)
    for spec_id, entry in _entries(table, manifests):
        if may_grow(table, entry.data_file, now):
            continue
        key = entry.data_file.partition
        if (partition := found.get((spec_id, key))) is None:
            partition = found[spec_id, key] = Partition(condition(table, spec_id, key))
        size = entry.data_file.file_size_in_bytes
        partition.bytes += size
        if size < SMALL * target:
            partition.small_files += 1
            partition.small_bytes += size
        run = _run(entry, since)
        if run is not None:
            partition.runs.add(run)
        elif not SMALL * target <= size <= LARGE * target:
            partition.off.append(size)
        elif ordered:
            partition.unsorted_bytes += size
    return list(found.values())


def _run(entry: ManifestEntry, since: int | None) -> int | None:
    """The commit that sorted a file; None if it is unsorted."""
    data, commit = entry.sequence_number, entry.file_sequence_number
    if since is None or data is None or commit is None or not max(data, since) < commit:
        return None
    return commit


def _entries(table: Table, manifests: list[ManifestFile]) -> Iterator[tuple[int, ManifestEntry]]:
    from pyiceberg.manifest import ManifestContent

    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                yield manifest.partition_spec_id, entry


def _delete_files(table: Table, rule: CompactPolicy) -> Literal["leave", "merge", "apply"]:
    snapshot = table.current_snapshot()
    if total(snapshot, "total-delete-files") < rule.min_input_files:
        return "leave"
    rows, deleted = total(snapshot, "total-records"), total(snapshot, "total-position-deletes")
    if total(snapshot, "total-equality-deletes") or deleted >= DELETED_SHARE * rows:
        return "apply"
    return "merge"
