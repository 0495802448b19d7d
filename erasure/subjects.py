"""The subjects: their keys as the user writes them, as the source prints them and as the lake stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from pyiceberg.expressions import EqualTo, NotNull, Or
from pyiceberg.table import Table

from erasure.key_periods import Event, Key, Period, key_periods, linked_keys
from erasure.rows import POSITION, SubjectRows
from erasure.targets import Target, lake_names
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import names_of
from ingestion.schema.types import convert
from ingestion.sources.postgres.catalog.describe import read_facts
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import beside_parameters, ident, relation

EVENT_COLUMNS = ("_op", *POSITION, "_xid", "_old_key")


def parse_key(table: RawTable, words: Iterable[str]) -> dict[str, str]:
    """`column=value` words as a key of the table; raises LakehouseError."""
    given = dict(_named(table.key, word) for word in words)
    if not table.key:
        raise LakehouseError(f"{table.source}.{table.name} has no key: a subject in it cannot be named")
    if set(given) != set(table.key):
        wanted = " ".join(f"{name}=…" for name in table.key)
        raise LakehouseError(f"{table.source}.{table.name}: name the subject by its key: {wanted}")
    if not (table.personal or table.raw.personal):
        raise LakehouseError(
            f"{table.source}.{table.name} declares no personal data: mark a satellite `personal: true` or list columns "
            "in meta.raw.personal"
        )
    return {name: given[name] for name in table.key}


def _named(key: tuple[str, ...], word: str) -> tuple[str, str]:
    """Column and value; a column's name may itself contain `=`."""
    name = max((name for name in key if word.startswith(f"{name}=")), key=len, default="")
    return name, word[len(name) + 1 :]


def as_printed(connection: SourceConnection, table: RawTable, facts: TableFacts, key: dict[str, str]) -> dict[str, str]:
    """The key as the stream prints it.

    Raises LakehouseError for a text that is no value of the column's type, or that the column's length or precision
    would change into another key.
    """
    columns = _columns(facts)
    try:
        return {name: _printed(connection, columns[name], text) for name, text in key.items()}
    except (psycopg.DataError, psycopg.IntegrityError) as error:  # the latter from a domain's constraint
        reason = str(error).splitlines()[0]
    except ValueError as error:
        reason = str(error)
    raise LakehouseError(f"{table.source}.{table.name}: {reason}")


def _printed(connection: SourceConnection, column: ColumnFacts, text: str) -> str:
    printed = beside_parameters(replace(column, name="value").printed)
    kind = beside_parameters(column.declared_type)
    found = connection.execute(
        f"SELECT {printed} FROM (SELECT CAST(%s AS {kind}) AS value) AS given", (text,)
    ).fetchone()
    assert found is not None
    if column.typmod >= 0:
        base = connection.execute("SELECT format_type(%s::oid, -1)", (column.type_oid,)).fetchone()
        assert base is not None
        query = f"SELECT CAST(%s AS {kind}) = CAST(%s AS {base[0]})"
        if connection.execute(query, (text, text)).fetchone() != (True,):
            raise ValueError(f"{column.name}={text} is no {column.declared_type}, which would hold {found[0]}")
    return str(found[0])


def facts_there(connection: SourceConnection, table: RawTable, facts: TableFacts) -> TableFacts:
    """The facts by which the database is asked: those of its own table, where `facts` are of a topic.

    Raises LakehouseError where the table is not there.
    """
    if table.kind == "postgres":
        return facts
    found, problem = read_facts(connection, table.behind, "")
    if found is None:
        raise problem or LakehouseError(f"{table.source}.{table.name}: its table is not in the database")
    return replace(found, columns=tuple(column for column in found.columns if column.name in table.landed))


def source_texts(table: RawTable, facts: TableFacts, key: Key) -> dict[str, str]:
    """The lake's key values as texts that the source reads, by source column."""
    columns = _columns(facts)
    return {name: _text(columns[name], value) for name, value in zip(table.key, key, strict=True)}


