"""How a table is, in numbers: what a plan decides from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Health:
    """A table's state in numbers; sizes in bytes. A part that the policy leaves out is 0, as nothing is to be done."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    rewritable_files: int = 0  # small files in partitions that have enough of them
    rewritable_bytes: int = 0  # of those, and of partitions that are to be sorted as a whole
    rewritable_partitions: int = 0
    reserved_column: str | None = None  # keeps Spark from rewriting data that is worth it
    delete_files: int = 0
    due_delete_files: int = 0  # all of them, where there are enough to be dealt with
    snapshots: int = 0
    expirable_snapshots: int = 0
    manifests: int = 0
    needed_manifests: int = 0  # so many would do; as many as there are where a rewrite is not worth it
    metadata_bytes: int = 0
    metadata_files: int = 0  # earlier ones that the table's log names
    properties_to_set: int = 0  # that keep this log as long as declared
    objects: int = 0
    object_bytes: int = 0
    orphans: int = 0  # and what was removed before and is due to be deleted
    orphan_bytes: int = 0
    kept_aside: int = 0  # removed before, restorable for a while yet
    kept_aside_bytes: int = 0
    temporary: int = 0  # relations and objects that dbt left
    temporary_bytes: int = 0
    unanalyzed_share: float = 0.0  # rows changed since the statistics, of all; 1 without any
    statistics_age_hours: float | None = None

    @property
    def small_share(self) -> float:
        """Small files among all data files, from 0 to 1."""
        return self.small_files / self.files if self.files else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"small_share": round(self.small_share, 4)}
