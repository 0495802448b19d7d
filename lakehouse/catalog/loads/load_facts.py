"""What a load asks before it writes, answered from the rows that were added. Pure: the macros named here ask the same.

Moments and positions are text, in the form in which Trino writes them, and sort like what they stand for.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]
# Property of a raw table: the moment at which rows last landed that others had come after. A load past it looks whether
# they change what it has loaded (parsed_table.sql).
LANDED_LATE = "lakehouse.landed-late-at"
LEFT_OUT = "lakehouse.left-out"  # property of a parsed table: columns that some of its loads left out (left_out.sql)
RAW_COLUMNS = ("_op", "_epoch", "_commit_lsn", "_ingested_at", "_unchanged", "_old_key")
PARSED_COLUMNS = ("_loaded_at", "_epoch", "_commit_lsn", "_seq")


def moment(value: datetime) -> str:
    """As Trino casts a timestamp(6) with time zone."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"


def position(row: Row) -> str:
    """As the macro `source_position` builds it."""
    return f"{row['_epoch']:010d}.{row['_commit_lsn']:019d}.{row['_seq']:019d}"


def raw_facts(added: Sequence[Row], newest: str, epoch: int, cut_lsn: int) -> list[Any] | None:
    """The answer to the macro `raw_facts` from the raw rows that parsed lacks; None where Trino has to be asked.

    That is the case for truncates, for rows beyond the cut, and for rows published before the newest one in parsed, or
    with it: a load may have read them that began after these rows were looked at.
    """
    moments = [moment(row["_ingested_at"]) for row in added]
    beyond = [row for row in added if (row["_epoch"], row["_commit_lsn"]) > (epoch, cut_lsn)]
    if beyond or any(row["_op"] == "t" for row in added) or any(at <= newest for at in moments):
        return None
    lacking = [row for row in added if row["_unchanged"] is not None]
    unchanged = list(dict.fromkeys(column for row in lacking for column in row["_unchanged"]))
    moves = sum(row["_old_key"] is not None for row in lacking)
    seen = max(moments, default=newest)
    return [len(added), 0, json.dumps(unchanged) if lacking else None, moves, len(added), 0, seen, None, None]


def stage_facts(added: Sequence[Row], mark: Sequence[str]) -> list[Any]:
    """The answer to the macro `stage_facts` after a watermark, from the parsed rows that were added since it."""
    marked, at_mark, highest = mark[0], int(mark[1]), mark[2]
    rows = [(moment(row["_loaded_at"]), position(row)) for row in added]
    later = [row for row in rows if row[0] > marked]
    at_mark += sum(at == marked for at, _ in rows)
    newest = max((at for at, _ in later), default=marked)
    at_newest = sum(at == newest for at, _ in later) if later else at_mark
    lowest = min((where for _, where in later), default=None)
    return [
        newest,
        at_newest,
        len(later),
        at_mark,
        lowest,
        max([highest, *(where for at, where in rows if at >= marked)]),
    ]
