"""What the source's catalog says about declared tables, and whether it still says so.

`survey` asks for one fingerprint per table in a single query; only tables whose fingerprint moved are described anew.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.rows import dict_row

from ingestion.schema.facts import ColumnFacts, Leaf, TableFacts, column_facts
from ingestion.schema.problem import TableProblem
from ingestion.sources.postgres.catalog import queries
from ingestion.sources.postgres.catalog.indexes import enforcing_indexes
from ingestion.sources.postgres.catalog.problems import problem_of, problem_of_key, problem_of_leaves
from lakehouse.declarations import RawTable
from lakehouse.servers.database import SourceConnection


def fingerprints(connection: SourceConnection, tables: Iterable[RawTable], publication: str) -> dict[str, str]:
    """By table, a digest of all that `describe` reads; equal digests mean that nothing was altered."""
    wanted = [(table.name, *table.relation) for table in tables]
    given = {name: [row[i] for row in wanted] for i, name in enumerate(("names", "schemas", "tables"))}
    return dict(connection.execute(queries.FINGERPRINTS, given | {"publication": publication}).fetchall())


def describe(connection: SourceConnection, table: RawTable, publication: str) -> TableFacts:
    """Reads a table's facts; raises TableProblem naming what of the declaration the source does not have."""
    facts, problem = read_facts(connection, table, publication)
    if facts is None or problem is not None:
        raise problem or TableProblem(table.source, table.name, "it cannot be described")
    return facts


def read_facts(
    connection: SourceConnection, table: RawTable, publication: str, oid: int | None = None
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
        is_root = relation["relkind"] == "p"
        leaves = cursor.execute(queries.LEAVES, {"oid": relation["oid"]}).fetchall() if is_root else []
        edges = cursor.execute(queries.EDGES, {"oid": relation["oid"]}).fetchall() if is_root else []
    landing = [row for row in rows if _lands(table, row, relation["published_columns"])]
    fields = ColumnFacts.__dataclass_fields__.keys() - {"lake", "mask"}
    columns = tuple(column_facts({field: row[field] for field in fields}) for row in landing)
    hidden = tuple((row["number"], row["name"]) for row in rows if row not in landing)
    facts = TableFacts(
        oid=relation["oid"], filenode=relation["filenode"], relkind=relation["relkind"],
        replica_identity=relation["replica_identity"], key=tuple(relation["key"] or ()), columns=columns,
        relation=(schema, name), is_partition=relation["is_partition"],
        changed_by=relation["changed_by"], member=relation["member"], hidden=hidden,
        leaves=tuple(_leaf(connection, leaf) for leaf in leaves),
        lsn=relation["lsn"], publishes=relation["publishes"],
        attribute_rows=tuple((number, altered_by) for number, altered_by in relation["attribute_rows"] or ()),
        edges=tuple((edge["oid"], edge["attached_by"]) for edge in edges),
        enforced_by=enforcing_indexes(connection, relation["oid"], table.key, at_once=True),
    )  # fmt: skip
    problem = problem or problem_of_leaves(table, facts, relation["publishes_updates"], leaves)
    return facts, problem or problem_of_key(table, facts)


def _lands(table: RawTable, row: dict[str, Any], published: list[str] | None) -> bool:
    is_published = published is None or row["name"] in published
    return row["generated"] == "" and row["name"] not in table.raw.exclude and is_published


def name_of(connection: SourceConnection, oid: int) -> tuple[str, str] | None:
    """The present name of a relation known by its oid, or None when it was dropped."""
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    return (row[0], row[1]) if row else None


def _leaf(connection: SourceConnection, row: Mapping[str, Any]) -> Leaf:
    """One that cannot be asked may have rows: a table that gets it is read anew."""
    has_rows = not row["readable"] or row["relkind"] == "f" or _has_rows(connection, row["name"])
    return Leaf(row["oid"], row["name"], row["filenode"], row["changed_by"], has_rows)


def _has_rows(connection: SourceConnection, quoted: str) -> bool:
    row = connection.execute(f"SELECT EXISTS (SELECT FROM ONLY {quoted})").fetchone()
    return row is not None and bool(row[0])
