"""Example rows of a test that failed: the keys and positions by which one finds them, and nothing else of them.

Dagster keeps what it is told. So no value is among them that an erasure would have to reach: hash keys, positions and
moments identify a row and say nothing about anybody. Nor does a text that stands in the test itself, nor a value that
`accepted_values` refuses in a column that any reader may see: such a column is not personal.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.declarations.access.rules import read_relations
from lakehouse.declarations.dbt.lineage import place
from lakehouse.errors import LakehouseError
from lakehouse.text.shown import visible
from lakehouse.text.sql import literal

if TYPE_CHECKING:
    from lakehouse.settings import Settings

SHOWN = 3
LONGEST = 60  # characters of a value
TESTED = ("unique_field", "from_field", "value_field")  # as dbt's own tests call the tested column
GROUPING = ("unique", "accepted_values")  # tests of dbt that find values, and not rows
COUNT = "n_records"  # of rows with a value
ALL = "count(*)"  # what a test makes of its query where it does not say otherwise
TECHNICAL = frozenset({"source_seq", "load_date", "applied_date", "record_source", COUNT})
PROBLEM, EXAMPLE = "problem", "example"  # as the vault's own tests call what is wrong, and the key of such a row
HASH = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")


def finds(test: Mapping[str, Any]) -> str:
    """What the test's query finds: rows, or values that are in several rows."""
    return "value" if _name(test) in GROUPING else "row"


def found_by(test: Mapping[str, Any], count: int, examples: str) -> str:
    """What a test has found, for people: `1,011 rows`, `1 value: status='lost' in 3 rows`."""
    if (calculates := (test.get("config") or {}).get("fail_calc", ALL)) != ALL:
        return f"{calculates} is {count:,}"
    found = f"{count:,} {finds(test)}{'s' * (count != 1)}"
    return f"{found}: {examples}" if examples and _name(test) == "accepted_values" else found


def example_rows(
    settings: "Settings", sql: str, test: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> str:
    """Some rows that the test's query finds now; empty if it finds none that can be shown, or cannot run. What it tests
    is one of the `nodes` of dbt."""
    from trino.exceptions import Error

    from lakehouse.servers.trino import connect

    cursor = connect(settings).cursor()
    try:
        rows = cursor.execute(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) LIMIT {SHOWN}").fetchall()
    except (Error, OSError):
        return ""
    column, is_open = test.get("column_name"), _name(test) == "accepted_values" and _is_open(settings, test, nodes)
    return shown([name for name, *_ in cursor.description or ()], rows, column, sql, is_open)


def shown(
    names: Sequence[str], rows: Sequence[Sequence[Any]], column: str | None, sql: str = "", is_open: bool = False
) -> str:
    """`hk_store=00ab…, source_seq=…; hk_store=…`; `column` is the one that is tested, and may be shown where it
    `is_open`, `sql` the test. Of values that are in several rows, `status='lost' in 3 rows`."""
    groups = COUNT in names and any(name in TESTED for name in names)
    said = (_said(names, row, column, sql, is_open, groups) for row in rows)
    return "; ".join(text for text in said if text)


def _said(names: Sequence[str], row: Sequence[Any], column: str | None, sql: str, is_open: bool, groups: bool) -> str:
    parts, count = list[str](), 0
    for name, value in zip(names, row, strict=True):
        called = column if name in TESTED and column else name
        if groups and name == COUNT:
            count = value
        elif is_open and name in TESTED:
            text = visible(str(value))
            parts.append(f"{called}={literal(text if len(text) <= LONGEST else text[: LONGEST - 1] + '…')}")
        elif _identifies(called, value, sql):
            parts.append(f"{called}={value}")
    if not groups:
        return ", ".join(parts)
    value = f"a value of {column}" if column else "a value"
    return f"{', '.join(parts) or value} in {count:,} row{'s' * (count != 1)}"


def _name(test: Mapping[str, Any]) -> str | None:
    """Of one of dbt's own tests."""
    metadata = test.get("test_metadata") or {}
    return None if metadata.get("namespace") else metadata.get("name")


def _is_open(settings: "Settings", test: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether any reader may see the tested column."""
    tested, column = nodes.get(test.get("attached_node") or ""), test.get("column_name")
    if tested is None or column is None or settings.trino.access is None:
        return False
    try:
        relations = {(each.schema, each.name): each for each in read_relations(settings.trino.access)}
    except (LakehouseError, OSError):
        return False
    found = relations.get(place(tested))
    return found is not None and found.least == "reader" and column.strip('"').lower() not in found.personal


def _identifies(name: str, value: Any, sql: str) -> bool:
    if name in (PROBLEM, EXAMPLE):
        return literal(str(value)) in sql if name == PROBLEM else HASH.fullmatch(str(value)) is not None
    return name.startswith(("hk_", "_")) or name in TECHNICAL
