"""The rows that several queries give, by one statement of Trino: as text, which becomes values of their types again.

A statement costs Trino what planning and its stages cost, not what its rows cost. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from lakehouse.text.sql import ident, literal

Columns = Sequence[tuple[str, str]]
"""Name of each column, and its type as Trino calls it."""

Row = Sequence[str | None]


class _Kind(NamedTuple):
    """How a value becomes text in Trino, and a value in Python."""

    text: str
    value: Callable[[str], Any]


_PLAIN = "cast({} as varchar)"
_KINDS = {
    "varchar": _Kind("{}", str),
    "integer": _Kind(_PLAIN, int),
    "bigint": _Kind(_PLAIN, int),
    "boolean": _Kind(_PLAIN, "true".__eq__),
    "real": _Kind("cast(cast({} as double) as varchar)", float),  # as text it has seven digits, and some need nine
    "double": _Kind(_PLAIN, float),
    "decimal": _Kind(_PLAIN, Decimal),
    "date": _Kind(_PLAIN, date.fromisoformat),
    "timestamp(6)": _Kind(_PLAIN, datetime.fromisoformat),
    "timestamp(6) with time zone": _Kind(
        "cast(cast({} at time zone 'UTC' as timestamp(6)) as varchar)",
        lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
    ),
    "varbinary": _Kind("to_hex({})", bytes.fromhex),
    "array(varchar)": _Kind("json_format(cast({} as json))", json.loads),
}


def one_statement(queries: Mapping[str, tuple[str, Columns]]) -> str:
    """By name the rows of each query, cast to the types of its columns."""
    return "\nUNION ALL\n".join(
        f"SELECT {literal(name)}, ARRAY[{', '.join(map(_text, columns))}] FROM (\n{sql}\n)"
        for name, (sql, columns) in queries.items()
    )


def values(columns: Columns, rows: Sequence[Row]) -> dict[str, list[Any]]:
    """By column the values of such rows; raises ValueError for one that Python cannot hold, such as a year 0."""
    return {
        name: [None if row[at] is None else _kind(kind).value(row[at]) for row in rows]  # type: ignore[arg-type]
        for at, (name, kind) in enumerate(columns)
    }


def _text(column: tuple[str, str]) -> str:
    name, kind = column
    return _kind(kind).text.format(f"cast({ident(name)} as {kind})")


def _kind(kind: str) -> _Kind:
    return _KINDS["decimal" if kind.startswith("decimal(") else kind]
