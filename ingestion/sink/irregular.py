"""Which tables get from a publish what the short text of a fresh view cannot follow.

That text takes the newest version that raw has of a key for its row. So it can follow versions that carry all values
and belong to the publish's own cut, and neither a truncate, nor an update that left values out, nor rows that no cut
has yet, nor rows that were read, as by a repair, nor columns that were altered, nor what somebody else has committed
since the newest tag was moved. The metrics of the files tell, and files without metrics count as irregular.

A table that comes back into the cuts is irregular too, with rows or without: its long text stays before the cut that
left it out, so from there on the short one would show more.
"""

from collections.abc import Iterable, Mapping

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, LongType

from ingestion.sink.publication import Cut, TableAppend
from lakehouse.catalog.open import ROWS
from lakehouse.catalog.views.regular import newest_tag
from lakehouse.catalog.views.tags import shows_all

TRUNCATE, READ = "t", "r"  # a repair reads rows at a cut that readers have seen


def irregular(
    source: str, appends: Iterable[TableAppend], cut: Cut | None, tables: Mapping[tuple[str, str], TableMetadata]
) -> tuple[str, ...]:
    """The tables of a source whose rows in this publish are not all regular; `cut` is the publish's."""
    raw = [append for append in appends if append.identifier[0] == f"raw_{source}"]
    return tuple(append.identifier[1] for append in raw if not _is_regular(append, cut, tables[append.identifier]))


def _is_regular(append: TableAppend, cut: Cut | None, metadata: TableMetadata) -> bool:
    if append.joins or not append.only_adds or not _goes_on(metadata):
        return False
    if not append.data_files:
        return True
    counted = {key.removeprefix(ROWS) for key in append.summary if key.startswith(ROWS)}
    if cut is None or append.identifier[1] not in cut.tables or not counted or {TRUNCATE, READ} & counted:
        return False
    schema, below = metadata.schema(), cut.position.commit_bound
    return all(_carries_all(file, schema) and _is_below(file, schema, below) for file in append.data_files)


def _goes_on(metadata: TableMetadata) -> bool:
    """Whether the table has the rows and columns that it had when the newest tag was moved."""
    tag = newest_tag(metadata)
    return tag is None or shows_all(metadata, tag[1])


def _carries_all(file: DataFile, schema: Schema) -> bool:
    """Whether no version names values that it left out."""
    left_out = schema.find_field("_unchanged").field_type
    assert isinstance(left_out, ListType)
    nulls, values = (file.null_value_counts or {}), (file.value_counts or {})
    return left_out.element_id in values and nulls.get(left_out.element_id) == values[left_out.element_id]


def _is_below(file: DataFile, schema: Schema, bound: int) -> bool:
    newest = (file.upper_bounds or {}).get(schema.find_field("_commit_lsn").field_id)
    return newest is not None and int(from_bytes(LongType(), newest)) < bound
