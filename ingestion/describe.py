"""What the source's catalog says about a declared table, compared with its declaration."""

from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

_RELATION = """
SELECT c.oid::bigint AS oid, c.relkind, c.relreplident AS replica_identity,
  pg_relation_filenode(c.oid)::bigint AS filenode,
  has_table_privilege(c.oid, 'SELECT') AS readable,
  EXISTS (SELECT FROM pg_publication_tables p
          WHERE p.pubname = %(publication)s AND p.schemaname = n.nspname AND p.tablename = c.relname) AS published
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
"""

# A domain is followed to its base type here: the stream names only the base type and forgets the domain's precision.
_COLUMNS = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname, a.attgenerated, a.atttypmod AS typmod, a.atttypid AS typid,
         a.atttypmod AS stream_typmod, a.atttypid AS stream_oid,
         format_type(a.atttypid, a.atttypmod) AS declared_type
  FROM pg_attribute a WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT b.attnum, b.attname, b.attgenerated,
         CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END, t.typbasetype,
         b.stream_typmod, b.stream_oid, b.declared_type
  FROM base b JOIN pg_type t ON t.oid = b.typid WHERE t.typtype = 'd')
SELECT b.attname AS name, b.attnum AS number, b.attgenerated AS generated, b.declared_type,
  b.stream_oid::bigint AS stream_oid, b.stream_typmod,
  t.oid::bigint AS type_oid, t.typname AS type_name, t.typtype AS type_kind, b.typmod,
  quote_ident(pn.nspname) || '.' || quote_ident(p.proname) AS output_function
FROM base b JOIN pg_type t ON t.oid = b.typid JOIN pg_proc p ON p.oid = t.typoutput
JOIN pg_namespace pn ON pn.oid = p.pronamespace
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""

_KEY = """
SELECT a.attname FROM pg_index i
JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, place) ON true
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(oid)s AND CASE WHEN %(identity)s = 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
"""


@dataclass(frozen=True)
class ColumnFacts:
    """A published column: its base type behind any domain, and the type that the stream names."""

    name: str
    number: int
    declared_type: str
    type_oid: int
    type_name: str
    type_kind: str
    typmod: int
    stream_oid: int
    stream_typmod: int
    output_function: str


@dataclass(frozen=True)
class TableFacts:
    """A table as the source has it now, in the columns that are published and not excluded."""

    oid: int
    filenode: int | None
    relkind: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[ColumnFacts, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `facts_from_json` reads back."""
        return asdict(self)


def facts_from_json(stored: dict[str, Any]) -> TableFacts:
    """The facts that were kept with the table's position."""
    columns = tuple(ColumnFacts(**column) for column in stored["columns"])
    return TableFacts(**(stored | {"columns": columns, "key": tuple(stored["key"])}))


def describe(connection: psycopg.Connection[Any], table: RawTable, publication: str) -> TableFacts:
    """Reads a table's facts; raises LakehouseError naming what of the declaration the source does not have."""
    schema, name = table.relation
    with connection.cursor(row_factory=dict_row) as cursor:
        relation = cursor.execute(_RELATION, {"schema": schema, "table": name, "publication": publication}).fetchone()
        _check_relation(table, relation, publication)
        assert relation is not None
        rows = cursor.execute(_COLUMNS, {"oid": relation["oid"]}).fetchall()
        identity = relation["replica_identity"]
        key = cursor.execute(_KEY, {"oid": relation["oid"], "identity": identity}).fetchall()
    _check_columns(table, {row["name"] for row in rows})
    columns = tuple(
        ColumnFacts(**{field: row[field] for field in ColumnFacts.__dataclass_fields__})
        for row in rows
        if row["generated"] == "" and row["name"] not in table.raw.exclude
    )
    facts = TableFacts(
        oid=relation["oid"], filenode=relation["filenode"], relkind=relation["relkind"], replica_identity=identity,
        key=tuple(row["attname"] for row in key), columns=columns,
    )  # fmt: skip
    _check_key(table, facts)
    return facts


def _check_relation(table: RawTable, relation: dict[str, Any] | None, publication: str) -> None:
    where = f"source {table.source!r}, table {table.name!r}"
    if relation is None:
        raise LakehouseError(
            f"{where}: relation {table.raw.relation} does not exist: correct meta.raw.relation of the declaration"
        )
    if not relation["readable"]:
        raise LakehouseError(
            f"{where}: no SELECT right on {table.raw.relation}: run `lakehouse prepare {table.source}`"
        )
    if not relation["published"]:
        raise LakehouseError(
            f"{where}: {table.raw.relation} is not in publication {publication!r}: "
            f"run `lakehouse prepare {table.source}`"
        )
    if relation["replica_identity"] == "n":
        raise LakehouseError(
            f"{where}: REPLICA IDENTITY NOTHING makes updates of a published table fail in the source: "
            f"set REPLICA IDENTITY DEFAULT or FULL"
        )


def _check_columns(table: RawTable, existing: set[str]) -> None:
    declared = {column.name for column in table.columns}
    if missing := sorted((declared | set(table.key)) - existing):
        raise LakehouseError(
            f"source {table.source!r}, table {table.name!r}: declared column {', '.join(missing)} does not exist in "
            f"{table.raw.relation}, which has {', '.join(sorted(existing))}"
        )


def _check_key(table: RawTable, facts: TableFacts) -> None:
    if facts.replica_identity == "f" or not table.key:
        return
    if set(table.key) - set(facts.key):
        raise LakehouseError(
            f"source {table.source!r}, table {table.name!r}: declared key ({', '.join(table.key)}) is not within the "
            f"replica identity ({', '.join(facts.key) or 'none'}): declare that key, or set REPLICA IDENTITY FULL"
        )
