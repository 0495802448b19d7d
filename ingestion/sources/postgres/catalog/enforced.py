"""Whether a declared key is one, where no index says so."""

from psycopg import sql

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.postgres.catalog.indexes import enforcing_indexes
from lakehouse.declarations import RawTable
from lakehouse.servers.database import SourceConnection

SHOWN = 3


def check_key_is_one(connection: SourceConnection, table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when several rows have one declared key; asked only where no index rules it out."""
    if not table.key or table.raw.changes != "all" or facts.enforced_by:
        return
    if enforcing_indexes(connection, facts.oid, table.key, at_once=False):
        return
    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
    found = connection.execute(
        sql.SQL("SELECT ROW({key})::text FROM {table} GROUP BY {key} HAVING count(*) > 1 LIMIT {shown}").format(
            key=key, table=sql.Identifier(*facts.relation), shown=sql.Literal(SHOWN)
        )
    ).fetchall()
    if found:
        shown = ", ".join(values for (values,) in found)
        raise TableProblem(
            table.source,
            table.name,
            f"several rows of {table.raw.relation} have one declared "
            f"key ({', '.join(table.key)}) {shown}, and the lake would show one of them: declare a key that tells rows "
            "apart, or delete the rows that are too many and add a unique index; then "
            f"`lakehouse ingest --resume {table.source}.{table.name}`",
        )
