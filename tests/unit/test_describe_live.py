"""What the source's catalog says of types that a user made, asked of a real Postgres 18."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pgoutput_record import scratch_database
from throwaway_postgres import throwaway_postgres

from ingestion.describe import describe, fingerprints
from ingestion.evolve import doubt, name_columns
from lakehouse.declarations import RawTable
from lakehouse.policies import LoadPolicy, RawPolicy
from scaffold.propose import _read

pytestmark = pytest.mark.stack
TABLE = RawTable(
    source="shop", name="items", description="", columns=(), raw=RawPolicy(relation="public.items", key=("id",)),
    load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b mood);
CREATE TYPE span AS RANGE (subtype = mood);
CREATE DOMAIN moods AS mood[];
CREATE DOMAIN price AS numeric(8,2);
CREATE DOMAIN dear AS price CHECK (VALUE > 1);
CREATE DOMAIN image AS bytea;
CREATE TABLE items (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE items
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with throwaway_postgres() as url:
        yield url


@pytest.fixture
def connection(server: str) -> Iterator[psycopg.Connection[Any]]:
    with scratch_database(server) as database, psycopg.connect(database, autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            connection.execute(statement)
        yield connection


@pytest.mark.parametrize(
    ("kind", "alter", "in_doubt"),
    [
        *((kind, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", True)
          for kind in ("mood", "mood[]", "moods", "pair", "pair[]", "span", "span_multirange")),
        ("mood", "ALTER TYPE mood ADD VALUE 'calm' BEFORE 'happy'", False),
        ("pair", "ALTER TYPE pair ADD ATTRIBUTE c int", True),
        ("pair", "ALTER TYPE pair DROP ATTRIBUTE a", True),
        ("pair", "ALTER TYPE pair RENAME ATTRIBUTE a TO z", False),
        ("cidr", "ALTER TABLE items ALTER v TYPE inet", True),
        ("int", "ALTER TABLE items ALTER v TYPE oid", True),
        ("varchar(5)", "ALTER TABLE items ALTER v TYPE text", False),
        ("varchar(5)", "ALTER TABLE items ALTER v TYPE varchar(9)", False),
        ("dear", "ALTER DOMAIN dear ADD CHECK (VALUE < 100)", False),
    ],
)  # fmt: skip
def test_a_type_that_is_altered_without_a_rewrite_is_noticed(
    connection: psycopg.Connection[Any], kind: str, alter: str, in_doubt: bool
) -> None:
    connection.execute(f"ALTER TABLE items ADD v {kind}")
    before, digest = name_columns(TABLE, None, describe(connection, TABLE, "p")), fingerprints(connection, [TABLE], "p")
    assert fingerprints(connection, [TABLE], "p") == digest
    connection.execute(alter)
    now = name_columns(TABLE, before, describe(connection, TABLE, "p"))
    assert now.filenode == before.filenode, "nothing was rewritten"
    assert (doubt(before, now) is not None) == in_doubt
    assert (fingerprints(connection, [TABLE], "p") != digest) >= in_doubt


def test_a_label_that_came_later_is_known_too(connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE items ADD v mood")
    connection.execute("ALTER TYPE mood ADD VALUE 'calm'")
    before, digest = name_columns(TABLE, None, describe(connection, TABLE, "p")), fingerprints(connection, [TABLE], "p")
    connection.execute("ALTER TYPE mood RENAME VALUE 'calm' TO 'easy'")
    assert fingerprints(connection, [TABLE], "p") != digest
    assert doubt(before, name_columns(TABLE, before, describe(connection, TABLE, "p")))


def test_a_domain_is_proposed_as_its_base_type(connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE items ADD a dear, ADD b image, ADD c moods, ADD d varchar(3), ADD e mood")
    connection.execute("COMMENT ON COLUMN items.a IS 'What it costs.'")
    (found,) = _read(connection, "public")
    assert found.columns == (
        ("id", "integer", ""), ("a", "numeric(8,2)", "What it costs."), ("b", "bytea", ""), ("c", "mood[]", ""),
        ("d", "character varying(3)", ""), ("e", "mood", ""),
    )  # fmt: skip
