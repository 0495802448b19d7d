"""The subjects: their keys as the user writes them, as the source prints them and as the lake stores them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from pyiceberg.expressions import EqualTo, NotNull, Or
from pyiceberg.table import Table

from erasure.key_periods import Event, Key, Period, key_of, key_periods, linked_keys
from erasure.rows import POSITION, SubjectRows
from erasure.targets import Target, lake_names
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import FORMERLY, names_of, old_key_text
from ingestion.schema.types import ConversionError, Policy, UnrepresentableValue, convert
from ingestion.schema.types.unrepresentable import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT
from ingestion.sources.debezium.forms import FIRST_OF_USERS
from ingestion.sources.kafka.key_forms import in_key_form
from ingestion.sources.postgres.catalog.describe import read_facts
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import beside_parameters, ident, relation

EVENT_COLUMNS = ("_op", *POSITION, "_xid", "_old_key", "_ingested_at")


class UnknownKey(LakehouseError):
    """An old key that names other columns than the key has or had."""


class Typed(Protocol):
    """A key's texts to the lake's values."""

    def __call__(self, texts: Mapping[str, str | None], at: datetime | None = None) -> Key:
        """Of an old key of a row that was ingested then; without it by the source's names. Raises LakehouseError, and
        UnknownKey for other columns than the key has or had."""


def parse_key(table: RawTable, words: Iterable[str]) -> dict[str, str]:
    """`column=value` words as a key of the table, or as what names a subject in events without one; raises
    LakehouseError."""
    name, columns = f"{table.source}.{table.name}", table.key or _naming(table)
    named = [_named(columns, word) for word in words]
    given = dict(named)
    if not columns:
        raise LakehouseError(f"{name} has no key: a subject in it cannot be named")
    if twice := sorted({column for column, _ in named if [c for c, _ in named].count(column) > 1} - {""}):
        raise LakehouseError(f"{name}: {', '.join(twice)} is given twice: name one subject at a time")
    if table.key and set(given) != set(table.key):
        wanted = " ".join(f"{column}=…" for column in table.key)
        raise LakehouseError(f"{name}: name the subject by its key: {wanted}")
    if not given or not set(given) <= set(columns):
        raise LakehouseError(
            f"{name}: its events have no key: name the subject by the value of {' or '.join(columns)}, which are "
            "neither personal nor masked: the lake remembers whom it has erased"
        )
    if not table.has_personal:
        raise LakehouseError(
            f"{name} declares no personal data: mark a satellite `personal: true` or list columns in meta.raw.personal"
        )
    return {column: given[column] for column in named_by(table, given).key}


def named_by(table: RawTable, columns: Iterable[str]) -> RawTable:
    """The table as if its key were what names a subject in it: columns of events without a key, else the key itself."""
    if table.key or table.kind != "kafka":
        return table
    return table.model_copy(update={"raw": table.raw.model_copy(update={"key": tuple(sorted(columns))})})


def _naming(table: RawTable) -> tuple[str, ...]:
    """The columns of events without a key that an erasure leaves as they are."""
    if table.kind != "kafka":
        return ()
    changed = {*table.personal, *table.raw.personal, *table.raw.mask}
    return tuple(column for column in table.landed if column not in changed)


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


def as_landed(table: RawTable, facts: TableFacts, key: dict[str, str]) -> dict[str, str]:
    """The key as that of events lands; raises LakehouseError for a text that is no value of the column's type."""
    columns, found = _columns(facts), dict[str, str]()
    for name, given in key.items():
        source = source_type(columns[name])
        try:
            text = pa.array([_as_printed(columns[name], given)], pa.string())
            [value] = convert(in_key_form(text, source), source).array.to_pylist()
        except ConversionError:
            says = f"{name}={given} is no {columns[name].declared_type} that the lake can hold"
            raise LakehouseError(f"{table.source}.{table.name}: {says}") from None
        found[name] = "ft"[value] if isinstance(value, bool) else _text(columns[name], value)
    return found


