"""`up --with kafka`: broker, Connect and the sample topic, as a user types it; without it nothing misses them."""

import json
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

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
    assert env["brokers"] == {"clicks": f"127.0.0.1:{servers['kafka']['port']}"}
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
