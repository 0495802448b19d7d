"""The rows that several queries give, by one statement of Trino: as text, which becomes values of their types again.

And the other way round: rows that are known already, as a relation that a statement can read instead of a table.

A statement costs Trino what planning and its stages cost, not what its rows cost. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from lakehouse.text.sql import ident, literal, trino_ident

MOST_CHARACTERS = 100_000  # of the rows of a table
Columns = Sequence[tuple[str, str]]
"""Name of each column, and its type as Trino calls it."""

Row = Sequence[str | None]


def _number(value: float) -> str:
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))


def _moment(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(" ", "microseconds")


class _Kind(NamedTuple):
    """How a value becomes text in Trino, and a value in Python; and from there text, and a value in Trino."""

    text: str
    value: Callable[[str], Any]
    spelled: Callable[[Any], str] = str
    read: str = "cast({} as {})"


_PLAIN = "cast({} as varchar)"
_KINDS = {
    "varchar": _Kind("{}", str, read="{}"),
    "integer": _Kind(_PLAIN, int),
    "bigint": _Kind(_PLAIN, int),
    "boolean": _Kind(_PLAIN, "true".__eq__, lambda value: str(value).lower()),
    # as text it has seven digits, and some need nine
    "real": _Kind("cast(cast({} as double) as varchar)", float, _number, "cast(cast({} as double) as {})"),
    "double": _Kind(_PLAIN, float, _number),
    "decimal": _Kind(_PLAIN, Decimal, "{:f}".format),
    "date": _Kind(_PLAIN, date.fromisoformat, date.isoformat),
    "timestamp(6)": _Kind(_PLAIN, datetime.fromisoformat, _moment),
    "timestamp(6) with time zone": _Kind(
        "cast(cast({} at time zone 'UTC' as timestamp(6)) as varchar)",
        lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
        lambda value: _moment(value.astimezone(UTC)),
        "cast({} || ' UTC' as {})",
    ),
    "varbinary": _Kind("to_hex({})", bytes.fromhex, bytes.hex, "from_hex({})"),
    "array(varchar)": _Kind("json_format(cast({} as json))", json.loads, json.dumps, "cast(json_parse({}) as {})"),
}


NO_RELATIONS: Mapping[str, str] = MappingProxyType({})


class Rows(NamedTuple):
    """Rows as text, and what columns they are of."""

    columns: Columns
    rows: Sequence[Row]


def one_statement(queries: Mapping[str, tuple[str, Columns]], relations: Mapping[str, str] = NO_RELATIONS) -> str:
    """By name the rows of each query, cast to the types of its columns; beside them the `relations` that they name."""
    asked = "\nUNION ALL\n".join(
        f"SELECT {literal(name)}, ARRAY[{', '.join(map(_text, columns))}] FROM (\n{sql}\n)"
        for name, (sql, columns) in queries.items()
    )
    named = ",\n".join(f"{ident(name)} AS (\n{sql}\n)" for name, sql in named_in(asked, relations).items())
    return f"WITH {named}\n{asked}" if named else asked


def named_in(sql: str, relations: Mapping[str, str]) -> dict[str, str]:
    """Those of the relations that a statement names, or that these name. Each comes after those that it names."""
    found: dict[str, str] = {}
    for name, query in reversed(list(relations.items())):
        if ident(name) in sql or any(ident(name) in other for other in found.values()):
            found = {name: query, **found}
    return found


def relation_of(handed: Rows) -> str:
    """A query that gives these rows. One literal, whatever their number: each expression more is one to plan."""
    columns = ", ".join(
        f"{_kind(kind).read.format(f'r[{at}]', kind)} AS {trino_ident(name)}"
        for at, (name, kind) in enumerate(handed.columns, start=1)
    )
    rows = literal(json.dumps(handed.rows, ensure_ascii=False))
    return f"SELECT {columns} FROM UNNEST(CAST(JSON_PARSE({rows}) AS ARRAY(ARRAY(VARCHAR)))) AS t (r)"


def is_short(rows: Sequence[Row]) -> bool:
    """Whether rows are short enough to stand in a statement; Trino takes a million characters."""
    return sum(len(text) + 3 if text is not None else 5 for row in rows for text in row) <= MOST_CHARACTERS


def texts(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The values of rows as text."""
    return [[None if row[name] is None else _kind(kind).spelled(row[name]) for name, kind in columns] for row in rows]


def values(columns: Columns, rows: Sequence[Row]) -> dict[str, list[Any]]:
    """By column the values of such rows; raises ValueError for one that Python cannot hold, such as a year 0."""
    return {
        name: [None if row[at] is None else _kind(kind).value(row[at]) for row in rows]  # type: ignore[arg-type]
        for at, (name, kind) in enumerate(columns)
    }


def _text(column: tuple[str, str]) -> str:
    name, kind = column
    return _kind(kind).text.format(f"cast({trino_ident(name)} as {kind})")


def _kind(kind: str) -> _Kind:
    return _KINDS["decimal" if kind.startswith("decimal(") else kind]
