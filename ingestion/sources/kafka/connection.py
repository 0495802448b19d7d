"""The brokers of a source: which cluster they are, its topics, and how far these reach."""

import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec

from ingestion.schema.offsets import Partition
from ingestion.sources.kafka.certificates import remedy_of, says_of
from lakehouse.errors import LakehouseError
from lakehouse.servers.kafka import client_properties
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings

ANSWER_SECONDS = 15.0
AGAIN_SECONDS = 0.2
NOT_THERE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
MAY_NOT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
CANNOT = (KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST, KafkaError._UNSUPPORTED_FEATURE)
ANOTHER_LEADER = (
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE,
)  # fmt: skip
"""Codes of a partition whose leader is another one, or does not know it yet: brokers agree within seconds."""
CA = "ssl.ca.location"
UNREADABLE = "the login may describe it, but not read it"
REFUSED, UNMET = (KafkaError._AUTHENTICATION, KafkaError._SSL), (KafkaError._TRANSPORT, KafkaError._RESOLVE)
READS = {AclOperation.READ, AclOperation.ALL}
T = TypeVar("T")
log = logging.getLogger("lakehouse.kafka")
log.setLevel(logging.CRITICAL)  # what the client logs comes as an error too


@dataclass(frozen=True)
class Topic:
    """A topic; `id` tells it from another one of the same name, before or after it."""

    name: str
    id: int
    partitions: tuple[int, ...]


