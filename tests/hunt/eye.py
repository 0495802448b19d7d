"""What a session sees of its case right now, its own transaction included: the generator keeps no model of its own."""

from dataclasses import dataclass, replace
from typing import Any

import psycopg

SEEN = """
SELECT c.relkind, c.relreplident, c.relpersistence,
  (SELECT array_agg(ARRAY[quote_ident(attname), format_type(atttypid, atttypmod), t.typtype::text, attgenerated::text,
       col_description(attrelid, attnum)]
     ORDER BY attnum) FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
   WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
  EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid),
  n.nspname = %(schema)s::text,
  (SELECT array_agg(quote_ident(i.relname) ORDER BY i.oid) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
   WHERE x.indrelid = c.oid AND x.indisunique AND x.indimmediate),
  (SELECT conname FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN (%(schema)s::text, %(other)s::text) AND c.relname = %(table)s::text AND c.relkind IN ('r', 'p')
"""
OTHERS = """
SELECT quote_ident(c.relname), c.relkind, c.relispartition, quote_ident(p.relname),
  pg_get_expr(c.relpartbound, c.oid), c.relpersistence
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_inherits h ON h.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
WHERE n.nspname IN (%(schema)s::text, %(other)s::text) AND c.relname <> %(table)s::text
  AND c.relkind IN ('r', 'p') ORDER BY 1
"""
LABELS = """SELECT array_agg(enumlabel::text ORDER BY enumsortorder)
FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname IN (%(schema)s::text, %(other)s::text)"""
ATTRIBUTES = """SELECT quote_ident(attname), format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = 'pair'
  AND c.relkind = 'c' AND n.nspname IN (%(schema)s::text, %(other)s::text)) AND attnum > 0 AND NOT attisdropped
ORDER BY attnum"""


SECRET = "secret"
ID, R = ("id", "pk", '"Pk"'), ("r", "rk")  # what the columns of keys are called, one name at a time


@dataclass(frozen=True)
class Column:
    """Name (quoted), type and its kind (`b`ase, `e`num, `d`omain, `c`omposite) of a column.

    What is `withheld` has a comment in the source, and begins with SECRET.
    """

    name: str
    type: str
    kind: str
    generated: bool
    withheld: bool = False


@dataclass(frozen=True)
class Other:
    """Another table of the case: a partition, a child, or what became of one."""

    name: str
    kind: str
    attached: bool
    parent: str | None
    bound: str | None
    persistence: str


@dataclass(frozen=True)
class Eye:
    """The case's main table, under its name of the moment, and what is around it."""

    table: str
    exists: bool
    kind: str = ""
    identity: str = ""
    persistence: str = ""
    columns: tuple[Column, ...] = ()
    published: bool = False
    at_home: bool = True
    unique: tuple[str, ...] = ()
    primary: str | None = None
    others: tuple[Other, ...] = ()
    labels: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def free(self) -> list[Column]:
        """Columns that may be altered and written."""
        return [c for c in self.columns if c.name not in (*ID, *R) and not c.generated]

    @property
    def id(self) -> str | None:
        """What the column is called that tells rows apart."""
        return next((name for name in ID if name in self.names), None)

    @property
    def r(self) -> str | None:
        """The same of the one that tells partitions apart, or is the second of a key."""
        return next((name for name in R if name in self.names), None)

    @property
    def key(self) -> tuple[str, ...]:
        """Both, where they are there."""
        return tuple(name for name in (self.id, self.r) if name is not None)

    def calling(self, old: str, new: str) -> "Eye":
        """What is seen once a column is called otherwise."""
        return replace(self, columns=tuple(replace(c, name=new) if c.name == old else c for c in self.columns))

    @property
    def names(self) -> frozenset[str]:
        """Names of all columns."""
        return frozenset(c.name for c in self.columns)


def see(connection: psycopg.Connection[Any], schema: str, table: str) -> Eye:
    """Looks; raises psycopg.Error where another session's lock is in the way."""
    given = {"schema": schema, "other": f"{schema}_x", "table": table.strip('"').replace('""', '"')}
    row = connection.execute(SEEN, given).fetchone()
    others = tuple(Other(*other) for other in connection.execute(OTHERS, given).fetchall())
    if row is None:
        return Eye(table, False, others=others)
    kind, identity, persistence, columns, published, at_home, unique, primary = row
    seen = tuple(
        Column(name, type_, of, generated != "", note is not None) for name, type_, of, generated, note in columns or ()
    )
    labels = connection.execute(LABELS, given).fetchone()
    attributes = connection.execute(ATTRIBUTES, given).fetchall()
    eye = Eye(
        table, True, kind, identity, persistence, seen, published, at_home, tuple(unique or ()), primary, others,
        tuple((labels and labels[0]) or ()), tuple(attributes),
    )  # fmt: skip
    if eye.id is None:
        return eye
    ids = connection.execute(f"SELECT {eye.id} FROM {table} ORDER BY 1 LIMIT 40".encode()).fetchall()
    return replace(eye, ids=tuple(i for (i,) in ids if i is not None))
