"""Rewrites the data files that contain a subject, and no others: copy-on-write, one file at a time, in memory.

It uses PyIceberg, not Spark's UPDATE, for four reasons. PyIceberg reads all rows of a file, including those under a
position delete, which Spark would skip and keep. It supports Iceberg's `time`, which Spark cannot read. It wrote the
raw files. And a subject is in few files, so there is nothing to distribute.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from erasure.rows import SEQUENCE, SubjectRows, repeated
from erasure.targets import Target
from lakehouse.catalog.open import ERASURE, load_table
from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_CONFLICTS = 20
SUMMARY = {ERASURE: "true"}


class SubjectData(Protocol):
    """A subject in one table: its rows, those with personal data, and the table without that data."""

    @property
    def target(self) -> Target: ...
    def filter(self) -> BooleanExpression: ...
    def rows(self, table: pa.Table) -> list[int]: ...
    def holding(self, table: pa.Table) -> list[int]: ...
    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table: ...
    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]: ...


def rewrite(catalog: SqlCatalog, subject: SubjectData) -> int:
    """Commits the table without the subject; returns how many files were replaced.

    After a conflicting commit (a load, a compaction) it starts again. Raises LakehouseError after too many.
    """
    for _ in range(MAX_CONFLICTS):
        table = load_table(catalog, *subject.target.identifier)
        if table is None or table.current_snapshot() is None:
            return 0
        tasks = list(table.scan(row_filter=subject.filter()).plan_files())
        held = [task for task in tasks if _holds(table, task, subject)]
        if not held:
            return 0
        repeats = _repeats(table, subject)
        held = held if not repeats else tasks  # a repeated row may be in a file without personal data
        try:
            _replace(table, held, subject, repeats)
        except (CommitFailedException, ValidationException):
            continue
        return len(held)
    raise LakehouseError(f"{subject.target}: {MAX_CONFLICTS} commits of other writers in a row; run the erasure again")


def _holds(table: Table, task: FileScanTask, subject: SubjectData) -> bool:
    """Whether the file contains personal data of the subject, deleted rows included."""
    return bool(subject.holding(_read(table, FileScanTask(task.file))))


def _replace(table: Table, held: list[FileScanTask], subject: SubjectData, repeats: set[tuple[Any, str]]) -> None:
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=SUMMARY).overwrite() as new,
    ):
        for task in held:
            rows = subject.after(_read(table, task), repeats)
            new.delete_data_file(task.file)
            if rows.num_rows:
                for file in data_files(table.metadata, rows, table.io):
                    new.append_data_file(file)


def _read(table: Table, task: FileScanTask) -> pa.Table:
    return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])


def _repeats(table: Table, subject: SubjectData) -> set[tuple[Any, str]]:
    """Rows of a satellite that, once emptied, equal the version before them."""
    if (
        not isinstance(subject, SubjectRows)
        or subject.target.treatment != "collapse"
        or subject.target.hashdiff is None
    ):
        return set()
    rows = table.scan(row_filter=subject.filter()).to_arrow()
    rows = subject.emptied(rows.take(pa.array(subject.rows(rows), pa.int64())))
    names = (subject.target.key[0], SEQUENCE, subject.target.hashdiff)
    return repeated(list(zip(*(rows.column(name).to_pylist() for name in names), strict=True)))
