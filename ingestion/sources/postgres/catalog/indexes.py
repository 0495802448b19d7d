"""Which unique indexes of a table keep its declared key, as the source's catalog says."""

from collections.abc import Sequence

from lakehouse.servers.database import SourceConnection

# A part of `fingerprints`: all that `enforcing_indexes` reads. `c` is the table's pg_class row.
UNIQUE_INDEXES = """
SELECT string_agg(concat_ws(',', i.indexrelid, i.indisvalid, i.indkey::text, (
    SELECT string_agg(a.attnum::text, ' ' ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND a.attnotnull)), ';' ORDER BY i.indexrelid)
FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique
"""

# One over a part of the key keeps the whole of it. NULLs are equal to nothing, unless the index says so (Postgres 15).
_ENFORCING = """
SELECT i.indexrelid::bigint FROM pg_index i
WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND (i.indimmediate OR NOT %(at_once)s)
  AND NOT EXISTS (
    SELECT FROM unnest(i.indkey) WITH ORDINALITY k(attnum, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts AND (a.attname <> ALL (%(key)s::text[])
      OR NOT a.attnotnull AND to_jsonb(i) ->> 'indnullsnotdistinct' IS DISTINCT FROM 'true'))
ORDER BY 1
"""


def enforcing_indexes(connection: SourceConnection, oid: int, key: Sequence[str], *, at_once: bool) -> tuple[int, ...]:
    """The unique indexes that let no two rows have one key: at once, or at the end of a transaction at the latest."""
    given = {"oid": oid, "key": list(key), "at_once": at_once}
    return tuple(row[0] for row in connection.execute(_ENFORCING, given).fetchall())
