"""Rewrites the data files that hold a subject, and no others: copy on write, file by file.

PyIceberg rather than Spark's UPDATE, for four reasons: it goes by what a file holds, not by what a query returns (a
row under a position delete is not there for Spark, and its bytes stay); it reads and writes every type of the lake,
Iceberg's `time` too, which Spark cannot; it is the writer that made the raw files; and a subject stands in few files,
so there is no work to spread. A file is held in memory while it is rewritten.
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

from erasure.places import Place
from erasure.rows import SEQUENCE, Mine, repeated
from lakehouse.catalog.open import load_table
from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_CONFLICTS = 20
SUMMARY = {"lakehouse.erasure": "true"}


class InTable(Protocol):
    """A subject in one table: which rows are its, which of them tell of it, and what becomes of the table."""

    @property
    def place(self) -> Place: ...
    def filter(self) -> BooleanExpression: ...
    def rows(self, table: pa.Table) -> list[int]: ...
    def holding(self, table: pa.Table) -> list[int]: ...
    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table: ...
    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]: ...


def rewrite(catalog: SqlCatalog, mine: InTable) -> int:
    """Commits the table without the subject; returns how many files were replaced.

    A conflicting commit (a load, a compaction) is waited out by beginning again. Raises LakehouseError after many.
    """
    for _ in range(MAX_CONFLICTS):
        table = load_table(catalog, *mine.place.identifier)
        if table is None or table.current_snapshot() is None:
            return 0
        tasks = list(table.scan(row_filter=mine.filter()).plan_files())
        held = [task for task in tasks if _holds(table, task, mine)]
        if not held:
            return 0
        repeats = _repeats(table, mine)
        held = held if not repeats else tasks  # a row that repeats another may stand in a file that holds nothing
        try:
            _replace(table, held, mine, repeats)
        except (CommitFailedException, ValidationException):
            continue
        return len(held)
    raise LakehouseError(f"{mine.place}: {MAX_CONFLICTS} commits of other writers in a row; run the erasure again")


def _holds(table: Table, task: FileScanTask, mine: InTable) -> bool:
    """Whether the file's bytes hold the subject, deleted rows included."""
    return bool(mine.holding(_read(table, FileScanTask(task.file))))


def _replace(table: Table, held: list[FileScanTask], mine: InTable, repeats: set[tuple[Any, str]]) -> None:
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=SUMMARY).overwrite() as new,
    ):
        for task in held:
            rows = mine.after(_read(table, task), repeats)
            new.delete_data_file(task.file)
            if rows.num_rows:
                for file in data_files(table.metadata, rows, table.io):
                    new.append_data_file(file)


def _read(table: Table, task: FileScanTask) -> pa.Table:
    return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])


def _repeats(table: Table, mine: InTable) -> set[tuple[Any, str]]:
    """Rows of a satellite that repeat the one before them once both say nothing, by all of the subject's rows."""
    if not isinstance(mine, Mine) or mine.place.treatment != "collapse" or mine.place.hashdiff is None:
        return set()
    rows = table.scan(row_filter=mine.filter()).to_arrow()
    rows = mine.emptied(rows.take(pa.array(mine.rows(rows), pa.int64())))
    names = (mine.place.key[0], SEQUENCE, mine.place.hashdiff)
    return repeated(list(zip(*(rows.column(name).to_pylist() for name in names), strict=True)))
