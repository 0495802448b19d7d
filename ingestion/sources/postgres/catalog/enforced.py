"""Whether a declared key is one, where no index says so.

What is told names the query that shows the rows, never their keys: they may be private, and alerts and assets show it.
"""

from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.postgres.catalog.indexes import enforcing_indexes
from lakehouse.declarations import RawTable
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import typed_ident, typed_relation


def check_key_is_one(connection: SourceConnection, table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem when several rows have one declared key; asked only where no index rules it out."""
    if not table.key or table.raw.changes != "all" or facts.enforced_by:
        return
    if enforcing_indexes(connection, facts.oid, table.key, at_once=False):
        return
    key = ", ".join(map(typed_ident, table.key))
    doubles = f"SELECT {key}, count(*) FROM {typed_relation(*facts.relation)} GROUP BY {key} HAVING count(*) > 1"
    if connection.execute(f"{doubles} LIMIT 1".encode()).fetchone():
        raise TableProblem(
            table.source,
            table.name,
            f"several rows of {table.raw.relation} have one declared key ({', '.join(table.key)}), and the lake would "
            "show one of them: declare a key that tells rows apart, or delete the rows that are too many and add a "
            f"unique index; then `lakehouse ingest --resume {table.source}.{table.name}`; `{doubles}` shows the keys",
        )
