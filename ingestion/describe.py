"""What the source's catalog says about declared tables, and whether it still says so.

`survey` asks for one fingerprint per table in a single query; only tables whose fingerprint moved are described anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ingestion import describe_queries as queries
from ingestion.problems import TableProblem as TableProblem
from ingestion.problems import problem_of, problem_of_key, problem_of_leaves
from ingestion.shared_keys.indexes import enforcing_indexes
from lakehouse.declarations import RawTable
from lakehouse.sql import ident
from lakehouse.stored import known_fields


@dataclass(frozen=True)
class ColumnFacts:
    """A published column: its base type behind any domain, the type that the stream names, its name in the lake.

    `prints` is what of the type's definition decides how values print: labels by the oids of enums' values, attributes
    by those of composites, and what tells of an alteration that was taken back. Descriptions of earlier versions have
    None there. `has_default_for_earlier_rows` holds for a partitioned table when it does for one of its partitions.
    """

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
    has_default_for_earlier_rows: bool = False
    lake: str = ""
    prints: tuple[tuple[str, str], ...] | None = None

    @property
    def printed(self) -> str:
        """SQL for the column's values as their type's output function prints them, which is what the stream carries.

        A cast to text is not the same: it strips the padding of char(n) and spells booleans and addresses differently.
        """
        return f"pg_catalog.textin({self.output_function}({ident(self.name)}))"


@dataclass(frozen=True)
class Leaf:
    """A partition that holds rows itself; `changed_by` is the transaction that last wrote its pg_class row."""

    oid: int
    name: str
    filenode: int
    changed_by: int
    has_rows: bool = True


@dataclass(frozen=True)
class TableFacts:
    """A table as the source has it, in the columns that are published and not excluded.

    `member` is the oid of its membership in the publication (0: published otherwise), `publishes` what the publication
    says beside that, `hidden` are number and name of the columns that do not land, `gone` the raw table's columns that
    the source has no more, `lsn` is a position at which the table surely was as described: what the stream carries from
    there on is of this form or a newer one. `edges` are the oid of each partition below the root and the transaction
    that attached it, `attribute_rows` the number of every column there ever was and the transaction that last altered
    it; descriptions of earlier versions have None there. `enforced_by` are the oids of unique indexes that keep every
    row from another one's declared key at once; a description of an earlier version names none.
    """

    oid: int
    filenode: int | None
    relkind: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[ColumnFacts, ...]
    relation: tuple[str, str] = ("", "")
    changed_by: int = 0
    member: int = 0
    leaves: tuple[Leaf, ...] = ()
    hidden: tuple[tuple[int, str], ...] = ()
    lsn: int = 0
    publishes: str = ""
    gone: tuple[str, ...] = ()
    edges: tuple[tuple[int, int], ...] | None = None
    enforced_by: tuple[int, ...] = ()
    attribute_rows: tuple[tuple[int, int], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `facts_from_json` reads back."""
        return asdict(self)


def facts_from_json(stored: Mapping[str, Any]) -> TableFacts:
    """The facts that were kept with the table's position."""
    columns = tuple(_column_facts(column) for column in stored["columns"])
    leaves = tuple(Leaf(**known_fields(Leaf, leaf)) for leaf in stored.get("leaves", ()))
    hidden = tuple((number, name) for number, name in stored.get("hidden", ()))
    edges = None if stored.get("edges") is None else tuple((oid, attached_by) for oid, attached_by in stored["edges"])
    rows = stored.get("attribute_rows")
    attribute_rows = None if rows is None else tuple((number, altered_by) for number, altered_by in rows)
    lists = {name: tuple(stored[name]) for name in ("key", "relation", "gone", "enforced_by") if name in stored}
    nested = {"columns": columns, "leaves": leaves, "hidden": hidden, "edges": edges, "attribute_rows": attribute_rows}
    return TableFacts(**(known_fields(TableFacts, stored) | lists | nested))


def _column_facts(given: Mapping[str, Any]) -> ColumnFacts:
    prints = given.get("prints")
    printed = None if prints is None else tuple((part, says) for part, says in prints)
    return ColumnFacts(**known_fields(ColumnFacts, given) | {"prints": printed})


def fingerprints(connection: psycopg.Connection[Any], tables: Iterable[RawTable], publication: str) -> dict[str, str]:
    """By table, a digest of all that `describe` reads; equal digests mean that nothing was altered."""
    names, schemas, relations = zip(*((t.name, *t.relation) for t in tables), strict=True)
    given = {"names": list(names), "schemas": list(schemas), "tables": list(relations), "publication": publication}
    return dict(connection.execute(queries.FINGERPRINTS, given).fetchall())


