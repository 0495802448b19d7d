"""What a source keeps for the lake, taken back: the slot, the publication, and the rights of the run-time role."""

from collections.abc import Iterator, Sequence

from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.setup.owner import as_owner
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, typed_ident, typed_relation
from lakehouse.text.urls import parse_url

# Rights on the publication's tables and their partitions, of all columns or of some; and on schemas in which the role
# has none on any other relation.
_GRANTED = """
WITH published AS (
  SELECT coalesce(tree.relid, c.oid) AS relid
  FROM pg_publication_tables AS p JOIN pg_namespace AS n ON n.nspname = p.schemaname
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
  LEFT JOIN LATERAL pg_partition_tree(c.oid) AS tree ON c.relkind = 'p'
  WHERE p.pubname = %(publication)s
    AND (%(schema)s::text IS NULL OR (p.schemaname, p.tablename) = (%(schema)s, %(name)s))
), readable AS (
  SELECT c.relnamespace, c.relname, c.oid IN (SELECT relid FROM published) AS is_ours FROM pg_class AS c
  WHERE c.relowner <> %(role)s::regrole AND (
    EXISTS (SELECT FROM aclexplode(c.relacl) AS g WHERE g.grantee = %(role)s::regrole) OR EXISTS (
      SELECT FROM pg_attribute AS a, aclexplode(a.attacl) AS g
      WHERE a.attrelid = c.oid AND g.grantee = %(role)s::regrole))
)
SELECT 'SELECT ON TABLE', n.nspname, r.relname FROM readable AS r JOIN pg_namespace AS n ON n.oid = r.relnamespace
WHERE r.is_ours
UNION ALL
SELECT DISTINCT 'USAGE ON SCHEMA', n.nspname, NULL FROM pg_namespace AS n, aclexplode(n.nspacl) AS g
WHERE g.grantee = %(role)s::regrole AND n.oid IN (SELECT relnamespace FROM readable WHERE is_ours)
 AND n.oid NOT IN (SELECT relnamespace FROM readable WHERE NOT is_ours)
ORDER BY 1, 2, 3
"""
_MEMBER = """
SELECT FROM pg_publication_tables WHERE pubname = %(publication)s AND (schemaname, tablename) = (%(schema)s, %(name)s)
"""
# Who streams the publication by another slot says so in the command that its session runs; a role sees its own ones.
_READERS = """
SELECT s.slot_name FROM pg_replication_slots AS s JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.database = current_database() AND s.slot_name <> %s
  AND position('publication_names' IN a.query) > 0 AND position(%s IN a.query) > 0
ORDER BY 1
"""


def slot_of(settings: Settings, source: str) -> str | None:
    """The slot that the source keeps for this lake; None where it keeps none."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream = store.read_stream(states, source)
    if stream is None:
        return None
    with connect_source(settings, source) as connection:
        return stream.slot if src.read_slot(connection, stream.slot) is not None else None


def drop_slot(settings: Settings, source: str, slot: str) -> None:
    """Drops the slot; raises LakehouseError while somebody ingests the source, or something else reads it.

    The lake keeps its state: whoever ingests the source again has to `--recover` it.
    """
    with store.connect_catalog(settings) as states:
        lease = leases.take_over(states, source, settings.ingestion.lease_seconds)
    with leases.kept_alive(settings, lease), connect_source(settings, source) as connection:
        src.free_slot(connection, source, slot)
        src.drop_slot(connection, slot)


def removal_statements(settings: Settings, source: str, only: tuple[str, str] | None = None) -> list[str]:
    """What the owner has to run, for all that is published or `only` one relation; nothing without a publication, or
    while somebody else reads it.
    """
    configured = settings.source(source)
    role = parse_url(configured.url.get_secret_value()).user
    if other_readers(settings, source):
        return []
    with connect_source(settings, source) as connection:
        return list(_statements(connection, configured.publication, role, only))


def other_readers(settings: Settings, source: str) -> list[str]:
    """The slots by which others stream the source's publication at this moment, such as another lake's follower.

    Without publication or rights they would have to compare every row again.
    """
    configured = settings.source(source)
    slot = configured.slot or f"lakehouse_{source}"
    with connect_source(settings, source) as connection:
        return [found for (found,) in connection.execute(_READERS, (slot, ident(configured.publication))).fetchall()]


def run_as_owner(settings: Settings, source: str, statements: Sequence[str]) -> None:
    """Runs all of them, or none: raises LakehouseError naming what failed."""
    with as_owner(settings, source, "publication and rights could not be taken back, and stay") as owner:
        for statement in statements:
            owner.execute(statement)


def _statements(
    connection: SourceConnection, publication: str, role: str, only: tuple[str, str] | None
) -> Iterator[str]:
    if connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
        return
    schema, name = only or (None, None)
    granted = {"publication": publication, "role": ident(role), "schema": schema, "name": name}
    for right, namespace, relation in connection.execute(_GRANTED, granted).fetchall():
        of = typed_ident(namespace) if relation is None else typed_relation(namespace, relation)
        yield f"REVOKE {right} {of} FROM {typed_ident(role)}"
    if only is None:
        yield f"DROP PUBLICATION {typed_ident(publication)}"
    elif connection.execute(_MEMBER, granted).fetchone() is not None:
        yield f"ALTER PUBLICATION {typed_ident(publication)} DROP TABLE {typed_relation(*only)}"
