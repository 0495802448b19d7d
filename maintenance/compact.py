"""Compaction: rewrites small data files, files with deletes, and small manifests.

Spark's procedures do it; whether they are called at all is decided here from the table's metadata by the same
measures they use (files outside 75–180 % of the target size, counted per partition), so that a table with nothing
to do costs milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.policies import CompactPolicy, MaintenancePolicy
from lakehouse.sql import spark_literal, spark_relation
from maintenance.action import action
from maintenance.figures import live_manifests, measure
from maintenance.outcome import Figures, Outcome, TableName
from maintenance.session import DATA, Session

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

NAME = "compact"
MEGABYTE = 1024 * 1024
SMALL, LARGE = 0.75, 1.8
MANIFEST_BYTES = 8 * MEGABYTE  # Iceberg's default target size of a manifest


@dataclass(frozen=True)
class Plan:
    """What is worth rewriting: data files (in so many partitions), deletes, manifests."""

    files: int
    partitions: int
    deletes: bool
    manifests: bool

    @property
    def data(self) -> bool:
        """Whether data files are to be rewritten."""
        return self.files > 0 or self.deletes


@action(NAME)
def compact(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Rewrites what is worth it by the policy; a reader sees the same rows before and after."""
    rule, loaded = policy.compact, session.load(table)
    if rule is None:
        return Outcome(NAME, table, "skipped", "the policy has no compact part")
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before, plan = measure(loaded), plan_for(loaded, rule)
    if not (plan.data or plan.manifests):
        return Outcome(NAME, table, "skipped", _why_not(before, rule), before=before, after=before)
    if session.dry_run:
        return Outcome(NAME, table, "planned", _what(plan, before), before=before)
    if plan.data:
        _rewrite_data(session, table, rule, plan)
        loaded = session.load(table) or loaded
    if manifests_worth_rewriting(live_manifests(loaded), rule):
        _rewrite_manifests(session, table, before)
    after = measure(session.load(table) or loaded)
    return Outcome(NAME, table, "done", _what(plan, before), before=before, after=after)


def plan_for(table: Table, rule: CompactPolicy) -> Plan:
    """Decides from the metadata what to rewrite."""
    figures, manifests = measure(table), live_manifests(table)
    groups = _groups_to_rewrite(table, manifests, rule) if (figures.files or 0) >= rule.min_input_files else []
    return Plan(
        files=sum(map(len, groups)),
        partitions=len(groups),
        deletes=(figures.delete_files or 0) >= rule.min_input_files,
        manifests=manifests_worth_rewriting(manifests, rule),
    )


def manifests_worth_rewriting(manifests: list[ManifestFile], rule: CompactPolicy) -> bool:
    """Whether there are at least `min_input_files` manifests and more than twice as many as their size asks for."""
    needed = -(-sum(manifest.manifest_length for manifest in manifests) // MANIFEST_BYTES)
    return len(manifests) >= max(rule.min_input_files, 2 * needed + 1)


def _groups_to_rewrite(table: Table, manifests: list[ManifestFile], rule: CompactPolicy) -> list[list[int]]:
    """Sizes of the files to rewrite, per partition that has enough of them."""
    from pyiceberg.manifest import ManifestContent

    target = rule.target_file_size_mb * MEGABYTE
    sizes: dict[object, list[int]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                size = entry.data_file.file_size_in_bytes
                if not SMALL * target <= size <= LARGE * target:
                    sizes[manifest.partition_spec_id, entry.data_file.partition].append(size)
    return [group for group in sizes.values() if len(group) >= rule.min_input_files or sum(group) > LARGE * target]


def _rewrite_data(session: Session, table: TableName, rule: CompactPolicy, plan: Plan) -> None:
    options = {
        "target-file-size-bytes": rule.target_file_size_mb * MEGABYTE,
        "min-input-files": rule.min_input_files,
    }
    if plan.deletes:
        options["delete-file-threshold"] = 1
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    dangling = "true" if plan.deletes else "false"
    session.call(
        "rewrite_data_files",
        f"table => {_argument(table)}, options => map({pairs}, 'remove-dangling-deletes', '{dangling}')",
        files=DATA,
    )


def _rewrite_manifests(session: Session, table: TableName, before: Figures) -> None:
    session.call("rewrite_manifests", f"table => {_argument(table)}, use_caching => false", files=before.files or 0)


def _argument(table: TableName) -> str:
    return spark_literal(spark_relation(*table))


def _what(plan: Plan, before: Figures) -> str:
    parts = []
    if plan.files:
        parts.append(f"{plan.files} files in {plan.partitions} partition{'s' * (plan.partitions != 1)}")
    if plan.deletes:
        parts.append(f"{before.delete_files} delete files")
    if plan.manifests:
        parts.append(f"{before.manifests} manifests")
    return "rewrites " + ", ".join(parts)


def _why_not(before: Figures, rule: CompactPolicy) -> str:
    if not before.files:
        return "no data files"
    if before.files < rule.min_input_files:
        return f"{before.files} files, below min_input_files {rule.min_input_files}"
    return f"{before.files} files, no partition with {rule.min_input_files} of them off the target size"
