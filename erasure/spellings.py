"""How else the values that name a subject are written in a raw table: the subject has all of these spellings.

Of events, columns of a key land in one form. In events without a key, and in those that earlier releases have landed, a
uuid or a numeric without bounds is as its producer wrote it. Of a database, values land as Postgres prints them, and it
calls some equal that it prints differently, such as `Ann` and `ann` of citext. Only the database knows all of these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from itertools import product
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.types import StringType

from erasure.key_periods import Key, key_of
from erasure.targets import lake_names
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.types import target_type
from ingestion.schema.types.model import Form
from ingestion.sources.kafka.key_forms import has_key_form, in_key_form
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import beside_parameters, relation

ONE_TEXT = frozenset({"text", "varchar", "name", "char", "uuid"})  # each value, but for the collation of a column
_COLLATION = """SELECT format('COLLATE %%I.%%I', n.nspname, l.collname) FROM pg_attribute AS a
  JOIN pg_collation AS l ON l.oid = a.attcollation JOIN pg_namespace AS n ON n.oid = l.collnamespace
  WHERE a.attrelid = to_regclass(%s) AND a.attname = %s AND NOT l.collisdeterministic"""


def spellings(raw: Table, table: RawTable, facts: TableFacts, keys: Collection[Key]) -> dict[Key, set[Key]]:
    """By key, the other ones in the raw table that are the same in the form of keys."""
    columns, names = {column.name: column for column in facts.columns}, lake_names(table, table.key)
    sources = [source_type(columns[name]) for name in table.key]
    found: dict[Key, set[Key]] = {key: set() for key in keys}
    if not any(map(has_key_form, sources)):
        return found
    for batch in raw.scan(selected_fields=names).to_arrow_batch_reader():
        written = pa.Table.from_batches([batch]).group_by(list(names)).aggregate([])
        parts = [written.column(name).combine_chunks() for name in names]
        formed = [in_key_form(part, source) for part, source in zip(parts, sources, strict=True)]
        is_known = [
            pc.is_in(column, pa.array(list(values), column.type))
            for column, values in zip(formed, zip(*keys, strict=True), strict=True)
        ]
        numbers = pc.indices_nonzero(reduce(pc.and_, is_known))
        own, forms = (
            map(key_of, zip(*(column.take(numbers).to_pylist() for column in those), strict=True))
            for those in (parts, formed)
        )
        for as_written, key in zip(own, forms, strict=True):
            if key in found and as_written != key:
                found[key].add(as_written)
    return found


def may_differ(table: RawTable, facts: TableFacts) -> bool:
    """Whether a column of the key has a type of which equal values may be printed differently."""
    columns = {column.name: column for column in facts.columns}
    return any(_has_texts(columns[name]) for name in table.key if name in columns)


def equal_keys(
    connection: SourceConnection, raw: Table, table: RawTable, facts: TableFacts, keys: Collection[Key],
    kept: Collection[Key],
) -> dict[Key, set[Key]]:  # fmt: skip
    """By key, those of other texts that the database calls equal, of values in the raw table and of `kept` keys.

    They may combine values of several rows, which is no row's key then. Raises LakehouseError where the table is gone,
    and with it what its columns call equal.
    """
    named = relation(*table.behind.relation)
    if connection.execute("SELECT to_regclass(%s)", (named,)).fetchone() == (None,):
        raise LakehouseError(f"{table.source}.{table.name}: its table is not in the database")
    columns = {column.name: column for column in facts.columns}
    equal: dict[int, dict[str, set[str]]] = {}
    for number, (name, lake) in enumerate(zip(table.key, lake_names(table, table.key), strict=True)):
        is_text = isinstance(raw.schema().find_type(lake), StringType) and name not in table.raw.mask
        if is_text and (kind := _compared_as(connection, table, columns[name])):
            batches = raw.scan(selected_fields=(lake,)).to_arrow_batch_reader()
            written = (pc.unique(batch.column(0)).to_pylist() for batch in batches)
            others = [key[number] for key in kept]
            equal[number] = _equal(connection, kind, {key[number] for key in keys}, [others, *written])
    if not equal:
        return {key: set() for key in keys}
    return {key: {*product(*_values(key, equal))} - {key} for key in keys}


def _values(key: Key, equal: Mapping[int, Mapping[str, set[str]]]) -> Iterable[Collection[Any]]:
    return ({value, *equal.get(number, {}).get(value, ())} for number, value in enumerate(key))


def _has_texts(column: ColumnFacts) -> bool:
    is_text = target_type(source_type(column)).form is Form.TEXT
    return is_text and column.type_kind != "e" and column.type_name not in ONE_TEXT


def _compared_as(connection: SourceConnection, table: RawTable, column: ColumnFacts) -> str | None:
    """What follows a text in SQL to compare it as a value of the column; None where its equal values are one text."""
    where = (relation(*table.behind.relation), column.name)
    collation = connection.execute(_COLLATION, where).fetchone()
    if collation is None and not _has_texts(column):
        return None
    kind = connection.execute("SELECT format_type(%s::oid, -1)", (column.type_oid,)).fetchone()
    assert kind is not None
    return beside_parameters(f"::{kind[0]} {collation[0] if collation else ''}")


def _equal(
    connection: SourceConnection, kind: str, named: Collection[str], written: Iterable[list[str | None]]
) -> dict[str, set[str]]:
    # Arrays are compared by what their elements' type calls equal. An operator between two values is looked for in
    # pg_catalog alone, where that of citext is not.
    query = f"""SELECT n, w FROM unnest(%s::text[]) AS n JOIN unnest(%s::text[]) AS w
        ON ARRAY[w{kind}] = ARRAY[n{kind}] WHERE n <> w"""
    own = _valid(connection, kind, sorted(named))
    found: dict[str, set[str]] = {value: set() for value in named}
    for texts in written:
        others = _valid(connection, kind, [text for text in texts if text is not None])
        for one, other in connection.execute(query, (own, others)):
            found[one].add(other)
    return found


def _valid(connection: SourceConnection, kind: str, texts: list[str]) -> list[str]:
    """Without those from when the column had another type."""
    try:
        connection.execute(f"SELECT count(w{kind}) FROM unnest(%s::text[]) AS w", (texts,))
    except psycopg.DataError:
        half = len(texts) // 2
        return [*_valid(connection, kind, texts[:half]), *_valid(connection, kind, texts[half:])] if half else []
    return texts
