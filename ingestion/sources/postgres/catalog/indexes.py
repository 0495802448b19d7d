"""Which unique indexes of a table keep its declared key, as the source's catalog says."""

from collections.abc import Sequence

from lakehouse.servers.database import SourceConnection

# Since Postgres 18, `attnotnull` may be of a constraint that is NOT VALID: rows of before it may have NULLs.
_NOT_NULL = """(a.attnotnull AND NOT EXISTS (
  SELECT FROM pg_constraint n
  WHERE n.conrelid = a.attrelid AND n.contype = 'n' AND NOT n.convalidated AND a.attnum = ANY (n.conkey)))"""

# A part of `fingerprints`: all that `enforcing_indexes` reads. `c` is the table's pg_class row. An index that becomes a
# constraint stays the one that it was, and may be checked at the end of a transaction from then on.
UNIQUE_INDEXES = f"""
SELECT string_agg(concat_ws(',', i.indexrelid, i.indisvalid, i.indimmediate, i.indkey::text, (
    SELECT string_agg(a.attnum::text, ' ' ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND {_NOT_NULL})), ';' ORDER BY i.indexrelid)
FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique
"""

# One over a part of the key keeps the whole of it. NULLs are equal to nothing, unless the index says so (Postgres 15).
_ENFORCING = f"""
SELECT i.indexrelid::bigint FROM pg_index i
WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND (i.indimmediate OR NOT %(at_once)s)
  AND NOT EXISTS (
    SELECT FROM unnest(i.indkey) WITH ORDINALITY k(attnum, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts AND (a.attname <> ALL (%(key)s::text[])
      OR NOT {_NOT_NULL} AND to_jsonb(i) ->> 'indnullsnotdistinct' IS DISTINCT FROM 'true'))
ORDER BY 1
"""


def enforcing_indexes(connection: SourceConnection, oid: int, key: Sequence[str], *, at_once: bool) -> tuple[int, ...]:
    """The unique indexes that let no two rows have one key: at once, or at the end of a transaction at the latest."""
    given = {"oid": oid, "key": list(key), "at_once": at_once}
    return tuple(row[0] for row in connection.execute(_ENFORCING, given).fetchall())