def former_names(table: RawTable, facts: TableFacts, properties: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The names that the columns of the key had before, the latest first; `properties` are the raw table's."""
    columns = _columns(facts)
    return {name: tuple(c.name for c in names_of(columns[name].lake, properties)) for name in table.key}


def check_key(table: RawTable, facts: TableFacts) -> None:
    """Raises LakehouseError where a column of the declared key is not described."""
    if missing := [name for name in table.key if name not in _columns(facts)]:
        declare = "" if set(missing) <= set(table.landed) else "declare it again, and "
        raise LakehouseError(
            f"{table.source}.{table.name}: key column {', '.join(missing)} is not among those that were ingested: "
            f"{declare}`lakehouse ingest --once {table.source}` first, then run this again"
        )


def named_now(
    table: RawTable, facts: TableFacts, properties: Mapping[str, str], key: Mapping[str, str], at: datetime
) -> dict[str, str]:
    """A key with the names that its columns had at that time, by those that they have now; `properties` are the raw
    table's. Raises LakehouseError for a key of other columns than the declared one: its values are nobody's there."""
    check_key(table, facts)
    found = {_name_now(name, facts, properties, at): text for name, text in key.items()}
    if found.keys() != set(table.key) or len(found) != len(key):
        raise LakehouseError(
            f"{table.source}.{table.name} {spelled(key)}: erased by a key that is not the declared one "
            f"({', '.join(table.key)}): erase them by that, then end this one"
        )
    return {name: found[name] for name in table.key}


def _name_now(name: str, facts: TableFacts, properties: Mapping[str, str], at: datetime) -> str | None:
    """What the source calls a column now; one that was called so at the time goes before one that is called so now."""
    for column in facts.columns:
        if any(c.name == name and c.until is not None and c.held(at) for c in names_of(column.lake, properties)):
            return column.name
    return name if name in _columns(facts) else None


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

    Raises LakehouseError where the table, or a column of its key, is not there.
    """
    if table.kind == "postgres":
        check_key(table, facts)
        return facts
    found, problem = read_facts(connection, table.behind, "")
    if found is None:
        raise problem or LakehouseError(f"{table.source}.{table.name}: its table is not in the database")
    called = {column.name: column.lake for column in facts.columns}
    found = replace(found, columns=tuple(replace(c, lake=called[c.name]) for c in found.columns if c.name in called))
    check_key(table, found)
    return found


def source_texts(table: RawTable, facts: TableFacts, key: Key) -> dict[str, str | None]:
    """The lake's key values as texts that the source reads, by source column."""
    columns = _columns(facts)
    return {
        name: None if value is None else _text(columns[name], value) for name, value in zip(table.key, key, strict=True)
    }


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
    keys: Iterable[Mapping[str, str | None]],
    kept: frozenset[str],
) -> str | None:
    """An error text if the source still holds personal data under one of the keys, else None.

    A key with what stands in the lake for values that it cannot hold is that of each of these.
    """
    columns, keys = _columns(facts), list(keys)
    personal = [c.name for c in facts.columns if c.lake not in kept and table.raw.mask.get(c.name) != "null"]
    taken_over = (
        f". It is one of {len(keys)} keys that the person has had: leave the row if it is another person's, who has "
        "taken the key over; the lake cannot tell them apart, and erases neither while it is there"
    )
    says = " OR ".join(f"{ident(name)} IS NOT NULL" for name in personal)
    for key in keys:
        same = " AND ".join(_same(columns[name], text, table.raw.on_unrepresentable) for name, text in key.items())
        rest = beside_parameters(f"FROM {relation(*table.behind.relation)} WHERE ({says})")
        query = f"SELECT 1 {rest} AND {same} LIMIT 1"
        if personal and connection.execute(query, tuple(text for text in key.values() if text is not None)).fetchone():
            return (
                f"source {table.source!r} still holds personal data of {table.name} {spelled(key)}, and would bring it "
                f"back: delete the row there, or set {', '.join(personal)} to null, then run this again"
                f"{taken_over if len(keys) > 1 else ''}"
            )
    return None


def _same(column: ColumnFacts, text: str | None, policy: Policy) -> str:
    """Whether a row of the source has the lake's value of a column; SQL, with a parameter unless that is null."""
    name, is_moment = beside_parameters(ident(column.name)), column.type_name in ("date", "timestamp", "timestamptz")
    if text is None:
        unheld = f"{name} NOT BETWEEN '{FIRST_INSTANT}+00' AND '{LAST_INSTANT}+00'" if is_moment else f"{name} = 'NaN'"
        may_be = policy != "error" and (is_moment or column.type_name == "numeric")
        return f"({name} IS NULL OR {unheld})" if may_be else f"{name} IS NULL"
    edges = {str(FIRST_DAY): "<=", str(FIRST_INSTANT): "<=", str(LAST_DAY): ">=", str(LAST_INSTANT): ">="}
    operator = edges.get(text.removesuffix("+00:00"), "=") if policy == "clamp" and is_moment else "="
    value = f"CAST(%s AS {beside_parameters(column.declared_type)})"
    if column.type_oid >= FIRST_OF_USERS and column.type_kind == "b":  # as in `spellings`; no index helps
        return f"ARRAY[{name}] = ARRAY[{value}]"
    return f"{name} {operator} {value}"


