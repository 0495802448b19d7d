"""Compaction: rewrites small data files, sorts them as declared, applies or merges deletes, merges manifests.

`layout` decides what to rewrite from metadata, so a table that needs nothing costs milliseconds.

The engine is Spark: its procedures sort more than fits into memory, run beside other writers (a concurrent append is no
conflict), and commit in groups, so that a killed run keeps its progress. Spark cannot read a table with a column name
that Iceberg reserves. Such a table is not compacted; declarations, and ingestion for a new column, require another
name.

If another writer removes a file that is being rewritten, or commits first too often, that is a conflict: committed
groups stay, the rest is planned again after a pause, a few times. Spark checks for conflicts in all snapshots since the
call started. Therefore calls are short, and ingestion keeps these snapshots meanwhile
(`lakehouse.catalog.writing.rewriting`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakehouse.catalog import row_groups
from lakehouse.catalog.open import DATA_OPERATIONS, total
from lakehouse.catalog.views.tags import after_rewrites
from lakehouse.catalog.writing.commit import commit_on, until_committed
from lakehouse.catalog.writing.growing import settled
from lakehouse.declarations.policies import CompactPolicy, MaintenancePolicy
from lakehouse.text.sql import spark_ident, spark_literal, spark_relation
from maintenance.actions.action import action
from maintenance.actions.holding import hold, let_go
from maintenance.actions.layout import CLUSTERED, MEGABYTE, Partition, Plan, order_of, ordered_since, plan_for
from maintenance.actions.need import SCAN_THROUGHPUT, Need, Rate, Work
from maintenance.inventory.figures import measure
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import Figures, Outcome, TableName, one_line
from maintenance.inventory.session import DATA, Session

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

NAME = "compact"
MAX_TRIES, FIRST_PAUSE_SECONDS = 4, 0.5
MAX_COMMITS = 10  # per call of the procedure
EXACT_COMMITS = 2  # up to here failed commits are counted; beyond, Spark's count of planned commits is wrong
COMMIT_BYTES = 1024 * MEGABYTE  # per commit: each writes the table's metadata and manifests again
GROUP_FILES = 16  # files of the target size per file group
PARTITIONS_AT_ONCE, BYTES_AT_ONCE = 100, 2048 * MEGABYTE  # per call
CONFLICTS = (
    "CommitFailedException", "ValidationException", "CommitStateUnknownException", "of other writers in a row",
    "rewrite commits failed",
)  # fmt: skip
# A reader's cost in seconds to open a file, to apply a delete file, to plan over a manifest.
COST_PER_FILE, COST_PER_DELETE, COST_PER_MANIFEST = 0.005, 0.02, 0.005
RATE = Rate(2.0, 30e6, 0.005)


@action(NAME)
def compact(session: Session, table: TableName, policy: MaintenancePolicy) -> Outcome:
    """Rewrites what the policy makes worthwhile; readers see the same rows before and after."""
    rule, loaded = policy.compact, session.load(table)
    assert rule is not None
    if loaded is None:
        return Outcome(NAME, table, "skipped", "not in the lake yet")
    before, plan = measure(loaded), plan_for(loaded, rule)
    if not (plan.data or plan.manifests):
        return Outcome(NAME, table, "skipped", plan.why_refused or _why_not(before, rule), before=before, after=before)
    if session.dry_run:
        return Outcome(NAME, table, "planned", _what(plan, before, rule), before=before)
    conflicts = _until_committed(session, table, rule)
    until_committed(session.catalog, table, lambda found: after_rewrites(found.metadata))
    now = session.catalog.load_table(table)
    read, written = _moved(loaded, now)
    told = [_what(plan, before, rule), f"{conflicts} conflicts with other writers" * bool(conflicts), plan.why_refused]
    reason = "; ".join(text for text in told if text)
    return Outcome(
        NAME, table, "done", reason, before=before, after=measure(now), read_bytes=read, written_bytes=written
    )


def inspect(session: Session, name: TableName, table: Table | None, policy: MaintenancePolicy) -> dict[str, Any]:
    """Data files, delete files and manifests to rewrite."""
    if table is None or (rule := policy.compact) is None:
        return {}
    plan = plan_for(table, rule)
    return {
        "small_files": plan.small_files,
        "small_bytes": plan.small_bytes,
        "rewritable_files": plan.files,
        "rewritable_bytes": plan.bytes,
        "rewritable_partitions": plan.partitions,
        "reserved_column": plan.reserved,
        "due_delete_files": total(table.current_snapshot(), "total-delete-files") if plan.deletes else 0,
        **({"needed_manifests": 1} if plan.manifests else {}),
    }


def need(health: Health, policy: MaintenancePolicy) -> Need | None:
    """The gain is fewer files to open and deletes to apply; of sorting, fewer bytes to read."""
    rule = policy.compact
    if rule is None:
        return None
    deletes, manifests = health.due_delete_files, health.manifests - health.needed_manifests
    parts = []
    if health.rewritable_files:
        parts.append(f"{health.rewritable_files} of {health.files} files below {rule.target_file_size_mb} MB")
    elif health.rewritable_partitions:
        parts.append(f"{health.rewritable_partitions} partitions out of order")
    if deletes:
        parts.append(f"{deletes} delete files")
    if manifests:
        parts.append(f"{health.manifests} manifests")
    if not parts:
        return None
    data = health.bytes if deletes else health.rewritable_bytes
    fewer = max(0, health.rewritable_files - -(-health.rewritable_bytes // (rule.target_file_size_mb * MEGABYTE)))
    gain = fewer * COST_PER_FILE + deletes * COST_PER_DELETE + manifests * COST_PER_MANIFEST
    if health.rewritable_partitions and not health.rewritable_files:
        gain += health.rewritable_bytes / SCAN_THROUGHPUT
    return Need(NAME, ", ".join(parts), Work(2 * data, health.rewritable_files + deletes), gain)


def _until_committed(session: Session, table: TableName, rule: CompactPolicy) -> int:
    """Rewrites, and again after a conflict; returns the number of conflicts, raises RuntimeError after too many."""
    last = "files could not be replaced (Spark's log says why)"
    for conflicts in range(MAX_TRIES):
        time.sleep(FIRST_PAUSE_SECONDS * (2**conflicts - 1))
        try:
            failed = _rewrite(session, table, rule)
        except Exception as error:
            if not any(name in str(error) for name in CONFLICTS):
                raise
            failed, last = 1, one_line(error)
        if not failed:
            return conflicts
    raise RuntimeError(f"{MAX_TRIES} tries, the last one: {last}; committed groups stay, the next run continues")


def _rewrite(session: Session, table: TableName, rule: CompactPolicy) -> int:
    """One try; returns how many files could not be replaced because of other writers."""
    failed, loaded = 0, session.catalog.load_table(table)
    try:
        failed = _rewrite_files(session, table, rule, loaded)
    finally:
        let_go(session, table)
    if plan_for(loaded := session.catalog.load_table(table), rule).manifests:
        files = measure(loaded).files or 0
        session.call("rewrite_manifests", f"table => {_argument(table)}, use_caching => false", files=files)
    return failed


def _rewrite_files(session: Session, table: TableName, rule: CompactPolicy, loaded: Table) -> int:
    """Rewrites data and delete files; returns how many could not be replaced because of other writers."""
    rest = settled(loaded, datetime.now(UTC))
    failed, plan = 0, plan_for(loaded, rule)
    if plan.partitions and order_of(rule) and ordered_since(loaded, rule) is None:
        loaded = _begin_order(session, loaded, rule)
        plan = plan_for(loaded, rule)
    if plan.data and not table.namespace.startswith("raw_"):  # whose other writer has row groups of its own
        until_committed(session.catalog, table, _fitting_row_groups)
    for part in _portions(plan.sorted, _whole):
        size = sum(map(_whole, part))
        failed += _rewrite_data(session, table, rule, _both(_condition(part), rest), size, {"rewrite-all": "true"})
    if plan.delete_files == "apply":
        size = measure(loaded).bytes or 0
        failed += _rewrite_data(session, table, rule, rest, size, {"delete-file-threshold": "1"})
    else:
        for part in _portions(plan.merged, _small):
            size = sum(map(_small, part))
            failed += _rewrite_data(session, table, rule, _both(_condition(part), rest), size, {})
    if plan.delete_files == "merge":
        hold(session, table, 0)
        session.call("rewrite_position_delete_files", f"table => {_argument(table)}", files=DATA)
    return failed


def _moved(before: Table, now: Table) -> tuple[int, int]:
    """Bytes of the replaced files, and of the files that replaced them."""
    known = {snapshot.snapshot_id for snapshot in before.metadata.snapshots}
    made = [snapshot for snapshot in now.metadata.snapshots if snapshot.snapshot_id not in known]
    mine = [s for s in made if s.summary is not None and s.summary.operation.value not in DATA_OPERATIONS]
    return sum(total(s, "removed-files-size") for s in mine), sum(total(s, "added-files-size") for s in mine)


def _fitting_row_groups(table: Table) -> tuple[TableUpdate, ...]:
    """What has row groups of a million rows or so in the files that Spark writes from now on."""
    from pyiceberg.table.update import SetPropertiesUpdate

    newest = table.current_snapshot()
    fitting = row_groups.fitting(table.properties, total(newest, "total-files-size"), total(newest, "total-records"))
    return (SetPropertiesUpdate(updates=fitting),) if fitting else ()


def _begin_order(session: Session, table: Table, rule: CompactPolicy) -> Table:
    """Sets the property of the sort order; all current files count as unsorted."""
    from pyiceberg.table.update import SetPropertiesUpdate

    since = max((snapshot.sequence_number or 0 for snapshot in table.metadata.snapshots), default=0)
    value = f"{order_of(rule)}@{since}"
    return commit_on(session.catalog, table, (SetPropertiesUpdate(updates={CLUSTERED: value}),))


def _portions(partitions: Sequence[Partition], size: Callable[[Partition], int]) -> Iterator[Sequence[Partition]]:
    """The partitions in portions; in one portion if a partition has no condition."""
    portion: list[Partition] = []
    named = all(partition.where for partition in partitions)
    for partition in partitions:
        more = sum(map(size, portion)) + size(partition) > BYTES_AT_ONCE or len(portion) == PARTITIONS_AT_ONCE
        if portion and named and more:
            yield portion
            portion = []
        portion.append(partition)
    if portion:
        yield portion


def _whole(partition: Partition) -> int:
    return partition.bytes


def _small(partition: Partition) -> int:
    return sum(partition.off)


def _condition(partitions: Sequence[Partition]) -> str:
    """The condition of these partitions; empty for the whole table.

    If a partition has no condition, Spark plans over the whole table and skips partitions with too few small files.
    """
    named = all(partition.where for partition in partitions)
    return " OR ".join(f"({partition.where})" for partition in partitions) if named else ""


def _both(condition: str, rest: str) -> str:
    return f"({condition}) AND {rest}" if condition and rest else condition or rest


def _rewrite_data(
    session: Session, table: TableName, rule: CompactPolicy, where: str, size: int, more: dict[str, str]
) -> int:
    """Rewrites about `size` bytes; returns how many files could not be replaced because of other writers."""
    hold(session, table, size)
    target, commits = rule.target_file_size_mb * MEGABYTE, min(MAX_COMMITS, -(-size // COMMIT_BYTES) or 1)
    options = {
        "target-file-size-bytes": str(target),
        "min-input-files": str(rule.min_input_files),
        "partial-progress.enabled": "true",
        "partial-progress.max-commits": str(commits),
        "remove-dangling-deletes": str("delete-file-threshold" in more).lower(),
        **more,
    }
    if commits <= EXACT_COMMITS:
        options["partial-progress.max-failed-commits"] = "0"
    if not order_of(rule):
        options["max-file-group-size-bytes"] = str(GROUP_FILES * target)
    pairs = ", ".join(f"{spark_literal(text)}" for pair in options.items() for text in pair)
    arguments = [f"table => {_argument(table)}", f"options => map({pairs})", *_order_arguments(rule)]
    if where:
        arguments.append(f"where => {spark_literal(where)}")
    rows: list[Any] = session.call("rewrite_data_files", ", ".join(arguments), files=DATA)
    return sum(row.failed_data_files_count for row in rows)


def _order_arguments(rule: CompactPolicy) -> list[str]:
    if not order_of(rule):
        return []
    if rule.zorder_by:
        order = f"zorder({', '.join(map(spark_ident, rule.zorder_by))})"
    else:
        order = ", ".join(f"{spark_ident(name)} ASC NULLS LAST" for name in rule.sort_by)
    return ["strategy => 'sort'", f"sort_order => {spark_literal(order)}"]


def _argument(table: TableName) -> str:
    return spark_literal(spark_relation(*table))


def _what(plan: Plan, before: Figures, rule: CompactPolicy) -> str:
    parts = []
    if plan.partitions:
        order = f", {order_of(rule).replace(':', ' by ').replace(',', ', ')}" if order_of(rule) else ""
        anew = f", {len(plan.sorted)} of them whole" if plan.sorted else ""
        parts.append(f"{plan.files} files in {plan.partitions} partition{'s' * (plan.partitions != 1)}{anew}{order}")
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
