"""What a database's catalog says of its tables: columns, keys, and what refers to what."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from ingestion.sources.postgres.setup import unpublishable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection

_KINDS = {"v": "view", "m": "materialized view", "f": "foreign table"}
SMALL = 128 * 1024
"""Bytes that a table of codes takes at most: about 2,000 rows."""
_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(obj_description(c.oid, 'pg_class'), ''),
  pg_relation_size(c.oid) <= %s
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY (%s)
ORDER BY array_position(%s::text[], n.nspname::text), c.relname
"""
_VIEWS = """
SELECT c.relkind::text, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('v', 'm', 'f') AND NOT c.relispartition AND n.nspname = ANY (%s)
ORDER BY array_position(%s::text[], n.nspname::text), c.relname
"""
_OTHERS = """
SELECT n.nspname || '.' || c.relname, c.relkind::text, root.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class root ON c.relispartition AND root.oid = pg_partition_root(c.oid)
WHERE %s::text IN (c.relname, n.nspname || '.' || c.relname) AND n.nspname !~ '^pg_'
  AND (c.relkind IN ('v', 'm', 'f') OR c.relispartition AND c.relkind IN ('r', 'p'))
ORDER BY n.nspname
"""
_SCHEMAS = """
SELECT n.nspname, count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
GROUP BY n.nspname ORDER BY n.nspname
"""
# A domain is proposed as its base type, because the lake stores its values with that type.
COLUMNS = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname, a.attrelid, a.atttypid AS typid, a.atttypmod AS typmod FROM pg_attribute a
  WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  UNION ALL
  SELECT b.attnum, b.attname, b.attrelid, t.typbasetype, CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END
  FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype = 'd')
SELECT b.attname, format_type(b.typid, b.typmod), coalesce(col_description(b.attrelid, b.attnum), '')
FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype <> 'd' ORDER BY b.attnum
"""
_MORE_COLUMNS = """
SELECT attname, attgenerated <> '' FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND (attgenerated <> '' OR NOT attnotnull) ORDER BY attnum
"""
_KEYS = """
SELECT k.contype, array_agg(a.attname::text ORDER BY c.place)
FROM pg_constraint k CROSS JOIN unnest(k.conkey) WITH ORDINALITY c(number, place)
JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.number
WHERE k.conrelid = %s AND k.contype IN ('p', 'u') GROUP BY k.oid ORDER BY k.contype, k.conname
"""
# With REPLICA IDENTITY USING INDEX, updates and deletes carry the columns of that index, and not the primary key.
_IDENTITY = """
SELECT array_agg(a.attname::text ORDER BY k.place)
FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisreplident AND i.indisvalid
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
WHERE c.oid = %s AND c.relreplident = 'i' AND k.place <= i.indnkeyatts
"""
# Of the table and its partitions: a foreign key may be declared on each of them alone.
_FOREIGN = """
SELECT root.oid::bigint, n.nspname || '.' || root.relname,
  array_agg(mine.attname::text ORDER BY c.place), array_agg(theirs.attname::text ORDER BY c.place)
FROM pg_constraint k
JOIN pg_class root ON root.oid = coalesce(pg_partition_root(k.confrelid), k.confrelid)
JOIN pg_namespace n ON n.oid = root.relnamespace
CROSS JOIN unnest(k.conkey, k.confkey) WITH ORDINALITY c(mine, theirs, place)
JOIN pg_attribute mine ON mine.attrelid = k.conrelid AND mine.attnum = c.mine
JOIN pg_attribute theirs ON theirs.attrelid = k.confrelid AND theirs.attnum = c.theirs
WHERE k.conrelid IN (SELECT %s::oid UNION SELECT relid FROM pg_partition_tree(%s::oid))
  AND k.contype = 'f' AND k.conparentid = 0
