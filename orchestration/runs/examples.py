"""Example rows of a test that failed: the keys and positions by which one finds them, and nothing else of them.

Dagster keeps what it is told. So no value is among them that an erasure would have to reach: hash keys, positions and
moments identify a row and say nothing about anybody.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse.settings import Settings

SHOWN = 3
TESTED = ("unique_field", "from_field")  # as dbt's own tests call the tested column
TECHNICAL = frozenset({"source_seq", "load_date", "applied_date", "record_source", "n_records"})


def example_rows(settings: "Settings", sql: str, column: str | None) -> str:
    """Some rows that the test's query finds now; empty if it finds none that can be shown, or cannot run."""
    from trino.exceptions import Error

    from lakehouse.servers.trino import connect

    cursor = connect(settings).cursor()
    try:
        rows = cursor.execute(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) LIMIT {SHOWN}").fetchall()
    except (Error, OSError):
        return ""
    return shown([name for name, *_ in cursor.description or ()], rows, column)


def shown(names: Sequence[str], rows: Sequence[Sequence[Any]], column: str | None) -> str:
    """`hk_store=00ab…, source_seq=…; hk_store=…`; `column` is the one that is tested."""
    chosen = [
        (at, column if name in TESTED and column else name)
        for at, name in enumerate(names)
        if _identifies(column or "" if name in TESTED else name)
    ]
    found = (", ".join(f"{name}={row[at]}" for at, name in chosen) for row in rows)
    return "; ".join(text for text in found if text)


def _identifies(name: str) -> bool:
    return name.startswith(("hk_", "_")) or name in TECHNICAL
