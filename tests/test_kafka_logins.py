"""A broker that asks for logins: what the lake's login needs is a password and Read on its topics, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from pydantic import SecretStr

from ingestion.sources.kafka.check import check_source
from ingestion.sources.kafka.connection import Brokers
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import KafkaSettings, Settings
from tests.brokers import PASSWORD, USER, Broker, Topics, drop_lake_of, make_topics, running_broker

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def broker(settings: Settings) -> Iterator[Broker]:
    with running_broker(settings, logins=True) as running:
        yield running


def with_password(topics: Topics, password: str) -> Topics:
    login = KafkaSettings(
        kind="kafka", bootstrap_servers=topics.broker.logins, sasl="SCRAM-SHA-256", user=USER,
        password=SecretStr(password),
    )  # fmt: skip
    return replace(topics, settings=topics.settings.model_copy(update={"sources": {topics.source.name: login}}))


def grant(broker: Broker, operation: AclOperation) -> None:
    allow = AclBinding(
        ResourceType.TOPIC, "clicks", ResourcePatternType.LITERAL, f"User:{USER}", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    [granted] = broker.admin.create_acls([allow]).values()
    granted.result(20)


def test_a_login_needs_its_password_and_the_right_to_read_its_topics(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    broker.create("clicks", 2)
    broker.produce("clicks", [{"id": n} for n in range(30)])
    topics = make_topics(settings, broker, {"clicks": (RawPolicy(topic="clicks"), {"id": "bigint"})})
    wrong, right = with_password(topics, "wrong-71ac"), with_password(topics, PASSWORD)
    with pytest.raises(LakehouseError, match="refuses the login") as failure:
        wrong.ingest(spark)
    assert "wrong-71ac" not in str(failure.value) and "__PASSWORD" in str(failure.value)
    with pytest.raises(LakehouseError, match="topic clicks: the login may not describe and read it"):
        right.ingest(spark)
    [finding] = check_source(right.settings, right.source)
    assert finding.weight == "in the way" and "grant Describe and Read" in finding.remedy
    grant(broker, AclOperation.DESCRIBE)
    [finding] = check_source(right.settings, right.source)
    assert "topic clicks: the login may describe it, but not read it" in finding.says
    grant(broker, AclOperation.READ)
    right.ingest(spark)
    assert sorted(row["id"] for row in right.raw("clicks")) == list(range(30))
    assert check_source(right.settings, right.source) == []
    assert Brokers(right.settings, right.source.name).compacted(["clicks"]) == {}, "it may not know, and need not"
    drop_lake_of(right)
