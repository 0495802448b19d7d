"""A broker that asks for logins, and has certificates: what the lake needs, and what it says where that is wrong.

A login needs a password and Read on its topics, and nothing else.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr

from ingestion.sources.debezium import check as of_debezium
from ingestion.sources.kafka import connection
from ingestion.sources.kafka.check import check_source
from ingestion.sources.kafka.connection import Brokers, Topic
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import KafkaSettings, Settings
from lakehouse_stack.home.certificate import make_certificate
from tests.brokers import PASSWORD, USER, Broker, Topics, drop_lake_of, make_topics, running_broker
from tests.debezium_world import Make, assert_sound, until_equal

pytestmark = [pytest.mark.stack, pytest.mark.slow]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def broker(settings: Settings) -> Iterator[Broker]:
    with running_broker(settings, logins=True) as running:
        other = make_certificate(("127.0.0.1",), datetime.now(UTC))[1]
        (running.folder / "other.pem").write_text(other)
        (running.folder / "text.pem").write_text("no certificate\n")
        yield running


def brokers(settings: Settings, server: str, **given: Any) -> Brokers:
    of = KafkaSettings.model_validate({"kind": "kafka", "bootstrap_servers": server, **given})
    return Brokers(settings.model_copy(update={"sources": {"web": of}}), "web")


def login(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"sasl": mechanism, "user": USER, "password": SecretStr(password)}


def with_login(topics: Topics, password: str = PASSWORD) -> Topics:
    [(name, of)] = topics.settings.sources.items()
    given = {"bootstrap_servers": topics.broker.logins, **login("SCRAM-SHA-256", password)}
    mine = topics.settings.model_copy(update={"sources": {name: of.model_copy(update=given)}})
    return replace(topics, settings=mine)


def grant(broker: Broker, topic: str, operation: AclOperation) -> None:
    [granted] = broker.admin.create_acls([_right(AclBinding, topic, operation)]).values()
    granted.result(20)


def withdraw(broker: Broker, topic: str, operation: AclOperation) -> None:
    [withdrawn] = broker.admin.delete_acls([_right(AclBindingFilter, topic, operation)]).values()
    assert len(withdrawn.result(20)) == 1


def _right(kind: Any, topic: str, operation: AclOperation) -> Any:
    return kind(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW
    )


def test_a_login_needs_its_password_and_the_right_to_read_its_topics(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    broker.create("clicks", 2)
    broker.produce("clicks", [{"id": n} for n in range(30)])
    topics = make_topics(settings, broker, {"clicks": (RawPolicy(topic="clicks"), {"id": "bigint"})})
    wrong, right = with_login(topics, "wrong-71ac"), with_login(topics)
    with pytest.raises(LakehouseError, match="refuses the login") as failure:
        wrong.ingest(spark)
    assert "wrong-71ac" not in str(failure.value) and "__PASSWORD" in str(failure.value)
    with pytest.raises(LakehouseError, match="topic clicks: the login may not describe and read it"):
        right.ingest(spark)
    [finding] = check_source(right.settings, right.source)
    assert finding.weight == "in the way" and "grant Describe and Read" in finding.remedy
    grant(broker, "clicks", AclOperation.DESCRIBE)
    [finding] = check_source(right.settings, right.source)
    assert "topic clicks: the login may describe it, but not read it" in finding.says
    assert finding.remedy == "grant Read on it"
    grant(broker, "clicks", AclOperation.READ)
    right.ingest(spark)
    assert sorted(row["id"] for row in right.raw("clicks")) == list(range(30))
    assert check_source(right.settings, right.source) == []
    keyed = right.declaring("clicks", key=("id",))
    [finding] = check_source(keyed.settings, keyed.source)
    assert (finding.weight, finding.about) == ("warning", "compaction") and "DescribeConfigs" in finding.remedy
    grant(broker, "clicks", AclOperation.DESCRIBE_CONFIGS)
    assert check_source(keyed.settings, keyed.source) == []
    assert Brokers(right.settings, right.source.name).compacted(["clicks"]) == {}
    drop_lake_of(right)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that cannot be reached are waited for until the client gives up."""
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 6.0)


