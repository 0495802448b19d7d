"""The statements that a source's owner runs once, for the run-time role to need no more than it has."""

from dataclasses import dataclass

from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup.identities import publishes
from lakehouse.declarations import Source
from lakehouse.settings import Settings
from lakehouse.text.sql import typed_ident as ident
from lakehouse.text.sql import typed_relation as relation

Relation = tuple[str, str]


@dataclass(frozen=True)
class Existing:
    """What the source has: the publication's tables (None without a publication) and the partitions to read."""

    published: frozenset[Relation] | None
    partitions: tuple[Relation, ...] = ()


def setup_statements(source: Source, publication: str, role: str, existing: Existing) -> list[str]:
    """The set-up DDL: rights (granting them twice changes nothing), and what the publication lacks. Pure."""
    wanted = [table.relation for table in source.tables]
    readable = [*wanted, *existing.partitions]  # a snapshot reads partitions one by one
    grants = [f"GRANT USAGE ON SCHEMA {ident(schema)} TO {ident(role)}" for schema in sorted({s for s, _ in readable})]
    grants += [f"GRANT SELECT ON {relation(*table)} TO {ident(role)}" for table in readable]
    if existing.published is None:
        listed = ", ".join(relation(*table) for table in wanted)
        options = "publish_via_partition_root = true"
        if not publishes(source.tables).updates:
            options += ", publish = 'insert, truncate'"
        return [*grants, f"CREATE PUBLICATION {ident(publication)} FOR TABLE {listed} WITH ({options})"]
    missing = [table for table in wanted if table not in existing.published]
    added = [f"ALTER PUBLICATION {ident(publication)} ADD TABLE {relation(*table)}" for table in missing]
    return [*grants, *added]


def existing(settings: Settings, source: Source) -> Existing:
    """What the source has now."""
    publication = settings.source(source.name).publication
    with connect_source(settings, source.name) as connection:
        leaves = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class root JOIN pg_namespace rn ON rn.oid = root.relnamespace"
            " CROSS JOIN LATERAL pg_partition_tree(root.oid) t JOIN pg_class c ON c.oid = t.relid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON w.schema = rn.nspname AND w.name = root.relname"
            " WHERE root.relkind = 'p' AND t.isleaf ORDER BY 1, 2",
            tuple(map(list, zip(*(table.relation for table in source.tables), strict=True))),
        ).fetchall()
        partitions = tuple((schema, name) for schema, name in leaves)
        if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
            return Existing(None, partitions)
        rows = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (publication,)
        ).fetchall()
    return Existing(frozenset((schema, table) for schema, table in rows), partitions)
