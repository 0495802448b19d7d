"""What was given to the lake in a source, tables of publications and rights of its role, and what takes it back."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import ident, typed_ident, typed_relation

Relation = tuple[str, str]

# Each relation that a publication carries, with its partitions; those that are not listed come with schema or database.
_CARRIED = """
WITH member AS (
  SELECT p.pubname, r.prrelid AS relid FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
  UNION SELECT p.pubname, c.oid FROM pg_publication_tables AS p JOIN pg_namespace AS n ON n.nspname = p.schemaname
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
)
SELECT m.pubname, n.nspname, c.relname, coalesce(tree.relid::oid, m.relid), EXISTS (
  SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
  WHERE p.pubname = m.pubname AND r.prrelid = m.relid)
FROM member AS m JOIN pg_class AS c ON c.oid = m.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN LATERAL pg_partition_tree(c.oid) AS tree ON c.relkind = 'p'
"""
_READABLE = """
SELECT c.oid, n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relowner <> %(role)s::regrole AND (
  EXISTS (SELECT FROM aclexplode(c.relacl) AS g WHERE g.grantee = %(role)s::regrole) OR EXISTS (
    SELECT FROM pg_attribute AS a, aclexplode(a.attacl) AS g
    WHERE a.attrelid = c.oid AND g.grantee = %(role)s::regrole))
"""
_USABLE = "SELECT nspname FROM pg_namespace AS n, aclexplode(n.nspacl) AS g WHERE g.grantee = %(role)s::regrole"


@dataclass(frozen=True)
class Carried:
    """A relation that a publication carries as, or as a partition of, `member`; `listed` if it names that itself."""

    publication: str
    member: Relation
    oid: int
    listed: bool = True


@dataclass(frozen=True)
class Given:
    """What all publications of a database carry; on which relations, by oid, and schemas the role has rights."""

    carried: frozenset[Carried]
    readable: dict[int, Relation]
    schemas: frozenset[str]


def read_given(connection: SourceConnection, role: str) -> Given:
    """Reads it from the source's catalog."""
    carried = connection.execute(_CARRIED).fetchall()
    readable = connection.execute(_READABLE, {"role": ident(role)}).fetchall()
    schemas = connection.execute(_USABLE, {"role": ident(role)}).fetchall()
    return Given(
        frozenset(Carried(name, (schema, table), oid, listed) for name, schema, table, oid, listed in carried),
        {oid: (schema, name) for oid, schema, name in readable},
        frozenset(schema for (schema,) in schemas),
    )


def taking_back(
    given: Given, publication: str, role: str, ours: Collection[Relation] | None, *, whole: bool
) -> Iterator[str]:
    """The statements that take `ours` (None: all) out of the publication, and from the role. Pure.

    Relations that another publication carries as well keep their rights; a schema does while the role may read
    another relation in it. A `whole` publication is dropped if it carries nothing else.
    """
    mine = _mine(given, publication, ours)
    others = {one.oid for one in given.carried if one.publication != publication}
    goes = {oid for oid in given.readable.keys() & {one.oid for one in mine} if oid not in others}
    for relation in sorted(given.readable[oid] for oid in goes):
        yield f"REVOKE SELECT ON TABLE {typed_relation(*relation)} FROM {typed_ident(role)}"
    read_still = {schema for oid, (schema, _) in given.readable.items() if oid not in goes}
    for schema in sorted(({given.readable[oid][0] for oid in goes} - read_still) & given.schemas):
        yield f"REVOKE USAGE ON SCHEMA {typed_ident(schema)} FROM {typed_ident(role)}"
    if whole and not of_others(given, publication, ours):
        yield f"DROP PUBLICATION {typed_ident(publication)}"
        return
    for member in sorted({one.member for one in mine if one.listed}):
        yield f"ALTER PUBLICATION {typed_ident(publication)} DROP TABLE {typed_relation(*member)}"


def of_others(given: Given, publication: str, ours: Collection[Relation] | None) -> list[Relation]:
    """What the publication carries beside `ours` and their partitions. Pure."""
    mine = {one.oid for one in _mine(given, publication, ours)}
    return sorted({one.member for one in given.carried if one.publication == publication and one.oid not in mine})


def of_nobody(given: Given, publication: str, known: Collection[Relation]) -> list[Relation]:
    """The tables that the publication lists and that are none of the known ones, nor partitions of these. Pure."""
    listed = {one.member for one in given.carried if one.publication == publication and one.listed}
    return [relation for relation in of_others(given, publication, known) if relation in listed]


def readable_still(given: Given, known: Collection[Relation]) -> list[Relation]:
    """What the role has rights on, and no publication carries, beside the known ones. Pure."""
    carried = {one.oid for one in given.carried}
    return sorted({named for oid, named in given.readable.items() if oid not in carried and named not in known})


def carried_too(given: Given, publication: str, ours: Collection[Relation] | None) -> list[str]:
    """The other publications that carry something of `ours` which the role may read. Pure."""
    mine = {one.oid for one in _mine(given, publication, ours)} & given.readable.keys()
    return sorted({one.publication for one in given.carried if one.publication != publication and one.oid in mine})


def _mine(given: Given, publication: str, ours: Collection[Relation] | None) -> set[Carried]:
    return {one for one in given.carried if one.publication == publication and (ours is None or one.member in ours)}
