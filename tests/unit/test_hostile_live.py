"""SQL made of names and values of a hostile database, run by a real Postgres 18; the oracle is what was put into it."""

from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
import yaml
from pgoutput_record import scratch_database
from pydantic import SecretStr
from pyiceberg.types import StringType
from throwaway_postgres import throwaway_postgres

from erasure.subjects import as_printed, held_by_source
from ingestion.schema.compared import ComparedColumn, KeyRange
from ingestion.schema.facts import TableFacts
from ingestion.sources.postgres.catalog.describe import describe
from ingestion.sources.postgres.catalog.enforced import check_key_is_one
from ingestion.sources.postgres.comparison import canonical, digest_sql, key_bounds, rows_sql
from ingestion.sources.postgres.connection import source_url
from ingestion.sources.postgres.setup import Existing, existing, prepare, setup_statements
from ingestion.sources.postgres.setup.relations import read_stored
from ingestion.sources.postgres.snapshot import ordered_rows, plan_chunks, select_sql
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.settings import Settings, SourceSettings
from lakehouse.text.shown import visible
from lakehouse.text.sql import ident, literal, relation, typed_ident
from scaffold.propose import proposal, read_tables
from tests.hostile import names
from tests.hostile_database import Hostile, create, tables
from tests.world import declared_source