def _text(column: ColumnFacts, value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if column.type_name == "time":  # microseconds since midnight, including 24:00:00
        seconds, micros = divmod(value, 1_000_000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return str(value)


def held_by_source(
    connection: SourceConnection,
    table: RawTable,
    facts: TableFacts,
    keys: Iterable[dict[str, str]],
    kept: frozenset[str],
) -> str | None:
    """An error text if the source still holds personal data under one of the keys, else None."""
    columns = _columns(facts)
    personal = [c.name for c in facts.columns if c.lake not in kept and table.raw.mask.get(c.name) != "null"]
    says = " OR ".join(f"{ident(name)} IS NOT NULL" for name in personal)
    for key in keys:
        parts = [(beside_parameters(ident(n)), beside_parameters(columns[n].declared_type)) for n in key]
        same = " AND ".join(f"{name} = CAST(%s AS {kind})" for name, kind in parts)
        rest = beside_parameters(f"FROM {relation(*table.behind.relation)} WHERE ({says})")
        query = f"SELECT 1 {rest} AND {same} LIMIT 1"
        if personal and connection.execute(query, tuple(key.values())).fetchone():
            return (
                f"source {table.source!r} still holds personal data of {table.name} {spelled(key)}, and would bring it "
                f"back: delete the row there, or set {', '.join(personal)} to null, then run this again"
            )
    return None


def typing_of(table: RawTable, facts: TableFacts, properties: Mapping[str, str]) -> Callable[[Mapping[str, str]], Key]:
    """A function from a key's texts, by source column, to the lake's values.

    Old rows name key columns by their former names, which are in the raw table's `properties`.
    """
    columns = _columns(facts)
    called = {name: (name, *(c.name for c in names_of(columns[name].lake, properties))) for name in table.key}

    def typed(texts: Mapping[str, str]) -> Key:
        held = (texts[next((name for name in called[column] if name in texts), column)] for column in table.key)
        values = (
            convert(pa.array([text], pa.string()), source_type(columns[name]))
            for name, text in zip(table.key, held, strict=True)
        )
        return tuple(value.array[0].as_py() for value in values)

    return typed


def find_periods(
    raw: Table, table: RawTable, keys: Iterable[Key], typed: Callable[[Mapping[str, str]], Key], kept: Iterable[Event]
) -> dict[Key, tuple[Period, ...]]:
    """The periods of each key's subject, by the raw log and by `kept` events that have not landed."""
    names, kept = lake_names(table, table.key), list(kept)
    wanted = (*names, *EVENT_COLUMNS)
    moved = (
        _events(raw.scan(row_filter=NotNull(term="_old_key"), selected_fields=wanted).to_arrow(), names, typed) + kept
    )
    moves = [(event.old_key, event.key) for event in moved if event.old_key is not None and event.key is not None]
    found = {}
    for key in keys:
        linked = linked_keys(key, moves)
        events = list(kept)
        if len(linked) > 1:
            subject = SubjectRows(Target(table.identifier, "empty", names, frozenset()), tuple(map(Period, linked)))
            query = Or(subject.filter(), EqualTo(term="_op", value="t"))
            events += _events(raw.scan(row_filter=query, selected_fields=wanted).to_arrow(), names, typed)
        found[key] = key_periods(key, events)
    return found


def spelled(key: Mapping[str, str]) -> str:
    """A key as text for messages."""
    return " ".join(f"{name}={value}" for name, value in key.items())


def _events(rows: pa.Table, names: tuple[str, ...], typed: Callable[[Mapping[str, str]], Key]) -> list[Event]:
    return [
        Event(
            key=None if row["_op"] == "t" else tuple(row[name] for name in names),
            position=tuple(row[name] for name in POSITION),
            op=row["_op"],
            old_key=typed(json.loads(row["_old_key"])) if row["_old_key"] else None,
            is_marker=row["_op"] == "t" and row["_xid"] is None,
        )
        for row in rows.to_pylist()
    ]


def _columns(facts: TableFacts) -> dict[str, ColumnFacts]:
    return {column.name: column for column in facts.columns}
