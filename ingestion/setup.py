"""Set-up of a source: the statements its owner runs once, for the run-time role to need no more than it has."""

from dataclasses import dataclass

import psycopg

from ingestion.source import connect_source
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.sql import ident, relation
from lakehouse.urls import parse_url

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
        create = f"CREATE PUBLICATION {ident(publication)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
        return [*grants, create]
    missing = [table for table in wanted if table not in existing.published]
    added = [f"ALTER PUBLICATION {ident(publication)} ADD TABLE {relation(*table)}" for table in missing]
    return [*grants, *added]


def prepare(settings: Settings, source: Source) -> tuple[list[str], bool]:
    """The missing set-up statements of a source, run as the owner when its URL is set.

    Returns the statements and whether they were run. Raises LakehouseError naming the statement that failed.
    """
    configured = settings.source(source.name)
    role = parse_url(configured.url.get_secret_value()).user
    statements = setup_statements(source, configured.publication, role, _existing(settings, source))
    if configured.owner_url is None:
        return statements, False
    try:
        with psycopg.connect(configured.owner_url.get_secret_value()) as owner:
            for table in source.tables:
                _check_exists(owner, table)
            for statement in statements:
                owner.execute(statement)
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise LakehouseError(
            f"source {source.name!r}: set-up as the owner failed and was rolled back: {reason}"
        ) from None
    return statements, True


def _existing(settings: Settings, source: Source) -> Existing:
    publication = settings.source(source.name).publication
    with connect_source(settings, source.name) as connection:
        leaves = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class root JOIN pg_namespace rn ON rn.oid = root.relnamespace"
            " CROSS JOIN LATERAL pg_partition_tree(root.oid) t JOIN pg_class c ON c.oid = t.relid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE root.relkind = 'p' AND t.isleaf AND rn.nspname || '.' || root.relname = ANY(%s) ORDER BY 1, 2",
            ([".".join(table.relation) for table in source.tables],),
        ).fetchall()
        partitions = tuple((schema, name) for schema, name in leaves)
        if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
            return Existing(None, partitions)
        rows = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (publication,)
        ).fetchall()
    return Existing(frozenset((schema, table) for schema, table in rows), partitions)


def _check_exists(owner: psycopg.Connection, table: RawTable) -> None:
    if owner.execute("SELECT to_regclass(%s)", (relation(*table.relation),)).fetchone() == (None,):
        raise LakehouseError(
            f"source {table.source!r}, table {table.name!r}: relation {table.raw.relation} does not exist: "
            "correct meta.raw.relation of the declaration"
        )
