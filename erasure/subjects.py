"""Who is meant: keys as a user writes them, as the source prints them, and as the lake holds them, with their lives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg
import pyarrow as pa
from pyiceberg.expressions import EqualTo, NotNull, Or
from pyiceberg.table import Table

from erasure.lives import Event, Key, Life, linked_keys, lives_of
from erasure.places import Place, lake_names
from erasure.rows import POSITION, Mine
from ingestion.describe import ColumnFacts, TableFacts
from ingestion.evolve import source_type
from ingestion.types import convert
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.sql import ident, relation

EVENT_COLUMNS = ("_op", *POSITION, "_xid", "_old_key")


def parse_key(table: RawTable, words: Iterable[str]) -> dict[str, str]:
    """`column=value` words as a key of the table; raises LakehouseError."""
    given = {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
    if not table.key:
        raise LakehouseError(f"{table.source}.{table.name} has no key: a subject in it cannot be named")
    if set(given) != set(table.key):
        wanted = " ".join(f"{name}=…" for name in table.key)
        raise LakehouseError(f"{table.source}.{table.name}: name the subject by its key: {wanted}")
    if not table.personal:
        raise LakehouseError(
            f"{table.source}.{table.name} declares no personal data: mark a satellite `personal: true` or list columns "
            "in meta.raw.personal"
        )
    return {name: given[name] for name in table.key}


def as_printed(
    connection: psycopg.Connection[Any], table: RawTable, facts: TableFacts, key: dict[str, str]
) -> dict[str, str]:
    """The key as Postgres prints it; raises LakehouseError for a text that is no value of the column's type."""
    columns = _columns(facts)
    casts = ", ".join(f"CAST(%s AS {columns[name].declared_type})::text" for name in key)
    try:
        row = connection.execute(f"SELECT {casts}", tuple(key.values())).fetchone()
    except psycopg.DataError as error:
        raise LakehouseError(f"{table.source}.{table.name}: {str(error).splitlines()[0]}") from None
    assert row is not None
    return dict(zip(key, row, strict=True))


def check_source(
    connection: psycopg.Connection[Any],
    table: RawTable,
    facts: TableFacts,
    keys: Iterable[dict[str, str]],
    kept: frozenset[str],
) -> None:
    """Raises LakehouseError while the source itself holds personal data under one of the keys."""
    columns = _columns(facts)
    personal = [c.name for c in facts.columns if c.lake not in kept and table.raw.mask.get(c.name) != "null"]
    says = " OR ".join(f"{ident(name)} IS NOT NULL" for name in personal)
    for key in keys:
        same = " AND ".join(f"{ident(name)} = CAST(%s AS {columns[name].declared_type})" for name in key)
        query = f"SELECT 1 FROM {relation(*table.relation)} WHERE {same} AND ({says}) LIMIT 1"
        if personal and connection.execute(query, tuple(key.values())).fetchone():
            raise LakehouseError(
                f"source {table.source!r} still holds personal data of {table.name} {spelled(key)}, and would bring it "
                f"back: delete the row there, or set {', '.join(personal)} to null, then run this again"
            )


def typing_of(table: RawTable, facts: TableFacts) -> Callable[[Mapping[str, str]], Key]:
    """A function from a key's texts, by source column, to the values that the lake holds."""
    columns = _columns(facts)

    def typed(texts: Mapping[str, str]) -> Key:
        values = (convert(pa.array([texts[name]], pa.string()), source_type(columns[name])) for name in table.key)
        return tuple(value.array[0].as_py() for value in values)

    return typed


def find_lives(
    raw: Table, table: RawTable, keys: Iterable[Key], typed: Callable[[Mapping[str, str]], Key], kept: Iterable[Event]
) -> dict[Key, tuple[Life, ...]]:
    """The lives of each key's subject, by the raw log and by `kept` events that have not landed."""
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
            mine = Mine(Place(table.identifier, "empty", names, frozenset()), tuple(map(Life, linked)))
            query = Or(mine.filter(), EqualTo(term="_op", value="t"))
            events += _events(raw.scan(row_filter=query, selected_fields=wanted).to_arrow(), names, typed)
        found[key] = lives_of(key, events)
    return found


def spelled(key: Mapping[str, str]) -> str:
    """A key for people."""
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
