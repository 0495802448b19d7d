"""Produces page views: the same seed makes the same visits."""

import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.servers.embedded import refuse_namesake
from lakehouse.servers.kafka import client_properties
from lakehouse.settings import Settings
from lakehouse_samples.loading import LoadReport

SOURCE, TOPIC, PARTITIONS = "clicks", "clicks.page_views", 3
FIRST_EVENTS, PRODUCTS, VISITS = 1_000, 200, 50
ANSWER_SECONDS = 15.0
Event = dict[str, Any]


def load(settings: Settings) -> LoadReport:
    """Makes the topic with its first events, unless it has some; raises LakehouseError."""
    has = count(settings, make=True)
    if has == 0:
        produce(settings, FIRST_EVENTS, seed=1)
    return LoadReport(SOURCE, has == 0, {"page_views": has or FIRST_EVENTS})


def produce(
    settings: Settings,
    events: int | None,
    *,
    seed: int | None = None,
    rate: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Appends so many events, or events until `stop`; returns how many. Raises LakehouseError."""
    from confluent_kafka import KafkaException, Producer

    first, sent, begun = count(settings, make=True), 0, time.monotonic()
    options = {"enable.idempotence": True, "linger.ms": 20, "message.timeout.ms": int(ANSWER_SECONDS * 1000)}
    failed: list[object] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    try:
        producer = Producer(_properties(settings) | options)
        for event in page_views(first, random.Random(seed)):
            if stop() or failed or (events is not None and sent >= events):
                break
            producer.produce(TOPIC, json.dumps(event).encode(), key=str(event["visit"]), on_delivery=told)
            sent += 1
            producer.poll(0)
            if rate is not None:
                time.sleep(max(0.0, begun + sent / rate - time.monotonic()))
            elif len(producer) > 50_000:
                producer.flush(ANSWER_SECONDS)
        left = producer.flush(ANSWER_SECONDS)
    except (KafkaException, BufferError) as error:
        raise _failed(error) from None
    if left or failed:
        raise _failed(failed[0] if failed else "no answer")
    return sent


def page_views(first: int, chance: random.Random) -> Iterator[Event]:
    """Events without end, numbered from `first` on."""
    number = first
    while True:
        product = chance.randrange(PRODUCTS) + 1 if chance.random() < 0.7 else None
        event: Event = {"id": number, "visit": chance.randrange(VISITS) + 1}
        event["page"] = f"/products/{product}" if product else chance.choice(["/", "/cart", "/search"])
        if product:
            event |= {"product_id": product, "price": f"{product * 1.25:.2f}"}
        yield event | {"shown_at": datetime.now(UTC).isoformat(), "mobile": chance.random() < 0.5}
        number += 1


def count(settings: Settings, *, make: bool = False) -> int:
    """How many events the topic has; `make` makes it where there is none. Raises LakehouseError."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    not_yet = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        admin = AdminClient(_properties(settings))
        if make and TOPIC not in admin.list_topics(timeout=ANSWER_SECONDS).topics:
            made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)], operation_timeout=ANSWER_SECONDS)
            made[TOPIC].result(ANSWER_SECONDS)
        wanted = {TopicPartition(TOPIC, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        while True:
            try:
                asked = admin.list_offsets(wanted, request_timeout=ANSWER_SECONDS)
                return sum(future.result(ANSWER_SECONDS).offset for future in asked.values())
            except KafkaException as error:  # a topic that was just made has no leader for a moment
                if error.args[0].code() not in not_yet or not make or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    except (KafkaException, TimeoutError) as error:
        raise _failed(error) from None


def _properties(settings: Settings) -> dict[str, Any]:
    if SOURCE not in settings.sources:
        raise LakehouseError(f"sample {SOURCE!r} is a topic in Kafka: run `lakehouse up --with kafka` first")
    refuse_namesake(settings, SOURCE)
    return client_properties(settings.kafka(SOURCE))


def _failed(error: object) -> LakehouseError:
    says = getattr(error, "args", (error,))[0]
    told = says.str() if hasattr(says, "str") else str(error)
    return LakehouseError(
        f"source {SOURCE!r}: topic {TOPIC} cannot be filled ({told}): run `lakehouse up --with kafka`, or correct "
        f"LAKEHOUSE_SOURCES__{SOURCE.upper()}__BOOTSTRAP_SERVERS"
    )
