"""`up --with kafka`: broker, Connect and the sample topic, as a user types it; without it nothing misses them."""

import json
import shutil
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from lakehouse.settings import PROJECT_DIR
from tests.test_stack import Home, trino, until

pytestmark = pytest.mark.stack
KAFKA = {"kafka", "connect"}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    home = Home()
    try:
        yield home
    finally:
        home.remove()


def connectors(home: Home) -> set[str]:
    """The classes that Connect knows."""
    url = f"{home.environment()['connect_url']}/connector-plugins"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return {plugin["class"] for plugin in json.loads(answer.read())}


@pytest.mark.slow
def test_the_stack_runs_kafka_only_when_it_is_asked_to_and_lands_the_sample_topic(home: Home) -> None:
    home.run("up")
    assert not KAFKA & set(home.servers()) and "brokers" not in home.environment()
    assert "up --with kafka" in home.run("samples", "clicks", status=1)
    home.run("up", "--with", "kafka")
    servers, env = home.servers(), home.environment()
    assert all(servers[name]["healthy"] for name in KAFKA)
    assert env["brokers"] == dict.fromkeys(("clicks", "bank_topics"), f"127.0.0.1:{servers['kafka']['port']}")
    assert "io.debezium.connector.postgresql.PostgresConnector" in connectors(home)

    assert "loaded (page_views 1,000)" in home.run("samples", "clicks")
    assert "already there (page_views 1,000)" in home.run("samples", "clicks")
    home.run("ingest", "--once", "clicks")
    home.run("simulate", "clicks", "--events", "500")
    home.run("ingest", "--once", "clicks")
    counted = "SELECT count(*), count(DISTINCT id), min(id), max(id), count(price), max(_offset) > 0"
    assert trino(home, f"{counted} FROM raw_clicks.page_views")[0][:4] == [1500, 1500, 0, 1499]
    everything = {source.split(":")[0] for source in home.run("samples").splitlines()}
    assert everything == {"retail", "bank", "payroll", "clicks"}

    before = home.pids()
    home.run("up")
    assert home.pids() == before, "it goes on until `down`"
    psutil.Process(before["kafka"]).kill()
    until(lambda: home.start("status").wait(60) != 0)
    home.run("up")
    home.run("simulate", "clicks", "--events", "10")
    home.run("ingest", "--once", "clicks")
    assert trino(home, "SELECT count(*) FROM raw_clicks.page_views")[0] == [1510]

    ports = {name: home.servers()[name]["port"] for name in KAFKA}
    home.run("down")
    assert not home.processes()
    home.run("up")
    assert not KAFKA & set(home.servers()) and "connect_url" not in home.environment()
    assert "no source 'clicks' is declared" in home.run("ingest", "--once", "clicks", status=1)
    home.run("up", "--with", "kafka")
    assert {name: home.servers()[name]["port"] for name in KAFKA} == ports, "they are kept in the home"
    home.run("ingest", "--once", "clicks")
    assert trino(home, "SELECT count(*) FROM raw_clicks.page_views")[0] == [1510]


@pytest.fixture
def project(home: Home, tmp_path: Path) -> Iterator[Path]:
    """A copy of the project, which the command writes to."""
    shutil.copytree(PROJECT_DIR / "dbt_project", tmp_path / "dbt_project")
    shutil.copy(PROJECT_DIR / "workspace.yaml", tmp_path)
    home.env["LAKEHOUSE_PROJECT_DIR"] = str(tmp_path)
    yield tmp_path
    del home.env["LAKEHOUSE_PROJECT_DIR"]


def until_landed(home: Home, users: int, accounts: int) -> None:
    """Ingests until so many events are there; the connector sends what is committed a moment later."""
    counted = "SELECT (SELECT count(*) FROM raw_bank_topics.users), (SELECT count(*) FROM raw_bank_topics.accounts)"
    deadline = time.monotonic() + 240
    while True:
        home.run("ingest", "--once", "bank_topics")
        if (found := trino(home, counted)[0]) == [users, accounts]:
            return
        assert time.monotonic() < deadline, found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # four loads by Dagster, each a minute on a busy machine, and a connector's snapshots
def test_one_command_brings_the_bank_through_debezium_and_what_stays_when_it_is_removed_is_told(
    home: Home, project: Path
) -> None:
    """5 + 3 events and 3 users, 2 accounts, 2 links; then 10 + 7 and 4, 4, 4: the numbers of the bank by its slot."""
    home.run("up", "--with", "kafka")
    sample = ("samples", "bank", "--through", "debezium")
    declared = project / "dbt_project" / "models" / "sources" / "bank_topics.yml"
    assert "alone" in home.run("samples", "retail", "--through", "debezium", status=2)
    said = home.run(*sample)
    assert "connector bank_topics: streams" in said and "simulate bank" in said and declared.exists()
    home.run("ingest", "--once", "bank_topics")
    assert "was already there" in home.run(*sample)

    vault = [f"(SELECT count(*) FROM vault.{t}_bank_topics_{n})" for t, n in (
        ("hub", "user"), ("hub", "account"), ("link", "account_user"))]  # fmt: skip
    for events, counts in (((5, 3), [3, 2, 2]), ((10, 7), [4, 4, 4])):
        home.run("simulate", "bank")
        until_landed(home, *events)
        home.run("run", "load_bank_topics")
        assert trino(home, f"SELECT {', '.join(vault)}")[0] == counts
        home.run("reconcile", "--views", "bank_topics")

    said = home.run("remove", "bank_topics", "--yes")
    env = home.environment()
    address = f"{env['connect_url']}/connectors/bank_topics"
    assert f"curl -X DELETE {address}" in said and "pg_drop_replication_slot('bank_topics')" in said
    assert not declared.exists() and not list((project / "dbt_project" / "models").glob("*/bank_topics"))
    home.run("simulate", "bank")
    assert "was already there" in home.run(*sample) and declared.exists()
    until_landed(home, 15, 11)

    said = home.run("remove", "bank_topics", "--drop-tables", "--yes")
    with urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=30):
        pass
    url = tomllib.loads((home.path / "endpoints.toml").read_text())["sources"]["bank_topics"]["url"]
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute("SELECT active FROM pg_replication_slots").fetchall() == [(False,)])
        connection.execute("SELECT pg_drop_replication_slot('bank_topics')")
    home.run("simulate", "bank")
    assert "connector bank_topics: streams" in home.run(*sample)
    home.run("ingest", "--recover", "bank_topics")
    read = "SELECT count(*) FROM raw_bank_topics.users WHERE _op = 'r'"
    deadline = time.monotonic() + 120
    while trino(home, read) != [[2]]:
        assert time.monotonic() < deadline, "a connector whose slot was gone begins with a snapshot"
        home.run("ingest", "--once", "bank_topics")
