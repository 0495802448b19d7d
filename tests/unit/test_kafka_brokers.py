"""What brokers tell of a source's topics, by an admin client that stands in for theirs."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Uuid
from confluent_kafka.admin import AclOperation, OffsetSpec

from ingestion.schema.offsets import Offsets
from ingestion.sources.kafka import connection
from ingestion.sources.kafka.connection import Brokers, Topic
from ingestion.sources.kafka.source import EVENT_BYTES, OpenKafka
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import KafkaSettings, Settings


def done(result: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Admin:
    """Answers as AdminClient does: topics by their ids, and their ends, of committed events and of all."""

    def __init__(
        self, ids: dict[str, Uuid], ends: tuple[int, int] = (0, 0), rights: tuple[AclOperation, ...] | None = None
    ) -> None:
        self._ids, self._ends, self._rights = ids, ends, rights

    def describe_cluster(self, request_timeout: float) -> "Future[Any]":
        return done(SimpleNamespace(cluster_id="c"))

    def list_offsets(self, wanted: Any, isolation_level: Any, request_timeout: float) -> dict[Any, "Future[Any]"]:
        is_end = {at: spec._value == OffsetSpec.latest()._value for at, spec in wanted.items()}
        end = self._ends[isolation_level == IsolationLevel.READ_UNCOMMITTED]
        return {at: done(SimpleNamespace(offset=end if is_end[at] else 0)) for at in wanted}

    def describe_topics(
        self, names: Any, include_authorized_operations: bool, request_timeout: float
    ) -> dict[str, "Future[Any]"]:
        assert include_authorized_operations
        told = {"partitions": [SimpleNamespace(id=0)], "authorized_operations": self._rights}
        return {name: done(SimpleNamespace(topic_id=number, **told)) for name, number in self._ids.items()}


def brokers(monkeypatch: pytest.MonkeyPatch, admin: Any) -> Brokers:
    monkeypatch.setattr(connection, "AdminClient", lambda *_, **__: admin)
    of = KafkaSettings(kind="kafka", bootstrap_servers="nowhere:1")
    return Brokers(Settings().model_copy(update={"sources": {"web": of}}), "web")


def test_a_topic_is_known_by_the_id_that_it_was_created_with(monkeypatch: pytest.MonkeyPatch) -> None:
    found = brokers(monkeypatch, Admin({"clicks": Uuid(7, 1), "views": Uuid(-8, 1)})).topics(["clicks", "views"])
    assert found == {"clicks": Topic("clicks", 7, (0,)), "views": Topic("views", 2**63 - 8, (0,))}


@pytest.mark.parametrize(
    ("rights", "may"),
    [
        (None, True), ((), True), ((AclOperation.DESCRIBE,), False), ((AclOperation.DESCRIBE, AclOperation.READ), True),
        ((AclOperation.ALL,), True), ((AclOperation.DESCRIBE, AclOperation.WRITE), False),
    ],
)  # fmt: skip
def test_a_topic_that_may_be_described_and_not_read_is_told(
    monkeypatch: pytest.MonkeyPatch, rights: Any, may: bool
) -> None:
    """`prepare --check` found nothing in the way, and ingestion failed for all tables of the source."""
    found = brokers(monkeypatch, Admin({"clicks": Uuid(7, 1)}, rights=rights)).topics(["clicks"])
    assert found == {"clicks": Topic("clicks", 7, (0,)) if may else "the login may describe it, but not read it"}


def test_brokers_that_tell_no_topic_ids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All topics had the number 0: events of one topic landed in the table of another."""
    with pytest.raises(LakehouseError, match=r"source 'web': .* no id of topic clicks.*Kafka 2\.8"):
        brokers(monkeypatch, Admin({"clicks": Uuid(0, 0), "views": Uuid(0, 0)})).topics(["clicks", "views"])


class Electing(Admin):
    """Answers for partition 1 with these errors first."""

    def __init__(self, *codes: int) -> None:
        super().__init__({}, (5, 5))
        self._codes, self.asked = list(codes), list[list[int]]()

    def poll(self, seconds: float) -> int:
        return 0

    def list_offsets(self, wanted: Any, isolation_level: Any, request_timeout: float) -> dict[Any, "Future[Any]"]:
        self.asked.append(sorted(at.partition for at in wanted))
        told = super().list_offsets(wanted, isolation_level, request_timeout)
        for at in wanted:
            if at.partition == 1 and self._codes:
                told[at] = Future()
                told[at].set_exception(KafkaException(KafkaError(self._codes.pop(0))))
        return told


def test_a_partition_that_has_just_got_another_leader_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a broker's restart the first answer ended the read, and brokers that answered were said not to."""
    monkeypatch.setattr(connection, "AGAIN_SECONDS", 0.0)
    admin = Electing(KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert brokers(monkeypatch, admin).ends([("clicks", 0), ("clicks", 1)]) == {("clicks", 0): 5, ("clicks", 1): 5}
    assert admin.asked == [[0, 1], [1], [1]], "what is known is not asked again"
    monkeypatch.setattr(connection, "ANSWER_SECONDS", -1.0)
    with pytest.raises(Unreachable, match=r"has no leader for a partition .*Leader epoch is newer"):
        brokers(monkeypatch, Electing(KafkaError.UNKNOWN_LEADER_EPOCH)).ends([("clicks", 1)])


def test_an_error_that_brokers_answer_with_is_not_told_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match=r"nowhere:1 answers with an error .*: look at the brokers' logs"):
        brokers(monkeypatch, Electing(KafkaError.KAFKA_STORAGE_ERROR)).ends([("clicks", 1)])
    with pytest.raises(Unreachable, match="nowhere:1 does not answer"):
        brokers(monkeypatch, Electing(KafkaError._TRANSPORT)).ends([("clicks", 1)])


def opened(monkeypatch: pytest.MonkeyPatch, position: int, ends: tuple[int, int]) -> tuple[OpenKafka, store.Stream]:
    """A source of one topic that was read up to a position."""
    at = Offsets.of({("clicks", 0): position})
    source = object.__new__(OpenKafka)
    for name, value in {
        "_name": "web",
        "_brokers": brokers(monkeypatch, Admin({"clicks": Uuid(7, 1)}, ends)),
        "_hurry": lambda: None,
        "_begun": lambda: [SimpleNamespace(relation=("", "clicks"), oid=7)],
        "_reached": lambda: at,
        "_landed": lambda: at,
        "_shown": lambda partitions: Offsets(),
    }.items():
        monkeypatch.setattr(source, name, value, raising=False)
    return source, cast(Any, SimpleNamespace(source="web", kind="kafka", system_identifier="c", position=at))


def test_events_of_a_transaction_that_does_not_end_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer died within it: nothing was read any more, and nothing was behind."""
    source, stream = opened(monkeypatch, 5, (5, 9))
    assert source.now().position == Offsets.of({("clicks", 0): 5}), "they cannot be read"
    kept = source.retention(stream)
    assert (kept.bytes, kept.open_bytes, kept.is_sound) == (4 * EVENT_BYTES, 4 * EVENT_BYTES, True)
    source, stream = opened(monkeypatch, 3, (5, 9))
    kept = source.retention(stream)
    assert (kept.bytes, kept.open_bytes) == (6 * EVENT_BYTES, 4 * EVENT_BYTES)


def test_a_topic_that_ends_with_the_marks_of_transactions_is_not_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position is where a read ended, not behind the last event."""
    source, stream = opened(monkeypatch, 9, (9, 9))
    kept = source.retention(stream)
    assert (kept.bytes, kept.open_bytes) == (0, 0)
