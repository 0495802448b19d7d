"""The declared tables as the source's catalog has them, with every relation that stores rows of theirs."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.rows import class_row

from lakehouse.declarations import RawTable
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import typed_relation

# Which index identifies a row is decided as Postgres does at each UPDATE (RelationGetReplicaIndex).
_STORED = """
SELECT w.name AS table, c.oid IS NOT NULL AS exists, c.relkind::text AS root_kind, coalesce(
    (SELECT bool_or(true) FROM pg_inherits h WHERE h.inhparent = c.oid AND c.relkind = 'r'), false) AS has_children,
  pg_get_userbyid(c.relowner) AS owner, coalesce(pg_has_role(c.relowner, 'MEMBER'), false) AS is_owner,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = l.oid AND NOT a.attisdropped
    AND has_schema_privilege(ln.oid, 'USAGE') AND has_column_privilege(l.oid, a.attnum, 'SELECT')) AS reads,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
    AND has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS root_reads,
  coalesce(row_security_active(l.oid), false) AS row_security,
  ln.nspname AS schema, l.relname AS name, l.relkind::text AS kind, l.relpersistence::text AS persistence,
  l.relreplident::text AS identity, coalesce(k.usable, false) AS usable, coalesce(k.deferrable, false) AS deferrable,
  coalesce(pk.usable, false) AS has_key, coalesce(rk.usable, false) AS root_has_key,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND (l.relreplident = 'f' OR a.attnum = ANY(k.columns)) ORDER BY a.attnum) AS identified_by,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated <> '' ORDER BY a.attnum) AS generated,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated = 's' ORDER BY a.attnum) AS stored,
  ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum) AS columns
FROM unnest(%s::text[], %s::text[], %s::text[]) AS w(name, schema, relation)
LEFT JOIN pg_namespace n ON n.nspname = w.schema
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relation
LEFT JOIN LATERAL (
  SELECT r.* FROM pg_class r WHERE r.oid = c.oid AND c.relkind <> 'p'
  UNION ALL SELECT r.* FROM pg_partition_tree(c.oid) t JOIN pg_class r ON r.oid = t.relid
  WHERE c.relkind = 'p' AND t.isleaf) l ON true
LEFT JOIN pg_namespace ln ON ln.oid = l.relnamespace
LEFT JOIN LATERAL (
  SELECT bool_or(i.indisvalid AND i.indimmediate AND i.indislive) AS usable, bool_or(NOT i.indimmediate) AS deferrable,
    (array_agg((i.indkey::int2[])[:i.indnkeyatts - 1]))[1:1] AS columns FROM pg_index i
  WHERE i.indrelid = l.oid AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
) k ON true
LEFT JOIN LATERAL (SELECT bool_or(i.indisvalid AND i.indimmediate) AS usable FROM pg_index i
  WHERE i.indrelid = l.oid AND i.indisprimary) pk ON true
LEFT JOIN LATERAL (SELECT bool_or(i.indimmediate) AS usable FROM pg_index i
  WHERE i.indrelid = c.oid AND i.indisprimary) rk ON true
ORDER BY w.name, ln.nspname, l.relname
"""
_PUBLICATION = """
SELECT p.pubinsert AS inserts, p.pubupdate AS updates, p.pubdelete AS deletes, p.pubtruncate AS truncates,
  p.pubviaroot AS via_root, coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's' AS stored_columns
FROM pg_publication p WHERE p.pubname = %s
"""
_MEMBERS = """
SELECT t.schemaname, t.tablename, t.rowfilter IS NOT NULL, t.attnames::text[], r.prattrs IS NOT NULL
FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid WHERE t.pubname = %s
"""


@dataclass(frozen=True)
class Stored:
    """A relation that stores rows of a declared table: itself, or a partition. `schema` is None where there is none.

    `identified_by` are the columns of its replica identity, `usable` tells whether the index of it serves; `has_key`
    and `root_has_key` whether it, and the table it is a partition of, have a primary key that would. `columns` are
    those of the declared table; `reads` and `root_reads` are the columns, `ctid` and its like among them, that the
    connection's role may SELECT of it and of that table.
    """

    table: str
    exists: bool
    root_kind: str | None
    has_children: bool
    owner: str | None
    is_owner: bool
    reads: list[str]
    root_reads: list[str]
    row_security: bool
    schema: str | None
    name: str | None
    kind: str | None
    persistence: str | None
    identity: str | None
    usable: bool
    deferrable: bool
    has_key: bool
    root_has_key: bool
    identified_by: list[str]
    generated: list[str]
    stored: list[str]
    columns: list[str]

    @property
    def quoted(self) -> str:
        """Its name in SQL, for an owner to paste."""
        return typed_relation(self.schema or "", self.name or "")


@dataclass(frozen=True)
class Published:
    """What a publication carries; `stored_columns`: generated ones that are stored, a choice since Postgres 18."""

    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    stored_columns: bool


@dataclass(frozen=True)
class Member:
    """A table in a publication, with its published columns; `listed` when the publication names them."""

    filtered: bool
    columns: tuple[str, ...]
    listed: bool


def read_stored(connection: SourceConnection, tables: Sequence[RawTable]) -> list[Stored]:
    """At least one row for each declared table."""
    names, schemas, relations = zip(*((t.name, *t.relation) for t in tables), strict=True)
    with connection.cursor(row_factory=class_row(Stored)) as cursor:
        return cursor.execute(_STORED, (list(names), list(schemas), list(relations))).fetchall()


def read_publication(connection: SourceConnection, name: str) -> Published | None:
    """None where there is no such publication."""
    with connection.cursor(row_factory=class_row(Published)) as cursor:
        return cursor.execute(_PUBLICATION, (name,)).fetchone()


def read_members(connection: SourceConnection, name: str) -> dict[tuple[str, str], Member]:
    """The publication's tables by schema and name."""
    rows = connection.execute(_MEMBERS, (name,)).fetchall()
    return {(row[0], row[1]): Member(row[2], tuple(row[3] or ()), bool(row[4])) for row in rows}