pytestmark = pytest.mark.stack
ODD = names(3, 400)
TABLES = tables(5, 12)
SHOP = Source(name="shop", description="", load=LoadPolicy(), tables=tuple(table.declared() for table in TABLES))
ROLE = 'runs; "it"\n%s'


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Of the hostile database, with a role that has no rights yet."""
    with throwaway_postgres() as url, scratch_database(url) as database:
        with psycopg.connect(database, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {ident(ROLE)} LOGIN REPLICATION".encode())
            owner.execute("CREATE TABLE kept (id int)")
            create(owner, TABLES)
        at = psycopg.conninfo.conninfo_to_dict(database)
        place = f"{at['host']}:{at['port']}/{at['dbname']}"
        role = "runs%3B%20%22it%22%0A%25s"
        shop = SourceSettings(
            url=SecretStr(f"postgresql://{role}:x@{place}"), owner_url=SecretStr(f"postgresql://postgres:x@{place}")
        )
        found = Settings(sources={"shop": shop})
        with psycopg.connect(owner_url(found), autocommit=True) as owner:
            _, done = prepare(found, SHOP)
            assert done
            yield found
            assert owner.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def owner_url(settings: Settings) -> str:
    url = settings.source("shop").owner_url
    assert url is not None
    return url.get_secret_value()


@pytest.fixture
def source(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """As the run-time role, with what it pins."""
    with psycopg.connect(source_url(settings.source("shop")), autocommit=True) as connection:
        yield connection


def facts_of(source: psycopg.Connection[Any], table: Hostile) -> TableFacts:
    return describe(source, table.declared(), "lakehouse")


def compared(facts: TableFacts) -> list[ComparedColumn]:
    return [ComparedColumn(column, StringType(), None) for column in facts.columns]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.lake)
def test_a_snapshot_reads_every_value_as_it_is(source: psycopg.Connection[Any], table: Hostile) -> None:
    facts = facts_of(source, table)
    assert [column.name for column in facts.columns] == [name for name, _ in table.columns]
    [chunk] = plan_chunks(source, "shop", facts, 1 << 20)
    assert sorted(source.execute(select_sql(facts, chunk).encode()).fetchall()) == sorted(table.rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.lake)
def test_a_comparison_reads_every_value_as_it_is(source: psycopg.Connection[Any], table: Hostile) -> None:
    facts = facts_of(source, table)
    [chunk], columns = plan_chunks(source, "shop", facts, 1 << 20), compared(facts)
    key = columns[:2]
    digests = source.execute(digest_sql(columns, key, chunk, []).encode()).fetchall()
    assert sum(row[1] for row in digests) == len(table.rows)
    shown = [canonical(column) for column in columns]
    found = source.execute(rows_sql(columns, key, shown, chunk, [], [row[0] for row in digests]).encode()).fetchall()
    assert sorted(row[2:] for row in found) == sorted(table.rows)
    source.execute("BEGIN")
    in_order = ordered_rows(cast(Any, source), facts.relation, facts.columns, [(c, "bytes") for c in facts.columns[:2]])
    assert sorted(in_order) == sorted(table.rows)
    source.execute("ROLLBACK")
    check_key_is_one(source, table.declared(), facts)
    for first, *_ in table.rows:
        conditions, _ = key_bounds(cast(Any, source), facts, columns[0], KeyRange(first, None), "here")
        statement = rows_sql(columns, key, shown, chunk, conditions, None)
        expected = [row for row in table.rows if row[0].encode() >= first.encode()]  # type: ignore[union-attr]
        assert sorted(row[2:] for row in source.execute(statement.encode())) == sorted(expected)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.lake)
def test_an_erasure_asks_for_the_subject_and_nobody_else(source: psycopg.Connection[Any], table: Hostile) -> None:
    """A `%` in the name of a column or a type was taken for a placeholder."""
    facts, declared = facts_of(source, table), table.declared(personal=tuple(name for name, _ in table.columns[2:]))
    for row in table.rows:
        key = dict(zip(table.key, row, strict=False))
        assert as_printed(source, declared, facts, key) == key  # type: ignore[arg-type]
        assert "still holds personal data" in (held_by_source(source, declared, facts, [key], frozenset()) or "")  # type: ignore[list-item]
        other = {name: f"{value}x" for name, value in key.items()}
        assert held_by_source(source, declared, facts, [other], frozenset()) is None


def test_a_proposal_of_the_database_says_what_it_says(settings: Settings) -> None:
    with psycopg.connect(owner_url(settings), autocommit=True) as owner:
        found = read_tables(owner, [table.schema for table in TABLES])
    [source] = yaml.safe_load(proposal("shop", found, set()))["sources"]
    assert len(source["tables"]) == len(TABLES)
    assert {(t.schema, t.name): [c[0] for c in t.columns] for t in found} == {
        (t.schema, t.name): [name for name, _ in t.columns] for t in TABLES
    }
    assert {t.comment for t in found} == {t.labels[2] for t in TABLES}


def test_statements_for_an_owner_survive_being_shown_and_pasted(settings: Settings) -> None:
    """A line break or an escape in a name came out raw; shown as `\\n` it would name something else."""
    with psycopg.connect(owner_url(settings), autocommit=True) as owner:
        statements = setup_statements(SHOP, "another", ROLE, Existing(None, ()))
        for statement in statements:
            assert visible(statement) == statement
            owner.execute(statement.encode())
        for item in read_stored(owner, SHOP.tables):
            assert visible(item.quoted) == item.quoted
            assert owner.execute(f"SELECT count(*) FROM {item.quoted}".encode()).fetchone() == (5,)
        published = owner.execute("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = 'another'")
        assert sorted(published) == sorted((table.schema, table.name) for table in TABLES)


def test_names_and_literals_are_themselves(source: psycopg.Connection[Any]) -> None:
    cursor = source.cursor()
    for name, value in zip(ODD, reversed(ODD), strict=True):
        for spelled_name in (ident(name), typed_ident(name)):
            cursor.execute(f"SELECT {literal(value)} AS {spelled_name}".encode())
            assert cursor.fetchall() == [(value,)]
            assert cursor.description is not None and cursor.description[0].name == name


def test_a_database_that_reads_backslashes_as_escapes_does_not_end_a_literal(settings: Settings) -> None:
    """`standard_conforming_strings = off` of a database or a role made SQL of what follows `\\'` in a value."""
    with psycopg.connect(owner_url(settings), autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {ident(ROLE)} SET standard_conforming_strings = off".encode())
    with psycopg.connect(source_url(settings.source("shop")), autocommit=True) as source:
        assert source.execute(f"SELECT {literal(chr(92) + chr(39) + ' || 1/0 --')}".encode()).fetchone() == (
            "\\' || 1/0 --",
        )
    with psycopg.connect(owner_url(settings), autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {ident(ROLE)} RESET standard_conforming_strings".encode())


def test_partitions_of_another_table_with_a_dot_in_its_name_stay_closed(settings: Settings) -> None:
    """`a.b`.`c` and `a`.`b.c` were one name."""
    with psycopg.connect(owner_url(settings), autocommit=True) as owner:
        for schema, name in (("a.b", "c"), ("a", "b.c")):
            place, part = relation(schema, name), relation(schema, f"{name}_1")
            owner.execute(f"CREATE SCHEMA {ident(schema)}".encode())
            owner.execute(f"CREATE TABLE {place} (id int PRIMARY KEY) PARTITION BY LIST (id)".encode())
            owner.execute(f"CREATE TABLE {part} PARTITION OF {place} DEFAULT".encode())
    declared = declared_source("shop", {"c": RawPolicy(relation='"a.b".c', key=("id",))})
    assert existing(settings, declared).partitions == (("a.b", "c_1"),)