def typing_of(table: RawTable, facts: TableFacts, properties: Mapping[str, str]) -> Typed:
    """How keys of the table are typed, with what its policy makes of a value that the lake cannot hold.

    Old rows name key columns by their former names, which are in the raw table's `properties`.
    """
    columns = _columns(facts)
    called = {name: names_of(columns[name].lake, properties) for name in table.key}
    policy = table.raw.on_unrepresentable

    def value(name: str, texts: Mapping[str, str | None], at: datetime | None) -> Any:
        try:
            source = source_type(columns[name])
            given = pa.array([_as_printed(columns[name], old_key_text(texts, name, called[name], at))], pa.string())
            given = in_key_form(given, source) if table.kind == "kafka" else given
            return convert(given, source, policy).array[0].as_py()
        except KeyError:
            raise UnknownKey(
                f"{table.source}.{table.name}: an earlier key names {', '.join(texts)} and not {name!r}: say what the "
                f"source called that before in the property {FORMERLY}{columns[name].lake} of its raw table, as "
                '[{"name": "…", "until": ""}]'
            ) from None
        except UnrepresentableValue as error:
            says = (
                f"key column {name!r} has a value that the lake cannot hold ({error.kind}): declare "
                "meta.raw.on_unrepresentable as it was when that landed"
            )
        except ConversionError as error:
            says = (
                f"key column {name!r} is {error.source.name}, and an earlier key is none: begin the table "
                f"anew, by `lakehouse remove {table.source}.{table.name} --drop-tables`"
            )
        raise LakehouseError(f"{table.source}.{table.name}: {says}")

    return lambda texts, at=None: key_of(value(name, texts, at) for name in table.key)


def _as_printed(column: ColumnFacts, text: str | None) -> str | None:
    """What an old key says, as Postgres prints it: an earlier version landed that of a topic otherwise."""
    if text is None or column.type_name not in ("bool", "time"):
        return text
    return text[0] if text in ("true", "false") else _text(column, int(text)) if text.isdigit() else text


def find_periods(
    raw: Table, table: RawTable, keys: Iterable[Key], typed: Typed, kept: Iterable[Event]
) -> dict[Key, tuple[Period, ...]]:
    """The periods of each key's subject, by the raw log and by `kept` events that have not landed."""
    names, kept = lake_names(table, table.key), list(kept)
    wanted = (*names, *EVENT_COLUMNS)
    known = {called.name for name in raw.schema().column_names for called in names_of(name, raw.properties)}
    renames = raw.scan(row_filter=NotNull(term="_old_key"), selected_fields=wanted).to_arrow()
    moved = _events(renames, names, typed, known) + kept
    moves = [(event.old_key, event.key) for event in moved if event.old_key is not None and event.key is not None]
    found = {}
    for key in keys:
        linked = linked_keys(key, moves)
        events = list(kept)
        if len(linked) > 1:
            subject = SubjectRows(Target(table.identifier, "empty", names, frozenset()), tuple(map(Period, linked)))
            query = Or(subject.filter(), EqualTo(term="_op", value="t"))
            events += _events(raw.scan(row_filter=query, selected_fields=wanted).to_arrow(), names, typed, known)
        found[key] = key_periods(key, events)
    return found


def spelled(key: Mapping[str, str | None]) -> str:
    """A key as text for messages."""
    return " ".join(f"{name}={value}" for name, value in key.items())


def _events(rows: pa.Table, names: tuple[str, ...], typed: Typed, known: Collection[str] = ()) -> list[Event]:
    """The events of rows. `known` are all names of the raw table's columns, now and before: an old key that has only
    these, and not those of the key, is of a key that the table had before."""
    return [
        Event(
            key=None if row["_op"] == "t" else key_of(row[name] for name in names),
            position=tuple(row[name] for name in POSITION),
            op=row["_op"],
            old_key=_old_key(row, typed, known) if row["_old_key"] else None,
            is_marker=row["_op"] == "t" and row["_xid"] is None,
        )
        for row in rows.to_pylist()
    ]


def _old_key(row: Mapping[str, Any], typed: Typed, known: Collection[str]) -> Key | None:
    texts = json.loads(row["_old_key"])
    try:
        return typed(texts, row["_ingested_at"])
    except UnknownKey:
        if not texts.keys() <= set(known):
            raise
        return None  # a change of what was the key then, and not of what is the key now


def _columns(facts: TableFacts) -> dict[str, ColumnFacts]:
    return {column.name: column for column in facts.columns}
