"""What is asked of the source's catalog about a table, in SQL; `describe` reads the answers."""

from ingestion.sources.postgres.catalog.indexes import UNIQUE_INDEXES

_MEMBER = """
SELECT r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE r.prrelid = c.oid AND p.pubname = %(publication)s
"""

# A partitioned table and all below it, read from the catalog: pg_partition_tree waits for whoever alters any of them,
# and then every table of the source would. A partition that is being detached is none, as there.
_TREE = """
tree(relid, parentrelid) AS (
  SELECT {root}::oid, NULL::oid
  UNION ALL
  SELECT i.inhrelid, i.inhparent FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid AND NOT i.inhdetachpending)
"""
_TREE_OF_ROOT, _TREE_OF_TABLE = (_TREE.format(root=root) for root in ("%(oid)s", "c.oid"))

# The table as which a partition's rows come, where a publication that has them by their root has one above it.
_COMES_AS = """
SELECT min(quote_ident(p.schemaname) || '.' || quote_ident(p.tablename)) FROM pg_partition_ancestors(c.oid) a
JOIN pg_class r ON r.oid = a.relid JOIN pg_namespace s ON s.oid = r.relnamespace
JOIN pg_publication_tables p ON p.pubname = %(publication)s AND p.schemaname = s.nspname AND p.tablename = r.relname
JOIN pg_publication b ON b.pubname = p.pubname AND b.pubviaroot
WHERE c.relispartition AND a.relid <> c.oid
"""

# What a publication says beside its tables; `xmin` shows a change that was reverted between two inspections. Where a
# schema is published, so does that of the row which ties the table to its schema.
_PUBLISHES = """
SELECT concat_ws(',', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, p.puballtables, p.xmin,
  (SELECT concat_ws(',', s.oid, s.xmin, (SELECT d.xmin FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
     AND d.objid = c.oid AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass))
   FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))
FROM pg_publication p WHERE p.pubname = %(publication)s
"""

# The columns by which a change tells its row, unless it carries all of them, as Postgres takes them
# (RelationGetReplicaIndex, RelationGetIdentityKeyBitmap). A partition's changes carry those of its own identity.
# `c` and `l` are the pg_class rows of the table and of a partition.
_IDENTITY_OF = """
SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = {of}.oid AND i.indisvalid AND i.indimmediate AND k.place <= i.indnkeyatts
  AND CASE {of}.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
"""
IDENTITY, _OF_LEAF = (_IDENTITY_OF.format(of=row) for row in ("c", "l"))

RELATION = f"""
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind, c.relispartition AS is_partition,
  c.relreplident AS replica_identity, ({IDENTITY}) AS key,
  pg_relation_filenode(c.oid)::bigint AS filenode,
  c.xmin::text::bigint AS changed_by, has_any_column_privilege(c.oid, 'SELECT') AS readable,
  coalesce(({_MEMBER})::bigint, 0) AS member, ({_PUBLISHES}) AS publishes,
  ({_COMES_AS}) AS comes_as, p.tablename IS NOT NULL AS published, p.attnames AS published_columns,
  p.rowfilter IS NOT NULL AS filtered,
  (SELECT pubupdate OR pubdelete FROM pg_publication WHERE pubname = %(publication)s) AS publishes_updates,
  (SELECT pubviaroot FROM pg_publication WHERE pubname = %(publication)s) AS by_root,
  (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0')::bigint
    AS lsn,
  (SELECT array_agg(ARRAY[a.attnum, a.xmin::text::bigint] ORDER BY a.attnum)
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0) AS attribute_rows,
  CASE WHEN c.relkind = 'r' THEN (SELECT string_agg(i.inhrelid::regclass::text, ', ' ORDER BY i.inhrelid)
   FROM pg_inherits i WHERE i.inhparent = c.oid) END AS children
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_tables p
  ON p.pubname = %(publication)s AND p.schemaname = n.nspname AND p.tablename = c.relname
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
"""

# What else decides how values of a type print: the labels of enums and the attributes of composites, also within
# domains, arrays and ranges. None of it is in types of Postgres's own, whose oids are lower. A label that was renamed
# and renamed back is a newer row of pg_enum; an attribute that was added and dropped leaves its number behind.
_PRINTS = """
WITH RECURSIVE inside(oid) AS (
  {types}
  UNION
  SELECT part.oid FROM inside JOIN pg_type t ON t.oid = inside.oid CROSS JOIN LATERAL (
    SELECT t.typbasetype UNION ALL SELECT t.typelem
    UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) part(oid)
  WHERE part.oid >= 16384)
SELECT {gathered} FROM (
  SELECT 'label ' || e.oid, e.enumlabel::text FROM inside JOIN pg_enum e ON e.enumtypid = inside.oid
  UNION ALL
  SELECT 'label row ' || e.oid, e.xmin::text FROM inside JOIN pg_enum e ON e.enumtypid = inside.oid
  UNION ALL
  SELECT 'attributes ' || t.oid, c.relnatts::text
  FROM inside JOIN pg_type t ON t.oid = inside.oid JOIN pg_class c ON c.oid = t.typrelid
  UNION ALL
  SELECT 'composite ' || t.oid, string_agg(a.attnum::text, ',' ORDER BY a.attnum)
  FROM inside JOIN pg_type t ON t.oid = inside.oid JOIN pg_attribute a ON a.attrelid = t.typrelid
  WHERE a.attnum > 0 AND NOT a.attisdropped GROUP BY t.oid) what(part, says)
"""
_PRINTS_OF_COLUMN = _PRINTS.format(
    types="SELECT b.stream_oid WHERE b.stream_oid >= 16384", gathered="array_agg(ARRAY[part, says] ORDER BY part)"
)
_PRINTS_OF_TABLE = _PRINTS.format(
    types="SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384",
    gathered="string_agg(part || ' ' || quote_ident(says), ';' ORDER BY part)",
)

