"""The lake's digests of small tables, computed in this process: Spark needs seconds to plan what a thousand rows mean.

The spelling is that of `spelling.py`, written once more. Where this one were wrong, digests would differ, and Spark
compares the rows of differing ranges before anything is reported or repaired.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyiceberg.table import Table
from pyiceberg.types import FloatType, IcebergType, TimestamptzType

from ingestion.pipeline.repair.source_side import Digests
from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.schema.compared import BUCKET_DIGITS

SMALL_ROWS = 20_000
SMALL_BYTES = 8 * 2**20
SMALL_FILES = 100
READERS = 8
SmallLog = tuple[Table, Sequence[SpelledColumn], Sequence[SpelledColumn]]  # with its columns, and those of its key
_META = ("_op", "_epoch", "_commit_lsn", "_seq", "_unchanged")


def is_small(iceberg: Table) -> bool:
    """Whether a raw table's whole log is read faster here than Spark plans to read it."""
    snapshot = iceberg.current_snapshot()
    if snapshot is None:
        return True
    summary, limits = snapshot.summary, (SMALL_ROWS, SMALL_BYTES, SMALL_FILES)
    sizes = [summary[name] if summary else None for name in ("total-records", "total-files-size", "total-data-files")]
    return all(size is not None and int(size) <= limit for size, limit in zip(sizes, limits, strict=True))


def small_digests(logs: Sequence[SmallLog], below: tuple[int, int]) -> list[Digests | None]:
    """Of each log the digests of its rows below the point.

    None for a log that only Spark can tell about: one whose updates left values out, or that PyIceberg cannot read.
    """
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda log: _digests(log, below), logs))


def _digests(log: SmallLog, below: tuple[int, int]) -> Digests | None:
    iceberg, columns, key = log
    try:
        rows = _rows(iceberg, columns, below)
    except (ValueError, OverflowError, NotImplementedError):  # equality deletes; a date that Python does not have
        return None
    if any(row["_unchanged"] for row in rows):
        return None
    digests: Digests = {}
    for keyed, row in _live(rows, key).items():
        bucket = hashlib.md5(keyed.encode()).hexdigest()[:BUCKET_DIGITS]
        line = hashlib.md5(_cells(row, columns).encode()).digest()
        number = int.from_bytes(line[:8], "big", signed=True)
        count, total = digests.get(bucket, (0, 0))
        digests[bucket] = (count + 1, total + number)
    return digests


def _rows(iceberg: Table, columns: Sequence[SpelledColumn], below: tuple[int, int]) -> list[dict[str, Any]]:
    epoch, lsn = below
    earlier = f"_epoch < {epoch} OR (_epoch = {epoch} AND _commit_lsn < {lsn})"
    names = dict.fromkeys((*_META, *(column.lake_name for column in columns)))
    rows: list[dict[str, Any]] = iceberg.scan(row_filter=earlier, selected_fields=tuple(names)).to_arrow().to_pylist()
    return rows


def _live(rows: Sequence[dict[str, Any]], key: Sequence[SpelledColumn]) -> dict[str, dict[str, Any]]:
    """The newest version of each spelled key after the last truncate, deleted ones left out."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["_epoch"], row["_commit_lsn"], row["_seq"])):
        if row["_op"] == "t":
            newest.clear()
        else:
            newest[_cells(row, key)] = row
    return {keyed: row for keyed, row in newest.items() if row["_op"] != "d"}


def _cells(row: dict[str, Any], columns: Sequence[SpelledColumn]) -> str:
    return "".join(_spelled_cells(row, columns))


def _spelled_cells(row: dict[str, Any], columns: Sequence[SpelledColumn]) -> Iterator[str]:
    for column in columns:
        value = row[column.lake_name]
        if value is None:
            yield "n"
        else:
            text = spelled(value, column.lake_type)
            yield f"{len(text)}:{text}"


def spelled(value: Any, lake_type: IcebergType) -> str:
    """One value that is not null, as Postgres and Spark spell it for a comparison."""
    match value:
        case bool():
            return "t" if value else "f"
        case float():
            return _bits(value, "f" if isinstance(lake_type, FloatType) else "d")
        case Decimal():
            return format(value, "f")
        case datetime():
            text = value.replace(tzinfo=None).isoformat(" ")
            text = text.rstrip("0") if value.microsecond else text
            return f"{text}+00" if isinstance(lake_type, TimestamptzType) else text
        case date():
            return value.isoformat()
        case bytes():
            return f"\\x{value.hex()}"
    return str(value)


def _bits(value: float, size: str) -> str:
    if value != value:
        return "NaN"
    integer = "i" if size == "f" else "q"
    return str(struct.unpack(f">{integer}", struct.pack(f">{size}", value))[0])
