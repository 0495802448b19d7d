"""The health of a table in numbers, from which a plan decides."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Health:
    """A table's state in numbers; sizes in bytes. Fields of a part that the policy omits are 0."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    rewritable_files: int = 0  # small files in partitions that have enough of them
    rewritable_bytes: int = 0  # of those, and of partitions to sort as a whole
    rewritable_partitions: int = 0
    reserved_column: str | None = None  # for which Spark cannot rewrite worthwhile data
    delete_files: int = 0
    due_delete_files: int = 0  # all of them, if there are enough to merge or apply
    snapshots: int = 0
    expirable_snapshots: int = 0
    manifests: int = 0
    needed_manifests: int = 0  # after a rewrite; the current number if a rewrite is not worthwhile
    metadata_bytes: int = 0
    metadata_files: int = 0  # previous ones, in the table's log
    properties_to_set: int = 0  # to limit this log as declared
    objects: int = 0
    object_bytes: int = 0
    orphans: int = 0  # including removed files that are due for deletion
    orphan_bytes: int = 0
    kept_aside: int = 0  # removed files that can still be restored
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