# A domain is followed to its base type here: the stream names only the base type and forgets the domain's precision.
# What a column that was added holds in earlier rows stands with the partitions, not with their root.
COLUMNS = f"""
WITH RECURSIVE {_TREE_OF_ROOT}, base AS (
  SELECT a.attnum, a.attname, a.attgenerated, a.attmissingval IS NOT NULL OR EXISTS (
           SELECT FROM tree t JOIN pg_attribute l ON l.attrelid = t.relid
           WHERE l.attname = a.attname AND l.attmissingval IS NOT NULL) AS has_default_for_earlier_rows,
         a.atttypmod AS typmod, a.atttypid AS typid, a.atttypmod AS stream_typmod, a.atttypid AS stream_oid,
         format_type(a.atttypid, a.atttypmod) AS declared_type
  FROM pg_attribute a WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT b.attnum, b.attname, b.attgenerated, b.has_default_for_earlier_rows,
         CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END, t.typbasetype,
         b.stream_typmod, b.stream_oid, b.declared_type
  FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype = 'd')
SELECT b.attname AS name, b.attnum AS number, b.attgenerated AS generated, b.declared_type,
  b.stream_oid::bigint AS stream_oid, b.stream_typmod, b.has_default_for_earlier_rows,
  t.oid::bigint AS type_oid, t.typname AS type_name, t.typtype AS type_kind, b.typmod,
  quote_ident(pn.nspname) || '.' || quote_ident(p.proname) AS output_function,
  coalesce(({_PRINTS_OF_COLUMN}), '{{}}') AS prints
FROM base b JOIN pg_type t ON t.oid = b.typid JOIN pg_proc p ON p.oid = t.typoutput
JOIN pg_namespace pn ON pn.oid = p.pronamespace
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""

# Whether one has rows is asked only where that neither waits for who alters it, nor meets row-level security.
LEAVES = f"""
WITH RECURSIVE {_TREE_OF_ROOT}, altered AS MATERIALIZED (
  SELECT k.relation FROM pg_locks k JOIN pg_database d ON d.oid = k.database
  WHERE d.datname = current_database() AND k.mode = 'AccessExclusiveLock')
SELECT l.oid::bigint AS oid, quote_ident(n.nspname) || '.' || quote_ident(l.relname) AS name,
  coalesce(pg_relation_filenode(l.oid), 0)::bigint AS filenode, l.xmin::text::bigint AS changed_by,
  has_any_column_privilege(l.oid, 'SELECT') AND NOT row_security_active(l.oid)
    AND l.oid NOT IN (SELECT relation FROM altered WHERE relation IS NOT NULL) AS readable,
  l.relkind AS relkind, l.relpersistence AS persistence,
  l.relreplident AS replica_identity, ({_OF_LEAF}) AS key
FROM tree t JOIN pg_class l ON l.oid = t.relid JOIN pg_namespace n ON n.oid = l.relnamespace
WHERE l.relkind <> 'p' AND l.oid <> %(oid)s ORDER BY l.oid
"""

# A partition that was detached and attached again is the same relation; the row that ties it to its parent is new.
EDGES = f"""
WITH RECURSIVE {_TREE_OF_ROOT}
SELECT i.inhrelid::bigint AS oid, i.xmin::text::bigint AS attached_by
FROM tree t JOIN pg_inherits i ON i.inhrelid = t.relid AND i.inhparent = t.parentrelid
ORDER BY i.inhrelid
"""

FINGERPRINTS = f"""
SELECT w.name, md5(concat_ws('|', c.oid, quote_ident(n.nspname), quote_ident(c.relname), c.relkind, c.relreplident,
  pg_relation_filenode(c.oid),
  has_any_column_privilege(c.oid, 'SELECT'),
  (SELECT string_agg(concat_ws(',', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod, a.attisdropped,
     a.attgenerated, a.atthasmissing, a.xmin), ';' ORDER BY a.attnum)
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
  CASE WHEN EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384)
     THEN ({_PRINTS_OF_TABLE}) END,
  ({IDENTITY}), ({UNIQUE_INDEXES}),
  ({_MEMBER}), ({_COMES_AS}), ({_PUBLISHES}),
  (SELECT concat_ws(',', r.prqual IS NOT NULL, r.prattrs::text) FROM pg_publication_rel r
   JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = c.oid AND p.pubname = %(publication)s),
  CASE WHEN c.relkind = 'p' THEN (WITH RECURSIVE {_TREE_OF_TABLE} SELECT string_agg(
     concat_ws(',', t.relid, t.relid::regclass::text, pg_relation_filenode(t.relid), l.relpersistence, l.relreplident,
       ({_OF_LEAF}), (SELECT i.xmin FROM pg_inherits i WHERE i.inhrelid = t.relid AND i.inhparent = t.parentrelid)), ';'
     ORDER BY t.relid) FROM tree t JOIN pg_class l ON l.oid = t.relid)
   ELSE (SELECT string_agg(i.inhrelid::text, ',' ORDER BY i.inhrelid) FROM pg_inherits i WHERE i.inhparent = c.oid)
  END))
FROM unnest(%(names)s::text[], %(schemas)s::text[], %(tables)s::text[]) AS w(name, schema, relation)
LEFT JOIN pg_namespace n ON n.nspname = w.schema
LEFT JOIN pg_class c ON c.relname = w.relation AND c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
"""
