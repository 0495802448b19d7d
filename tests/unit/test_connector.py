"""A connector that has stopped: its topics are still, so nothing is behind, and nobody was told for days."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from debezium_recorded import settings as topics

from ingestion import SourceStatus, connector_trouble
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_cli.machine.lag import source_lags
from lakehouse_watch.probes import sources
from lakehouse_watch.probes.sources import CONNECTOR_SECONDS, read_connector
from lakehouse_watch.probes.still_there import Declared
from lakehouse_watch.watch import declared_probes

pytestmark = pytest.mark.stack
SAYS = "no connector reads its database: slot debezium is inactive"


@pytest.fixture
def database(cluster: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(cluster, autocommit=True) as connection:
        yield connection
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.fixture
def lake(catalog_settings: Settings, cluster: str, database: psycopg.Connection[Any]) -> Settings:
    """Rows of the source landed an hour ago, and the connector's slot is there."""
    database.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
    with store.connect_catalog(catalog_settings) as states:
        store.ensure_state(states)
        store.create_stream(states, "shop", "lakehouse_shop", store.Cluster("c", 0), 0, "debezium")
    last_landed(database, "1 hour")
    make_slot(database, "debezium")
    return catalog_settings.model_copy(update={"sources": {"shop": topics(url=cluster)}})


def last_landed(database: psycopg.Connection[Any], ago: str) -> None:
    database.execute("UPDATE lakehouse.streams SET updated_at = now() - %s::interval", (ago,))


def make_slot(database: psycopg.Connection[Any], name: str, *, temporary: bool = False) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', %s)", (name, temporary))


@contextmanager
def read_slot(database: psycopg.Connection[Any], name: str) -> Iterator[None]:
    """Somebody reads a slot."""
    url = f"{database.info.dsn} replication=database"
    begun = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
    with closing(psycopg.connect(url, autocommit=True)) as reader:
        reader.pgconn.exec_(begun.encode())
        yield
    while database.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone():
        time.sleep(0.01)


def test_a_slot_that_no_connector_reads_is_told(lake: Settings, database: psycopg.Connection[Any]) -> None:
    make_slot(database, "lakehouse_shop")  # the source was read by it before
    assert connector_trouble(lake, "shop") == SAYS
    with read_slot(database, "debezium"):
        assert connector_trouble(lake, "shop") is None
    last_landed(database, "1 minute")
    assert connector_trouble(lake, "shop") is None, "it may be within a snapshot, and read no slot for hours"


def test_where_nobody_can_tell_whose_slots_there_are_nothing_is_told(
    lake: Settings, database: psycopg.Connection[Any]
) -> None:
    make_slot(database, "anothers")
    with read_slot(database, "anothers"):
        assert connector_trouble(lake, "shop") is None
    assert str(connector_trouble(lake, "shop")).endswith("slot anothers, debezium is inactive")
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    make_slot(database, "passing", temporary=True)
    database.execute("SELECT pg_create_physical_replication_slot('standby')")
    assert connector_trouble(lake, "shop") is None


def test_a_source_that_names_no_database_is_not_asked(lake: Settings) -> None:
    without = lake.model_copy(update={"sources": {"shop": topics()}})
    assert connector_trouble(without, "shop") is None
    assert [probe.name for probe in declared_probes(without) if "shop" in probe.name] == ["source shop"]
    assert [probe.name for probe in declared_probes(lake) if "shop" in probe.name] == ["source shop", "connector shop"]


def test_a_connector_that_has_stopped_is_an_occasion_of_the_watch(
    lake: Settings, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "declared_still", lambda _: None)
    [occasion] = read_connector(lake, "shop").occasions
    assert (occasion.key, occasion.source, occasion.patience) == ("connector/shop", "shop", CONNECTOR_SECONDS)
    assert SAYS in occasion.summary and "Kafka Connect" in occasion.to_do
    with read_slot(database, "debezium"):
        assert not read_connector(lake, "shop").occasions
    monkeypatch.setattr(sources, "declared_still", lambda _: Declared(*[frozenset()] * 3))
    assert not read_connector(lake, "shop").occasions, "the project has the source no more"


def test_a_database_that_does_not_answer_is_told_as_such(lake: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = topics(url="postgresql://lake@127.0.0.1:1/shop")
    unreachable = lake.model_copy(update={"sources": {"shop": nowhere}})
    monkeypatch.setattr(sources, "declared_still", lambda _: None)
    with pytest.raises(LakehouseError, match="source 'shop'"):
        read_connector(unreachable, "shop")


@pytest.mark.parametrize(("url", "says"), [(None, SAYS), ("postgresql://lake@127.0.0.1:1/shop", "source 'shop': ")])
def test_it_is_what_status_says_of_the_source(
    lake: Settings, monkeypatch: pytest.MonkeyPatch, url: str | None, says: str
) -> None:
    """It was 0 s and 0 bytes behind, whatever the database had committed since."""
    status = SourceStatus("shop", True, "a:1", 0, False, "x/0:5", 5, None, None, None, None, 0)
    monkeypatch.setattr("ingestion.source_status", lambda *_: status, raising=False)
    monkeypatch.setattr("ingestion.why_refused", lambda *_: None, raising=False)
    given = lake if url is None else lake.model_copy(update={"sources": {"shop": topics(url=url)}})
    [lag] = source_lags(given)
    assert lag["trouble"].startswith(says) and lag["lag_seconds"] == 0
