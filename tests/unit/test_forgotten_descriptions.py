"""What has been withheld stays so by the column's number, also where a table's descriptions are forgotten."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from pgoutput_record import scratch_database
from test_planning import FACTS, column

from ingestion.pipeline.survey import Outlook, inspect
from ingestion.schema.facts import TOPIC, TableFacts
from ingestion.schema.offsets import Offsets
from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.catalog.describe import name_of, read_facts
from ingestion.state import store
from ingestion.state.described import Known
from ingestion.state.store import Cluster, TablePosition
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
SETUP = """
CREATE TABLE people (id int PRIMARY KEY, ssn text, name text);
CREATE PUBLICATION p FOR TABLE people
"""
EXCLUDED, MASKED, NULLED = {"exclude": ("ssn",)}, {"mask": {"ssn": "sha256"}}, {"mask": {"ssn": "null"}}


@pytest.fixture
def source(cluster: str) -> Iterator[psycopg.Connection[Any]]:
    with scratch_database(cluster) as database, psycopg.connect(database, autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            connection.execute(statement)
        yield connection


@pytest.fixture
def states(catalog_settings: Settings) -> Iterator[Any]:
    with store.connect_catalog(catalog_settings) as connection:
        connection.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(cast(Any, connection))
        store.create_stream(connection, "shop", "slot", Cluster("7", 1), 2)
        store.advance_positions(connection, "shop", Lsn(10))
        yield connection


def declared(**withheld: Any) -> RawTable:
    raw = RawPolicy(relation="public.people", key=("id",), **withheld)
    return RawTable(
        source="shop", name="people", description="", columns=(), raw=raw, load=LoadPolicy(), maintenance=None,
        owners=(),
    )  # fmt: skip


def surveyed(source: psycopg.Connection[Any], table: RawTable, position: TablePosition | None) -> Outlook:
    opened = SimpleNamespace(
        holds_tables=True, inspect=lambda table, oid: read_facts(source, table, "p", oid),
        name_of=lambda oid: name_of(source, oid),
    )  # fmt: skip
    return inspect(cast(Any, opened), table, "as it is", position, {})


def begun(facts: TableFacts) -> TablePosition:
    return TablePosition("people", 1, Lsn(10), "streaming", Lsn(10), versions=(facts,))


def recovered(states: Any, facts: TableFacts) -> None:
    store.restart_stream(states, "shop", "slot", Cluster("7", 1), 2)


def recovered_twice(states: Any, facts: TableFacts) -> None:
    for _ in range(2):
        store.restart_stream(states, "shop", "slot", Cluster("7", 1), 2)


def read_anew_and_recovered(states: Any, facts: TableFacts) -> None:
    position = store.read_positions(states, "shop")["people"]
    store.put_position(states, "shop", replace(position.forgotten, state="new"), "user")
    recovered(states, facts)


def moved_and_back(states: Any, facts: TableFacts) -> None:
    """By topics a table has other columns' numbers, and another oid."""
    topic = replace(FACTS, oid=99, relkind=TOPIC, relation=("", "people"), columns=(column("id", 1), column("name", 2)))
    known = Known((topic,), "topics", former=facts)
    store.restart_stream(states, "shop", "slot", Cluster("k", 0), 3)
    store.hand_over(states, "shop", "kafka", Offsets.of({("people", 0): 4}), {"people": known})
    store.restart_stream(states, "shop", "slot", Cluster("7", 1), 2)
    store.set_kind(states, "shop", "postgres")


FORGETS = [recovered, recovered_twice, read_anew_and_recovered, moved_and_back]


@pytest.mark.parametrize("forget", FORGETS)
@pytest.mark.parametrize("withheld", [EXCLUDED, MASKED, NULLED], ids=["exclude", "digest", "null"])
def test_a_withheld_column_does_not_land_under_another_name_though_its_description_is_forgotten(
    source: psycopg.Connection[Any], states: Any,
    forget: Callable[[Any, TableFacts], None], withheld: dict[str, Any],
) -> None:  # fmt: skip
    """A column of its former name was there again, so that nothing lacked, and every value of it landed in clear."""
    table = declared(**withheld)
    facts = surveyed(source, table, None).facts
    assert facts is not None
    store.put_position(states, "shop", replace(begun(facts), state="loading"), "load")
    store.put_position(states, "shop", begun(facts), "load")
    forget(states, facts)
    assert surveyed(source, table, store.read_positions(states, "shop")["people"]).problem is None
    source.execute("ALTER TABLE people RENAME ssn TO ssn_plain")
    source.execute("ALTER TABLE people ADD ssn text")
    position = store.read_positions(states, "shop")["people"]
    found = surveyed(source, table, position)
    assert not position.versions and found.facts is None
    assert "column ssn is called ssn_plain now, and was left out or masked" in (found.problem or "")
    also = {"exclude": ("ssn", "ssn_plain")}
    assert surveyed(source, declared(**also), position).problem is None


@pytest.mark.parametrize("forget", FORGETS)
def test_an_exclusion_that_is_withdrawn_is_so_after_a_recovery_too(
    source: psycopg.Connection[Any], states: Any,
    forget: Callable[[Any, TableFacts], None],
) -> None:  # fmt: skip
    facts = surveyed(source, declared(**EXCLUDED), None).facts
    assert facts is not None
    store.put_position(states, "shop", replace(begun(facts), state="loading"), "load")
    store.put_position(states, "shop", begun(facts), "load")
    forget(states, facts)
    found = surveyed(source, declared(), store.read_positions(states, "shop")["people"])
    assert found.problem is None and found.facts is not None and "ssn" in {c.name for c in found.facts.columns}
