"""Example rows of a test that failed: the keys and positions by which one finds them, and nothing else of them.

Dagster keeps what it is told. So no value is among them that an erasure would have to reach: hash keys, positions and
moments identify a row and say nothing about anybody. Nor does a text that stands in the test itself.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.text.sql import literal

if TYPE_CHECKING:
    from lakehouse.settings import Settings

SHOWN = 3
TESTED = ("unique_field", "from_field")  # as dbt's own tests call the tested column
TECHNICAL = frozenset({"source_seq", "load_date", "applied_date", "record_source", "n_records"})
PROBLEM, EXAMPLE = "problem", "example"  # as the vault's own tests call what is wrong, and the key of such a row
HASH = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")


def example_rows(settings: "Settings", sql: str, column: str | None) -> str:
    """Some rows that the test's query finds now; empty if it finds none that can be shown, or cannot run."""
    from trino.exceptions import Error

    from lakehouse.servers.trino import connect

    cursor = connect(settings).cursor()
    try:
        rows = cursor.execute(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) LIMIT {SHOWN}").fetchall()
    except (Error, OSError):
        return ""
    return shown([name for name, *_ in cursor.description or ()], rows, column, sql)


def shown(names: Sequence[str], rows: Sequence[Sequence[Any]], column: str | None, sql: str = "") -> str:
    """`hk_store=00ab…, source_seq=…; hk_store=…`; `column` is the one that is tested, `sql` the test."""
    called = [column if name in TESTED and column else name for name in names]
    found = (
        ", ".join(f"{name}={value}" for name, value in zip(called, row, strict=True) if _identifies(name, value, sql))
        for row in rows
    )
    return "; ".join(text for text in found if text)


def _identifies(name: str, value: Any, sql: str) -> bool:
    if name in (PROBLEM, EXAMPLE):
        return literal(str(value)) in sql if name == PROBLEM else HASH.fullmatch(str(value)) is not None
    return name.startswith(("hk_", "_")) or name in TECHNICAL
