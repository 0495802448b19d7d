"""The slot of a source that goes on with topics: it is dropped, or the command says how; and it is the right one."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ingestion import source_status
from ingestion.sources.kinds import check_former_slot, check_same_kind, let_go_of_slot
from lakehouse.errors import LakehouseError
from lakehouse.settings import DebeziumSettings, Settings
from lakehouse_cli.machine.lag import source_lags
from lakehouse_watch.probes.sources import read_source
from tests.clusters import OWNER, OWNER_PASSWORD, Cluster, hand_over
from tests.slots import ingested, slot_of, stream_of
from tests.world import World

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def read(settings: Settings, spark: Any) -> Iterator[tuple[Cluster, World]]:
    with ingested(settings, spark) as made:
        yield made


def by_topics(world: World, url: str | None = None) -> Settings:
    """The source as topics, behind which is the database at that URL, by default its own."""
    name = world.source.name
    of = DebeziumSettings(
        kind="debezium", bootstrap_servers="127.0.0.1:1", delivery="exactly_once", transactions="t.transaction",
        url=SecretStr(url) if url else world.settings.source(name).url,
    )  # fmt: skip
    return world.settings.model_copy(update={"sources": {name: of}})


def slots(made: Cluster) -> list[str]:
    return [name for (name,) in made.admin("SELECT slot_name::text FROM pg_replication_slots")]


def test_it_is_dropped_once_and_its_publication_stays(read: tuple[Cluster, World]) -> None:
    made, world = read
    slot, settings = slot_of(world), by_topics(world)
    assert slots(made) == [slot]
    check_former_slot(settings, world.source.name, stream_of(world))
    let_go_of_slot(settings, world.source.name, slot)
    assert slots(made) == []
    let_go_of_slot(settings, world.source.name, slot)
    assert world.rows("SELECT pubname FROM pg_publication") == [("lakehouse",)], "the connector may read it"


def test_who_may_not_drop_it_is_told_the_statement(read: tuple[Cluster, World]) -> None:
    made, world = read
    name, slot = world.source.name, slot_of(world)
    owner = by_topics(world, f"postgresql://{OWNER}:{OWNER_PASSWORD}@127.0.0.1:{made.port}/{name}")
    check_former_slot(owner, name, stream_of(world))
    with pytest.raises(LakehouseError, match=rf"retains WAL .*pg_drop_replication_slot\('{slot}'\)`") as caught:
        let_go_of_slot(owner, name, slot)
    assert "\n" not in str(caught.value) and f"lakehouse ingest --move {name}" in str(caught.value)
    assert slots(made) == [slot]


def test_one_that_somebody_reads_stays(read: tuple[Cluster, World]) -> None:
    made, world = read
    name, slot = world.source.name, slot_of(world)
    with closing(psycopg.connect(f"{made.url(name)}?replication=database", autocommit=True)) as reader:
        begun = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'lakehouse')"
        reader.pgconn.exec_(begun.encode())
        with pytest.raises(LakehouseError, match=r"still there and retains WAL .*is being read by process"):
            let_go_of_slot(by_topics(world), name, slot)
    assert slots(made) == [slot]


def test_a_url_that_does_not_lead_to_it_is_refused(read: tuple[Cluster, World], settings: Settings) -> None:
    made, world = read
    name, stream = world.source.name, stream_of(world)
    elsewhere = settings.source("bank").url.get_secret_value()
    for url, message in (
        (elsewhere, "its url is of another database server"),
        (made.url("postgres"), "its url is of a database without its slot"),
    ):
        with pytest.raises(LakehouseError, match=message):
            check_former_slot(by_topics(world, url), name, stream)
    made.stop()
    signal = made.data / "standby.signal"
    signal.touch()
    hand_over(signal, made.account)
    made.start()
    made.promote()
    with pytest.raises(LakehouseError, match=r"its database is on timeline 2 and was read on 1: .*--once"):
        check_former_slot(by_topics(world), name, stream)


def test_a_declared_kind_that_is_not_the_stored_one_is_told_in_one_line(read: tuple[Cluster, World]) -> None:
    """`lakehouse status`, the watch and the sensors ask for the status; each is told what to run."""
    _, world = read
    name, topics = world.source.name, by_topics(world)
    [lag] = source_lags(topics)
    wanted = f"run `lakehouse ingest --move {name}`"
    assert wanted in lag["trouble"] and "\n" not in lag["trouble"]
    for ask in (source_status, read_source):
        with pytest.raises(LakehouseError, match=wanted):
            ask(topics, name)
    with pytest.raises(LakehouseError, match="ingested as kind kafka, and is declared as debezium: one raw table"):
        check_same_kind(replace(stream_of(world), kind="kafka"), "debezium")
