"""Topics of events in Avro, from a real broker by a real registry: each lands once, by the schema of its writer."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ingestion import replay
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import RegistrySettings, Settings
from tests.apicurio import Apicurio, running_apicurio
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.registry import framed, record, running_registry
from tests.test_kafka import assert_each_once, declared, kept, topic_of

pytestmark = pytest.mark.stack

CLICK = {"id": "bigint", "page": "text", "price": "numeric(10,2)", "at": "timestamptz"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-micros"}
Make = Callable[..., Topics]


@pytest.fixture(scope="module")
def apicurio(settings: Settings) -> Iterator[Apicurio]:
    with running_apicurio(settings) as running:
        yield running


@pytest.fixture
def make(settings: Settings, broker: Broker) -> Iterator[Make]:
    made: list[Topics] = []

    def one(url: str, **policy: Any) -> Topics:
        topic = f"avro-{random.randrange(10**9)}"
        broker.create(topic, 1)
        raw = RawPolicy(topic=topic, format="avro", **policy)
        topics = make_topics(settings, broker, {"clicks": (raw, CLICK)}, lease_seconds=2)
        name = topics.source.name
        given = topics.settings.kafka(name).model_copy(update={"schema_registry": RegistrySettings(url=url)})
        made.append(replace(topics, settings=topics.settings.model_copy(update={"sources": {name: given}})))
        return made[-1]

    yield one
    for topics in made:
        drop_lake_of(topics)


@pytest.mark.slow
def test_avro_events_land_once_by_the_schemas_of_their_writers(make: Make, apicurio: Apicurio, spark: Any) -> None:
    from datetime import UTC, datetime

    topics, at = make(apicurio.url), datetime(2026, 11, 24, 1, 2, 3, 4, UTC)
    subject = f"{topic_of(topics)}-value"
    first = record("click", id="long", price=["null", PRICE], at=AT)
    number = apicurio.register(subject, first)
    rows = [{"id": i, "price": Decimal(i).scaleb(-2) if i % 2 else None, "at": at} for i in range(200)]
    topics.broker.produce(topic_of(topics), [framed(number, first, row) for row in rows])
    topics.ingest(spark)
    landed = {row["id"]: row for row in assert_each_once(topics, range(200))}
    assert all((landed[row["id"]]["price"], landed[row["id"]]["at"]) == (row["price"], at) for row in rows)
    assert {row["page"] for row in landed.values()} == {None}, "its writer knew no page"

    page = {"name": "page", "type": "string", "default": ""}
    wider = first | {"fields": [*first["fields"], page, {"name": "agent", "type": ["null", "string"], "default": None}]}
    later = apicurio.register(subject, wider)
    assert later != number
    events = [framed(later, wider, rows[1] | {"id": 200, "page": "/", "agent": "x"}), framed(number, first, rows[0])]
    topics.broker.produce(topic_of(topics), events)
    topics.ingest(spark)
    assert [row["page"] for row in topics.raw("clicks")[200:]] == ["/", None]
    with_agent = declared(topics, CLICK | {"agent": "text"})
    with_agent.ingest(spark)
    with_agent.broker.produce(topic_of(topics), [framed(later, wider, rows[1] | {"page": "/", "agent": "y"})])
    with_agent.ingest(spark)
    assert [row["agent"] for row in with_agent.raw("clicks")[200:]] == [None, None, "y"]


@pytest.mark.slow
def test_schemas_that_name_others_are_read_by_the_registry(make: Make, apicurio: Apicurio, spark: Any) -> None:
    topics = make(apicurio.url)
    money = record("Money", cents="long")
    apicurio.register(f"{topic_of(topics)}-money", money)
    refers = [{"name": "Money", "subject": f"{topic_of(topics)}-money", "version": 1}]
    number = apicurio.register(topic_of(topics), record("click", id="long", page="Money"), references=refers)
    whole = record("click", id="long", page=money)
    topics.broker.produce(topic_of(topics), [framed(number, whole, {"id": 1, "page": {"cents": 5}})])
    topics.ingest(spark)
    assert [row["page"] for row in topics.raw("clicks")] == ['{"cents": 5}']


@pytest.mark.slow
def test_poison_in_avro_is_kept_and_lands_once_it_can(make: Make, apicurio: Apicurio, spark: Any) -> None:
    """A schema that nobody registered, bytes that are no Avro, and a type that the declaration does not take."""
    topics = make(apicurio.url)
    schema, other = record("click", id="long"), record("click", id="long", page="string", price="string")
    number, second = (apicurio.register(f"{topic_of(topics)}-{s['name']}{n}", s) for n, s in enumerate((schema, other)))
    good = [framed(number, schema, {"id": i}) for i in range(4)]
    poison = [framed(99_999_999, schema, {"id": 9}), b'{"id": 9}', good[0][:-1], good[0] + b"x"]
    much = framed(second, other, {"id": 4, "page": "p", "price": "much"})
    topics.broker.produce(topic_of(topics), [*good[:2], *poison, much, *good[2:], None])
    topics.ingest(spark)
    assert_each_once(topics, range(4))
    aside = sorted(kept(topics, "quarantine"), key=lambda row: row["offset"])
    assert [row["offset"] for row in aside] == [2, 3, 4, 5, 6, 9]
    assert "schema 99999999 is not in the registry" in aside[0]["reason"] and "much" not in aside[4]["reason"]
    without = declared(topics, {name: kind for name, kind in CLICK.items() if name != "price"})
    without.ingest(spark)
    replay(without.settings, without.declarations, topics.source.name, ["clicks"], spark)
    assert_each_once(without, range(5))
    assert sorted(row["offset"] for row in kept(topics, "quarantine")) == [2, 3, 4, 5, 9]


@pytest.mark.slow
def test_a_registry_that_is_down_stops_the_read_of_what_is_not_known_and_loses_nothing(make: Make, spark: Any) -> None:
    schema, other = record("click", id="long"), record("click", page="string", id="long")
    with running_registry() as registry:
        topics = make(registry.url)
        registry.register(7, schema)
        topics.broker.produce(topic_of(topics), [framed(7, schema, {"id": i}) for i in range(50)])
        topics.ingest(spark)
        registry.status = 503
        topics.broker.produce(topic_of(topics), [framed(7, schema, {"id": i}) for i in range(50, 100)])
        topics.ingest(spark)
        assert_each_once(topics, range(100))
        killed = topics.driver(
            "ingestion.pipeline.load_changes:publish:before"
        )  # another process knows by what is kept
        assert "registry" not in killed.stderr
        events = [framed(number, s, {"id": 100 + number, "page": "x"}) for number, s in ((8, other), (7, schema))]
        topics.broker.produce(topic_of(topics), events)
        registry.register(8, other)
        with pytest.raises(LakehouseError, match=r"schema registry at .* fails \(503\)") as failure:
            topics.ingest(spark)
        assert "\n" not in str(failure.value)
        assert_each_once(topics, range(100))
        assert kept(topics, "quarantine") == [], "what cannot be told is no poison"
        registry.status = None
        topics.ingest(spark)
        assert_each_once(topics, [*range(100), 107, 108])


@pytest.mark.slow
def test_with_a_key_an_avro_event_without_value_deletes_its_row(make: Make, apicurio: Apicurio, spark: Any) -> None:
    topics = make(apicurio.url, key=("id",))
    schema, key = record("click", id="long", page="string"), record("key", id="long")
    number, of_key = (apicurio.register(f"{topic_of(topics)}-{s['name']}", s) for s in (schema, key))
    keys = [framed(of_key, key, {"id": i}) for i in (1, 2, 1)]
    events = [framed(number, schema, {"id": i, "page": str(i)}) for i in (1, 2)]
    topics.broker.produce(topic_of(topics), [*events, None], keys=keys)
    topics.ingest(spark)
    assert {k: row["page"] for k, row in topics.current("clicks").items()} == {(2,): "2"}