@pytest.mark.parametrize("mechanism", [None, *MECHANISMS])
def test_an_authority_of_ones_own_is_trusted_once_it_is_declared(
    settings: Settings, broker: Broker, mechanism: str | None
) -> None:
    broker.create(f"tls-{mechanism}")
    if mechanism:
        grant(broker, f"tls-{mechanism}", AclOperation.READ)
    server = broker.tls_logins if mechanism else broker.tls
    given = login(mechanism) if mechanism else {}
    of = brokers(settings, server, tls=True, ca=broker.folder / "authority.pem", **given)
    assert isinstance(of.topics([f"tls-{mechanism}"])[f"tls-{mechanism}"], Topic)
    broker.delete(f"tls-{mechanism}")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_told_whatever_it_is_sent_by(
    settings: Settings, broker: Broker, mechanism: str, hasty: None
) -> None:
    given = login(mechanism, "wrong-71ac")
    of = brokers(settings, broker.tls_logins, tls=True, ca=broker.folder / "authority.pem", **given)
    says = r"refuses the login .*: correct LAKEHOUSE_SOURCES__WEB__USER and LAKEHOUSE_SOURCES__WEB__PASSWORD$"
    with pytest.raises(LakehouseError, match=says) as failure:
        of.topics(["any"])
    assert "wrong-71ac" not in str(failure.value) and "\n" not in str(failure.value)


def test_a_way_to_log_in_that_brokers_do_not_know_is_told(settings: Settings, broker: Broker, hasty: None) -> None:
    """User and password were said to be wrong."""
    with pytest.raises(LakehouseError, match=r"supported mechanisms: SCRAM-SHA-256 .*: correct \w+__WEB__SASL$"):
        brokers(settings, broker.logins, **login("SCRAM-SHA-512")).topics(["any"])


@pytest.mark.parametrize(
    ("authority", "host", "says"),
    [
        ("other.pem", "127.0.0.1", r"\(certificate of [^ ]*: .*(self|issuer|signature).*\): correct \w+__CA, the "),
        (None, "127.0.0.1", r"\(certificate of [^ ]*: .*(self|issuer).*\): correct \w+__CA, the authorities that are"),
        ("authority.pem", "localhost", r"[Hh]ostname mismatch, .* not valid for 'localhost'\): name the brokers in "),
        ("text.pem", "127.0.0.1", r"text\.pem holds no certificates that can be read here: correct \w+__CA$"),
        ("lacking.pem", "127.0.0.1", r"lacking\.pem holds no certificates that can be read here: correct \w+__CA$"),
    ],
)
@pytest.mark.parametrize("mechanism", [None, "PLAIN"])
def test_what_is_wrong_with_a_certificate_is_told_in_one_line(
    settings: Settings, broker: Broker, authority: str | None, host: str, says: str, mechanism: str | None, hasty: None
) -> None:
    """All were told alike, as a wrong authority; a file that could not be read was a traceback."""
    server = (broker.tls_logins if mechanism else broker.tls).replace("127.0.0.1", host)
    given = login(mechanism) if mechanism else {}
    ca = {"ca": broker.folder / authority} if authority else {}
    with pytest.raises(LakehouseError, match=says) as failure:
        brokers(settings, server, tls=True, **ca, **given).topics(["any"])
    assert "\n" not in str(failure.value) and PASSWORD not in str(failure.value)
    assert not isinstance(failure.value, Unreachable), "nobody waits for it"


@pytest.mark.parametrize("place", ["tls", "logins", "tls_logins"])
def test_a_listener_that_is_reached_otherwise_names_the_settings(
    settings: Settings, broker: Broker, place: str, hasty: None
) -> None:
    """It was said to be down: a listener by TLS, or with logins, hangs up on whoever comes without."""
    with pytest.raises(Unreachable, match=r"does not answer .*__BOOTSTRAP_SERVERS, .*__TLS or \w+__SASL$"):
        brokers(settings, getattr(broker, place)).topics(["any"])


