"""The statements that a source's owner runs once, for the run-time role to need no more than it has."""

from dataclasses import dataclass

from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup.identities import publishes
from ingestion.sources.postgres.setup.owner import Statement
from ingestion.sources.postgres.setup.relations import Stored, read_stored
from ingestion.sources.postgres.setup.rights import granting, tightening
from lakehouse.declarations import Source
from lakehouse.settings import Settings
from lakehouse.text.sql import typed_ident as ident
from lakehouse.text.sql import typed_relation as relation

Relation = tuple[str, str]


@dataclass(frozen=True)
class Existing:
    """What the source has: the publication's tables (None without a publication), and the relations to read."""

    published: frozenset[Relation] | None
    stored: tuple[Stored, ...] = ()

    @property
    def partitions(self) -> tuple[Relation, ...]:
        """By schema and name."""
        leaves = [item for item in self.stored if item.root_kind == "p"]
        return tuple(sorted((item.schema, item.name) for item in leaves if item.schema and item.name))


def setup_statements(
    source: Source, publication: str, role: str, existing: Existing, *, revoke: bool = False
) -> list[str]:
    """The text of `setup_steps`, for an owner to paste. Pure."""
    return [step.sql for step in setup_steps(source, publication, role, existing, revoke=revoke)]


def setup_steps(
    source: Source, publication: str, role: str, existing: Existing, *, revoke: bool = False
) -> list[Statement]:
    """The set-up DDL: rights (granting them twice changes nothing), and what the publication lacks. Pure.

    `revoke` takes excluded columns from a role that may read them.
    """
    wanted = [table.relation for table in source.tables]
    schemas = sorted({schema for schema, _ in (*wanted, *existing.partitions)})
    grants = [Statement(f"GRANT USAGE ON SCHEMA {ident(schema)} TO {ident(role)}", (), schema) for schema in schemas]
    for table in source.tables:
        tighter = list(tightening(table, existing.stored, role)) if revoke else []
        grants += tighter or granting(table, existing.stored, role)
    if existing.published is None:
        listed = ", ".join(relation(*named) for named in wanted)
        options = "publish_via_partition_root = true"
        if not publishes(source.tables).updates:
            options += ", publish = 'insert, truncate'"
        about = tuple((table.name, relation(*table.relation)) for table in source.tables)
        created = f"CREATE PUBLICATION {ident(publication)} FOR TABLE {listed} WITH ({options})"
        return [*grants, Statement(created, about)]
    missing = [
        (table.name, relation(*table.relation)) for table in source.tables if table.relation not in existing.published
    ]
    add = f"ALTER PUBLICATION {ident(publication)} ADD TABLE"
    return [*grants, *(Statement(f"{add} {named[1]}", (named,)) for named in missing)]


def existing(settings: Settings, source: Source) -> Existing:
    """What the source has now."""
    publication = settings.source(source.name).publication
    with connect_source(settings, source.name) as connection:
        stored = tuple(read_stored(connection, source.tables))
        if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
            return Existing(None, stored)
        rows = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (publication,)
        ).fetchall()
    return Existing(frozenset((schema, table) for schema, table in rows), stored)
