"""How large the row groups of a table's files are, of which Iceberg's Parquet writer knows the bytes alone.

A reader takes a thread for a row group, and reads the key of all its rows for one of them if the file has position
deletes. Iceberg's 128 MiB hold ten million narrow rows and more.
"""

from __future__ import annotations

from collections.abc import Mapping

PROPERTY = "write.parquet.row-group-size-bytes"
OURS = "lakehouse.row-group-size-bytes"  # what we have set: another value is somebody's own, and stays
ROWS = 1_000_000
DEFAULT_BYTES, LEAST_BYTES = 128 * 1024 * 1024, 1024 * 1024


def fitting(properties: Mapping[str, str], size: int, rows: int) -> dict[str, str]:
    """The table properties with which row groups have a million rows or so; nothing where the table's come near.

    `size` are the bytes of its files, compressed as they are, and `rows` the rows in them.
    """
    here = properties.get(PROPERTY)
    if here != properties.get(OURS) or not size:
        return {}
    wanted = max(LEAST_BYTES, min(DEFAULT_BYTES, size * ROWS // rows)) if rows > ROWS else DEFAULT_BYTES
    now = int(here or DEFAULT_BYTES)
    return {} if now / 4 <= wanted <= now * 4 else dict.fromkeys((PROPERTY, OURS), str(wanted))