def describe(connection: psycopg.Connection[Any], table: RawTable, publication: str) -> TableFacts:
    """Reads a table's facts; raises TableProblem naming what of the declaration the source does not have."""
    facts, problem = read_facts(connection, table, publication)
    if facts is None or problem is not None:
        raise problem or TableProblem(f"source {table.source!r}, table {table.name!r}: it cannot be described")
    return facts


def read_facts(
    connection: psycopg.Connection[Any], table: RawTable, publication: str, oid: int | None = None
) -> tuple[TableFacts | None, TableProblem | None]:
    """Reads a table's facts, and what is in the way of it; `oid` finds it where it is not called as declared."""
    schema, name = table.relation
    with connection.cursor(row_factory=dict_row) as cursor:
        relation = cursor.execute(
            queries.RELATION, {"schema": schema, "table": name, "publication": publication}
        ).fetchone()
        problem = problem_of(table, relation, publication)
        if relation is None and oid is not None and (now := name_of(connection, oid)) is not None:
            schema, name = now
            relation = cursor.execute(
                queries.RELATION, {"schema": schema, "table": name, "publication": publication}
            ).fetchone()
        if relation is None:
            return None, problem
        rows = cursor.execute(queries.COLUMNS, {"oid": relation["oid"]}).fetchall()
        identity = relation["replica_identity"]
        key = cursor.execute(queries.KEY, {"oid": relation["oid"], "identity": identity}).fetchall()
        is_root = relation["relkind"] == "p"
        leaves = cursor.execute(queries.LEAVES, {"oid": relation["oid"]}).fetchall() if is_root else []
        edges = cursor.execute(queries.EDGES, {"oid": relation["oid"]}).fetchall() if is_root else []
    problem = problem or problem_of_leaves(table, relation["publishes_updates"], leaves)
    landing = [row for row in rows if _lands(table, row, relation["published_columns"])]
    fields = ColumnFacts.__dataclass_fields__.keys() - {"lake"}
    columns = tuple(_column_facts({field: row[field] for field in fields}) for row in landing)
    hidden = tuple((row["number"], row["name"]) for row in rows if row not in landing)
    facts = TableFacts(
        oid=relation["oid"], filenode=relation["filenode"], relkind=relation["relkind"], replica_identity=identity,
        key=tuple(row["attname"] for row in key), columns=columns, relation=(schema, name),
        changed_by=relation["changed_by"], member=relation["member"], hidden=hidden,
        leaves=tuple(_leaf(connection, leaf) for leaf in leaves),
        lsn=relation["lsn"], publishes=relation["publishes"],
        attribute_rows=tuple((number, altered_by) for number, altered_by in relation["attribute_rows"] or ()),
        edges=tuple((edge["oid"], edge["attached_by"]) for edge in edges),
        enforced_by=enforcing_indexes(connection, relation["oid"], table.key, at_once=True),
    )  # fmt: skip
    return facts, problem or problem_of_key(table, facts.replica_identity, facts.key, {row["name"] for row in rows})


def _lands(table: RawTable, row: dict[str, Any], published: list[str] | None) -> bool:
    is_published = published is None or row["name"] in published
    return row["generated"] == "" and row["name"] not in table.raw.exclude and is_published


def name_of(connection: psycopg.Connection[Any], oid: int) -> tuple[str, str] | None:
    """The present name of a relation known by its oid, or None when it was dropped."""
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    return (row[0], row[1]) if row else None


def check_columns(table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when a declared column does not arrive; `facts` know the columns' names in the lake.

    One that is to be left out has to be there too: misspelt, or made again under another name, it would land.
    """
    where = f"source {table.source!r}, table {table.name!r}"
    arriving = {column.lake for column in facts.columns}
    declared = {column.name for column in table.columns} - set(table.raw.exclude)
    if missing := sorted(name for name in declared if table.raw.alias.get(name, name) not in arriving):
        raise TableProblem(
            f"{where}: declared column {', '.join(missing)} does not exist in "
            f"{table.raw.relation}, which has {', '.join(sorted(c.name for c in facts.columns))}: correct it"
        )
    existing = {column.name for column in facts.columns} | {name for _, name in facts.hidden}
    if unknown := sorted(set(table.raw.exclude) - existing):
        raise TableProblem(
            f"{where}: meta.raw.exclude names {', '.join(unknown)}, which does not exist in {table.raw.relation}; it "
            f"has {', '.join(sorted(existing))}: correct it"
        )


def _leaf(connection: psycopg.Connection[Any], row: Mapping[str, Any]) -> Leaf:
    has_rows = not row["readable"] or row["relkind"] == "f" or _has_rows(connection, row["name"])
    return Leaf(row["oid"], row["name"], row["filenode"], row["changed_by"], has_rows)


def _has_rows(connection: psycopg.Connection[Any], quoted: str) -> bool:
    row = connection.execute(f"SELECT EXISTS (SELECT FROM ONLY {quoted})").fetchone()
    return row is not None and bool(row[0])