class Brokers:
    """A connection to the cluster of a source. Every method may raise LakehouseError."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._source, self._of = source, settings.kafka(source)
        self._said: KafkaError | None = None  # what the brokers said: calls only tell that no answer came
        try:
            self._admin = AdminClient(client_properties(self._of) | {"error_cb": self._heard}, logger=log)
        except KafkaException as error:
            raise refused(source, client_properties(self._of), error.args[0]) from None

    @cached_property
    def cluster_id(self) -> str:
        """The id that the cluster was formatted with."""
        return str(self._answer(self._admin.describe_cluster(request_timeout=ANSWER_SECONDS)).cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, Topic | str]:
        """By name, each topic that is there; or why it cannot be described."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        asked = self._admin.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
        )
        found: dict[str, Topic | str] = {}
        for name, future in asked.items():
            try:
                told = future.result()
                number = told.topic_id.get_most_significant_bits() & (1 << 63) - 1
                if not number:  # what the client gives where the answer has none
                    raise LakehouseError(
                        f"source {self._source!r}: its brokers tell no id of topic {name}, by which it is known from "
                        "another one of that name: let them be Kafka 2.8 or newer, or others that tell ids"
                    )
                rights = told.authorized_operations  # not every server tells them
                may_read = not rights or not READS.isdisjoint(rights)
                partitions = tuple(sorted(part.id for part in told.partitions))
                found[name] = Topic(name, number, partitions) if may_read else UNREADABLE
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found[name] = "the login may not describe and read it"
                elif code not in NOT_THERE:
                    raise self._refused(error) from None
        return found

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset of the earliest event that each partition still has."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Up to where each partition's events are committed, exclusive."""
        return self._offsets(partitions, OffsetSpec.latest())

    def ends_with_open(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Up to where each partition has events, exclusive, those of transactions that are open included."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def since(self, partitions: Collection[Partition], moment: datetime) -> dict[Partition, int]:
        """The offset of the first event of each partition from that moment on; -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(int(moment.timestamp() * 1000)))

    def compacted(self, names: Iterable[str]) -> dict[str, int | None]:
        """By name, for how many milliseconds those of the topics that are compacted keep deletes; None where the login
        may not describe their configuration."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(set(names))]
        asked = self._admin.describe_configs(wanted, request_timeout=ANSWER_SECONDS) if wanted else {}
        found = dict[str, int | None]()
        for resource, future in asked.items():
            try:
                told = {name: entry.value for name, entry in future.result().items()}
            except KafkaException as error:
                if error.args[0].code() in MAY_NOT:
                    found[resource.name] = None
                elif error.args[0].code() not in (*CANNOT, *NOT_THERE):
                    raise self._refused(error) from None
                continue
            kept_ms = told.get("delete.retention.ms")  # what speaks Kafka's protocol may leave settings out
            if kept_ms and "compact" in (told.get("cleanup.policy") or "").split(","):
                found[resource.name] = int(kept_ms)
        return found

    def _offsets(
        self, partitions: Collection[Partition], which: OffsetSpec, seen: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[Partition, int]:
        """Asks again for a while where a partition has just got another leader, as after a broker's restart."""
        found, until = dict[Partition, int](), time.monotonic() + ANSWER_SECONDS
        while left := [partition for partition in partitions if partition not in found]:
            wanted = {TopicPartition(topic, number): which for topic, number in left}
            asked = self._admin.list_offsets(wanted, isolation_level=seen, request_timeout=ANSWER_SECONDS)
            passing = False
            for at, future in asked.items():
                try:
                    found[at.topic, at.partition] = future.result().offset
                except KafkaException as error:
                    if error.args[0].code() not in ANOTHER_LEADER or time.monotonic() > until:
                        raise self._refused(error) from None
                    passing = True
            if passing:
                time.sleep(AGAIN_SECONDS)
        return found

    def _answer(self, future: "Future[T]") -> T:
        try:
            return future.result()
        except KafkaException as error:
            raise self._refused(error) from None

    def _heard(self, error: KafkaError) -> None:
        if error.code() in REFUSED or (error.code() in UNMET and self._said is None):
            self._said = error

    def _refused(self, error: KafkaException) -> LakehouseError:
        self._admin.poll(0)
        told: KafkaError = error.args[0]
        return refused(self._source, client_properties(self._of), self._said or told if told.code() < 0 else told)


def refused(source: str, properties: Mapping[str, Any], error: KafkaError) -> LakehouseError:
    """The error for people, with what to do; `properties` are those of the client."""
    variable, servers = f"LAKEHOUSE_SOURCES__{source.upper()}__", properties["bootstrap.servers"]
    where, says = f"source {source!r}: Kafka at {servers}", error.str().strip().rstrip(".")
    if error.code() == KafkaError._AUTHENTICATION:
        wrong = f"{variable}SASL" if "supported mechanisms" in says else f"{variable}USER and {variable}PASSWORD"
        return LakehouseError(f"{where} refuses the login ({says}): correct {wrong}")
    if error.code() == KafkaError._SSL:
        return LakehouseError(f"{where}: no connection by TLS {_untrusted(says, properties, variable)}")
    if error.code() == KafkaError._INVALID_ARG and (ca := properties.get(CA)) and CA in says:
        return LakehouseError(f"{where}: {ca} holds no certificates that can be read here: correct {variable}CA")
    if error.code() in MAY_NOT:
        return LakehouseError(f"{where}: {says}: grant the login Describe and Read on the topics that are declared")
    if error.code() in ANOTHER_LEADER:
        return Unreachable(f"{where} has no leader for a partition ({says}): look at its brokers, one may be down")
    if error.code() > 0:  # those below are the client's own
        return Unreachable(f"{where} answers with an error ({says}): look at the brokers' logs")
    correct = f"{variable}BOOTSTRAP_SERVERS, {variable}TLS or {variable}SASL"
    return Unreachable(f"{where} does not answer ({says}): start it, or correct {correct}")


def _untrusted(says: str, properties: Mapping[str, Any], variable: str) -> str:
    """Why no connection was made, and what to do; the client has one text for whatever is wrong with a certificate."""
    correct = f"correct {variable}TLS and {variable}CA"
    if "certificate verify failed" not in says or (at := re.search(r"ssl://([^/\s]+):(\d+)/", says)) is None:
        return f"({says}): {correct}"
    host, port = at[1].strip("[]"), int(at[2])
    try:
        trust = ssl.create_default_context(cafile=properties.get(CA))
        with (
            socket.create_connection((host, port), timeout=ANSWER_SECONDS) as plain,
            trust.wrap_socket(plain, server_hostname=host),
        ):
            return f"({says}): {correct}"
    except ssl.SSLCertVerificationError as error:
        rename = f"name the brokers in {variable}BOOTSTRAP_SERVERS, and in their advertised.listeners, as it does"
        return f"(certificate of {host}:{port}: {says_of(error)}): {remedy_of(error, variable, rename)}"
    except OSError:
        return f"({says}): {correct}"


def of_topics(topics: Iterable[Topic | str], take: Callable[[Topic], bool] = lambda topic: True) -> list[Partition]:
    """The partitions of those that could be described."""
    return [(t.name, n) for t in topics if isinstance(t, Topic) and take(t) for n in t.partitions]


def present(found: Mapping[str, Topic | str], name: str) -> Topic | None:
    """The topic of that name, if it could be described."""
    topic = found.get(name)
    return topic if isinstance(topic, Topic) else None
