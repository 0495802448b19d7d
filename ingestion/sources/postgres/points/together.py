"""How large the heaps of tables are, which decides how many share a consistent point."""

from collections.abc import Sequence

from lakehouse.declarations import RawTable
from lakehouse.servers.database import SourceConnection

# Asking for the size of a relation waits for whoever alters it, so what was last known has to do for that; and asking
# for a partition tree waits for whoever alters any of it, so the catalog is read instead.
_HEAPS = """
WITH RECURSIVE altered AS MATERIALIZED (SELECT l.relation FROM pg_locks l JOIN pg_database d ON d.oid = l.database
  WHERE d.datname = current_database() AND l.mode = 'AccessExclusiveLock'),
family(schema, name, oid) AS (
  SELECT w.schema, w.name, c.oid FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
  UNION SELECT f.schema, f.name, i.inhrelid FROM family f JOIN pg_inherits i ON i.inhparent = f.oid
  JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
SELECT f.schema, f.name, array_agg(CASE WHEN r.oid IN (SELECT relation FROM altered)
  THEN greatest(r.relpages, 0)::bigint * %s ELSE coalesce(pg_relation_size(r.oid), 0) END)
FROM family f JOIN pg_class r ON r.oid = f.oid AND r.relkind <> 'p' GROUP BY f.schema, f.name
"""
PAGE_BYTES = 8192


def heap_bytes(connection: SourceConnection, tables: Sequence[RawTable]) -> dict[str, list[int]]:
    """Bytes of the heaps of each table: its own, or those of its partitions."""
    schemas, names = zip(*(table.relation for table in tables), strict=True)
    rows = connection.execute(_HEAPS, (list(schemas), list(names), PAGE_BYTES)).fetchall()
    found = {(schema, name): sizes for schema, name, sizes in rows}
    return {table.name: found.get(table.relation, []) for table in tables}