GROUP BY k.oid, root.oid, n.nspname, root.relname ORDER BY k.conkey, k.conname, k.conrelid::regclass::text
"""


@dataclass(frozen=True)
class DbTable:
    """A table of the database. `foreign`: columns in the order of the referenced table's key, and that table's oid.

    `loose` are foreign keys to anything else: columns, and what they name. `unfit` is the reason why the table must not
    be published: UPDATE and DELETE of the application would fail, or rows would be missing from the stream.
    """

    oid: int
    schema: str
    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]
    foreign: tuple[tuple[tuple[str, ...], int], ...] = ()
    unfit: str | None = None
    loose: tuple[tuple[tuple[str, ...], str], ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    nullable: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    small: bool = True

    @property
    def relation(self) -> str:
        """Schema and name, for people."""
        return f"{self.schema}.{self.name}"


def read(
    connection: psycopg.Connection[Any], source: str, schemas: Sequence[str], only: Sequence[str]
) -> tuple[list[DbTable], list[str]]:
    """The tables, and what is left out: views, tables that `only` does not name, other schemas.

    Raises LakehouseError for a schema without tables, and for a table that is not there.
    """
    having = dict(connection.execute(_SCHEMAS).fetchall())
    if empty := [schema for schema in schemas if schema not in having]:
        listed = ", ".join(f"{schema} ({_counted(number)})" for schema, number in having.items())
        raise LakehouseError(
            f"source {source!r}: schema {empty[0]!r} has no tables; name another with --schema: {listed or 'none has'}"
        )
    rows = _chosen(connection, source, _rows(connection, schemas), only)
    views = connection.execute(_VIEWS, (list(schemas), list(schemas))).fetchall()
    left_out = [f"{_KINDS[kind]} {schema}.{name}" for kind, schema, name in views]
    if without := sum(having[schema] for schema in dict.fromkeys(schemas)) - len(rows):
        left_out.append(f"{_counted(without)} that --tables does not name")
    left_out += [f"schema {name}: {_counted(number)}" for name, number in having.items() if name not in schemas]
    return _tables(connection, rows), left_out


def read_one(
    connection: psycopg.Connection[Any], source: str, name: str, beside: Collection[tuple[str, str]]
) -> tuple[DbTable, list[DbTable]]:
    """The table `table` or `schema.table`, and the tables `beside` it, by schema and name.

    Raises LakehouseError for a table that is not there, and for a name that several schemas have.
    """
    schemas = list(dict(connection.execute(_SCHEMAS).fetchall()))
    rows = _rows(connection, schemas)
    chosen = _chosen(connection, source, rows, [name])
    if len(chosen) > 1:
        several = " or ".join(f"{source}.{schema}.{table}" for _, schema, table, *_ in chosen)
        raise LakehouseError(f"source {source!r} has several tables {name!r}: name {several}")
    others = [row for row in rows if (row[1], row[2]) in beside and row != chosen[0]]
    table, *others_read = _tables(connection, [*chosen, *others])
    return table, others_read


def read_tables(connection: psycopg.Connection[Any], schemas: Sequence[str]) -> list[DbTable]:
    """All tables of these schemas."""
    return _tables(connection, _rows(connection, schemas))


def _counted(number: int) -> str:
    return "1 table" if number == 1 else f"{number} tables"


def _rows(connection: psycopg.Connection[Any], schemas: Sequence[str]) -> list[Any]:
    return connection.execute(_TABLES, (SMALL, list(schemas), list(schemas))).fetchall()


def _chosen(connection: psycopg.Connection[Any], source: str, rows: list[Any], only: Sequence[str]) -> list[Any]:
    """The rows of the tables that are named, as `table` or `schema.table`."""
    known = {name for _, schema, table, *_ in rows for name in (table, f"{schema}.{table}")}
    for name in only:
        if name not in known:
            _refuse_other(connection, source, name)
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "name another, or its schema with --schema"
            raise LakehouseError(f"source {source!r}: there is no table {name!r}: {hint}")
    return [row for row in rows if not only or {row[2], f"{row[1]}.{row[2]}"} & set(only)]


def _refuse_other(connection: psycopg.Connection[Any], source: str, name: str) -> None:
    """Raises LakehouseError for what has rows and is no table of its own."""
    for relation, kind, root in connection.execute(_OTHERS, (name,)).fetchall():
        if root is not None:
            raise LakehouseError(f"source {source!r}: {relation} is a partition of {root!r}: name that table")
        what = _KINDS[kind]
        raise LakehouseError(f"source {source!r}: {relation} is a {what}: name the tables that its rows come from")


def _tables(connection: psycopg.Connection[Any], rows: list[Any]) -> list[DbTable]:
    found = {row[0]: _keys(connection, row[0]) for row in rows}
    keys = {oid: key for oid, (key, _) in found.items()}
    return [_table(connection, row, keys, found[row[0]][1]) for row in rows]


def _keys(connection: psycopg.Connection[Any], oid: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The columns by which the stream tells the rows of a table, and those of its other keys."""
    declared = [(kind, tuple(names)) for kind, names in connection.execute(_KEYS, (oid,)).fetchall()]
    row = connection.execute(_IDENTITY, (oid,)).fetchone()
    key = tuple(row[0]) if row and row[0] else next((names for kind, names in declared if kind == "p"), ())
    return key, tuple(names for _, names in declared if set(names) != set(key))


def _table(
    connection: psycopg.Connection[Any],
    row: Sequence[Any],
    keys: dict[int, tuple[str, ...]],
    unique: tuple[tuple[str, ...], ...],
) -> DbTable:
    oid, schema, name, comment, small = row
    more = connection.execute(_MORE_COLUMNS, (oid,)).fetchall()
    foreign = connection.execute(_FOREIGN, (oid, oid)).fetchall()
    return DbTable(
        oid, schema, name, comment, tuple(connection.execute(COLUMNS, (oid,)).fetchall()), keys[oid],
        tuple(dict.fromkeys(_foreign(foreign, keys))), unpublishable(SourceConnection(connection), schema, name),
        tuple(dict.fromkeys(_loose(foreign, keys))), unique,
        tuple(column for column, is_generated in more if not is_generated),
        tuple(column for column, is_generated in more if is_generated), small,
    )  # fmt: skip


def _foreign(rows: list[Any], keys: dict[int, tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    for other, _, mine, theirs in rows:
        if set(theirs) == set(keys.get(other, ())):
            named = dict(zip(theirs, mine, strict=True))
            yield tuple(named[column] for column in keys[other]), other


def _loose(rows: list[Any], keys: dict[int, tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], str]]:
    for other, name, mine, theirs in rows:
        if other not in keys:
            yield tuple(mine), f"{name}, which has no hub here"
        elif set(theirs) != set(keys[other]):
            yield tuple(mine), f"{name} ({', '.join(theirs)}), which is not its key"