def test_topics_are_read_by_tls_and_plain(settings: Settings, broker: Broker, spark: Any) -> None:
    """What tasks read with reaches the brokers as what plans does."""
    broker.create("sold", 1)
    broker.produce("sold", [{"id": n} for n in range(30)])
    grant(broker, "sold", AclOperation.READ)
    topics = make_topics(settings, broker, {"sold": (RawPolicy(topic="sold"), {"id": "bigint"})})
    [(name, of)] = topics.settings.sources.items()
    given = {"bootstrap_servers": broker.tls_logins, "tls": True, "ca": Path(broker.folder / "authority.pem")}
    mine = of.model_copy(update=given | login("PLAIN"))
    reached = replace(topics, settings=topics.settings.model_copy(update={"sources": {name: mine}}))
    reached.ingest(spark)
    assert sorted(row["id"] for row in reached.raw("sold")) == list(range(30))
    drop_lake_of(reached)


def test_a_right_that_is_withdrawn_from_a_login_for_debezium_is_named_and_nothing_is_lost(
    debezium: Make, broker: Broker, spark: Any
) -> None:
    rows = ("INSERT INTO items VALUES (1, 'a', 1)", "INSERT INTO accounts VALUES (1, 'a', 1)")
    world, open_topics = debezium(before=rows)
    topics, prefix = with_login(open_topics), world.source.name
    names = [f"{prefix}.public.items", f"{prefix}.public.accounts", f"{prefix}.transaction"]
    world.sql("INSERT INTO items VALUES (2, 'b', 2)")
    topics.until_there(["items", "accounts"])
    until_told(broker, names[2])
    findings = {f.line for f in of_debezium.check_source(topics.settings, topics.source) if f.weight == "in the way"}
    assert all(any(f"topic {name}: the login may not" in line for line in findings) for name in names), findings
    for name in names:
        grant(broker, name, AclOperation.READ)  # which has Describe in it
    until_equal(world, topics, spark)
    assert not [f for f in of_debezium.check_source(topics.settings, topics.source) if f.weight == "in the way"]
    for number, name in enumerate(names, start=10):
        for may_describe in (False, True):
            landed = {table: len(topics.raw(table)) for table in ("items", "accounts")}
            withdraw(broker, name, AclOperation.READ)
            if may_describe:
                grant(broker, name, AclOperation.DESCRIBE)
            key = 2 * number + may_describe
            world.sql(
                f"BEGIN; INSERT INTO items VALUES ({key}, 'n', {key}); "
                f"INSERT INTO accounts VALUES ({key}, 'n', {key}); COMMIT"
            )
            with pytest.raises(LakehouseError, match=name):
                topics.ingest(spark)
            assert landed == {table: len(topics.raw(table)) for table in landed}, "a part of a transaction landed"
            lines = [
                f.line for f in of_debezium.check_source(topics.settings, topics.source) if f.weight == "in the way"
            ]
            lacks = "may describe it, but not read it: grant Read" if may_describe else "may not describe and read it"
            assert any(f"topic {name}: the login {lacks}" in line for line in lines), lines
            grant(broker, name, AclOperation.READ)
            until_equal(world, topics, spark)
            if may_describe:
                withdraw(broker, name, AclOperation.DESCRIBE)
    assert_sound(topics)
    keys = [row["id"] for row in topics.raw("items")]
    assert len(keys) == len(set(keys)) == 8, "each row landed once"


def until_told(broker: Broker, topic: str) -> None:
    """Debezium makes the topic of transactions with the first of them."""
    deadline = time.monotonic() + 60
    while not broker.count(topic):
        assert time.monotonic() < deadline, topic
        time.sleep(0.1)
