"""What the database behind topics tells of mistakes that nothing in the topics shows: rows would be wrong."""

from collections.abc import Iterator, Mapping
from typing import Any

from psycopg.rows import dict_row

from ingestion.schema.types.declared import is_known, source_type_of, type_name
from ingestion.sources.debezium.noticed import NULLS
from ingestion.sources.debezium.shape import digits_of
from ingestion.sources.findings import Finding
from ingestion.sources.postgres.catalog import queries
from ingestion.sources.postgres.connection import connect_source
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

_RELATION = f"""
SELECT c.oid, c.relreplident AS identity, ({queries.IDENTITY}) AS key
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_DEFAULTS = """
SELECT a.attname FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND NOT a.attnotnull AND a.attgenerated = ''
  AND pg_get_expr(d.adbin, d.adrelid) NOT LIKE 'NULL::%%'
"""
_IN_DIGITS = ("timestamp", "timestamptz", "time")


def check_behind(settings: Settings, source: Source) -> list[Finding]:
    """What the declaration gets wrong of its database, where `url` leads to it."""
    if settings.debezium(source.name).url is None:
        return []
    try:
        with connect_source(settings.behind(source.name), source.name) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return [finding for table in source.tables for finding in _of_table(cursor, source.name, table)]
    except LakehouseError as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        return [Finding(source.name, None, "database", "warning", "its database cannot be looked at", says)]


def _of_table(cursor: Any, source: str, table: RawTable) -> Iterator[Finding]:
    relation = cursor.execute(_RELATION, table.raw.captured).fetchone() if table.raw.captured else None
    if relation is None:
        where = ".".join(table.raw.captured) or table.raw.topic
        says = f"its database has no table {where}, or another one than the connector reads"
        yield Finding(source, table.name, "relation", "warning", says, "correct meta.raw.relation, or `url`")
        return
    columns = {row["name"]: row for row in cursor.execute(queries.COLUMNS, {"oid": relation["oid"]}).fetchall()}
    yield from _of_types(source, table, columns)
    identity = relation["key"] or ()
    if relation["identity"] in "di" and (lacking := sorted(set(table.key) - set(identity))):
        yield Finding(
            source, table.name, "key", "warning",
            f"deletes and changes of its key do not tell {', '.join(lacking)}, which the declared key has: the replica "
            f"identity has {', '.join(identity) or 'no column'}",
            "declare that key, or ALTER TABLE … REPLICA IDENTITY FULL",
        )  # fmt: skip
    declared = {column.name for column in table.columns}
    with_default = sorted(row["attname"] for row in cursor.execute(_DEFAULTS, (relation["oid"],)).fetchall())
    if hidden := [name for name in with_default if name in declared]:
        says = f"a NULL in {', '.join(hidden)} comes as the column's default, unless the converter is told otherwise"
        yield Finding(source, table.name, "nulls", "warning", says, NULLS)


def _of_types(source: str, table: RawTable, columns: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    lacking, others = list[str](), list[str]()
    for column in table.columns:
        declared, there = column.data_type or "", columns.get(column.name)
        if there is None:
            lacking.append(column.name)
        elif is_known(declared) and not _fits(declared, there):
            others.append(f"{column.name} is {there['declared_type']} and declared as {declared}")
    if lacking:
        says = f"its database has no column {', '.join(lacking)}, which lands as NULL"
        yield Finding(source, table.name, "columns", "warning", says, "correct its name, or declare it no more")
    if others:
        remedy = "declare the type that the database has: by it values are read where messages have no schema"
        yield Finding(source, table.name, "types", "warning", "; ".join(others), remedy)


def _fits(declared: str, there: Mapping[str, Any]) -> bool:
    """Whether values of a column are read rightly by the declared type; as text, whatever is text is."""
    wanted, name, typmod = source_type_of(declared), there["type_name"], there["typmod"]
    if type_name(declared) in ("text", "varchar", "bpchar", "jsonb", "json"):
        return True
    if name == "money":
        return wanted.name == "numeric"
    if name != wanted.name:
        return False
    if name == "numeric":
        return bool(typmod == wanted.typmod)
    return name not in _IN_DIGITS or digits_of(declared) == (None if typmod < 0 else typmod)
