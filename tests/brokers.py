"""A Kafka broker of a test's own (KRaft, a plain process), and a source of topics in it."""

import json
import logging
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.servers.java import spark_java_home
from lakehouse.settings import KafkaSettings, Settings
from lakehouse_stack.home.certificate import make_certificate
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import stop
from lakehouse_stack.servers.kafka import broker_properties, format_command, java_command, kafka_classes, lines
from tests.java import QUICK
from tests.world import World

QUIET = logging.getLogger("tests.brokers")
QUIET.setLevel(logging.CRITICAL)
HASTY = "log.retention.check.interval.ms=500\nlog.segment.delete.delay.ms=100\n"


@dataclass
class Broker:
    """A broker that can be stopped, killed and started again."""

    java: list[str]
    folder: Path
    server: str
    logins: str  # where logins are asked for
    tls: str
    tls_logins: str
    process: psutil.Process | None = None

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.server}, logger=QUIET)

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as output:
            command = [*self.java, str(self.folder / "broker.properties")]
            started = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.process = psutil.Process(started.pid)
        deadline = time.monotonic() + 60
        while True:
            try:
                assert self.admin.list_topics(timeout=2).brokers
                return
            except (KafkaException, AssertionError):
                assert time.monotonic() < deadline and started.poll() is None, (self.folder / "broker.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def end(self) -> None:
        if self.process is not None:
            stop([self.process], signal.SIGTERM, 20.0)

    def create(self, topic: str, partitions: int = 1, **config: Any) -> None:
        given = {name.replace("_", "."): str(value) for name, value in config.items()}
        for _ in range(100):  # one of the name is deleted a moment after it was said to be
            try:
                self.admin.create_topics([NewTopic(topic, partitions, 1, config=given)])[topic].result(20)
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                time.sleep(0.1)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(20)

    def forget(self, topic: str, offset: int) -> None:
        """Deletes the messages before an offset, as retention does."""
        of = TopicPartition(topic, 0, offset)
        self.admin.delete_records([of])[of].result(20)

    def widen(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)

    def count(self, topic: str) -> int:
        """Where the first partition of a topic ends; 0 while there is no topic."""
        if topic not in self.admin.list_topics(timeout=10).topics:  # which the client would go on to believe
            return 0
        of = TopicPartition(topic, 0)
        return int(self.admin.list_offsets({of: OffsetSpec.latest()})[of].result(20).offset)

    def produce(self, topic: str, events: Iterable[Any], keys: Iterable[Any] | None = None, **options: Any) -> None:
        """Events as JSON, or as they are when they are bytes or None; to `partition` if it is given."""
        producer = Producer({"bootstrap.servers": self.server, "linger.ms": 20}, logger=QUIET)
        for event, key in zip(events, keys if keys is not None else iter(lambda: None, 0), strict=False):
            value = event if isinstance(event, bytes | None) else json.dumps(event).encode()
            while True:
                with suppress(BufferError):
                    producer.produce(topic, value, key=key if isinstance(key, bytes | None) else str(key), **options)
                    break
                producer.poll(0.1)
        assert producer.flush(60) == 0


SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USER, PASSWORD = "lake", "scram-3b9d2c"
LOGINS = """
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{logins},SSL://127.0.0.1:{tls},SASL_SSL://127.0.0.1:{tls_logins}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},SASL_PLAINTEXT://127.0.0.1:{logins},SSL://127.0.0.1:{tls},SASL_SSL://127.0.0.1:{tls_logins}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={SCRAM} required;
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={SCRAM} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={SCRAM} required;
listener.name.sasl_ssl.plain.sasl.jaas.config={PLAIN} required user_{USER}="{PASSWORD}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""  # the test itself comes without a login, and may do everything


@contextmanager
def running_broker(settings: Settings, *, logins: bool = False) -> Iterator[Broker]:
    """A broker with no topics; with `logins`, USER may come to listeners of their own, and has no rights yet. Those by
    TLS have a certificate for 127.0.0.1, by the authority of `authority.pem` in its folder."""
    classes, java_home = kafka_classes(settings), spark_java_home(settings)
    program, *options = java_command(java_home / "bin" / "java", classes, 512, "kafka.Kafka")
    java = [program, QUICK, *options]
    ports = plan_ports(("broker", "controller", "logins", "tls", "tls_logins"), {}, {}, {})
    with tempfile.TemporaryDirectory(prefix="lakehouse-kafka-") as name:
        folder = Path(name)
        properties = folder / "broker.properties"
        text = lines(broker_properties(folder, ports["broker"], ports["controller"])) + HASTY
        given = {"folder": folder, "SCRAM": SCRAM, "PLAIN": PLAIN, "USER": USER, "PASSWORD": PASSWORD}
        properties.write_text(text + (LOGINS.format(**ports, **given) if logins else ""))
        storage = [*format_command(Path(java[0]), classes, properties)]
        if logins:
            server, authority = make_certificate(("127.0.0.1",), datetime.now(UTC))
            (folder / "server.pem").write_text(server)
            (folder / "authority.pem").write_text(authority)
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                storage += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        subprocess.run(storage, check=True, capture_output=True)
        reached = {place: f"127.0.0.1:{port}" for place, port in ports.items()}
        broker = Broker(java, folder, reached["broker"], reached["logins"], reached["tls"], reached["tls_logins"])
        try:
            broker.start()
            yield broker
        finally:
            broker.end()


@dataclass(frozen=True)
class Topics(World):
    """A source of topics, and the settings that reach it."""

    broker: Any = field(default=None)

    def until_there(self, tables: Iterable[str]) -> None:
        """Waits for the topics of these tables: a connector makes one with its first event."""
        deadline, wanted = time.monotonic() + 60, {self.source.table(table).raw.topic for table in tables}
        while not wanted <= self.broker.admin.list_topics(timeout=10).topics.keys():
            assert time.monotonic() < deadline, wanted
            time.sleep(0.1)


def make_topics(
    settings: Settings, broker: Broker, tables: Mapping[str, tuple[RawPolicy, dict[str, str]]], **limits: Any
) -> Topics:
    """One declared raw table per entry: its policy, and its columns with their types."""
    name = f"t{uuid.uuid4().hex[:10]}"
    mine = settings.model_copy(
        update={
            "sources": {name: KafkaSettings(kind="kafka", bootstrap_servers=broker.server)},
            "ingestion": settings.ingestion.model_copy(update=limits),
        }
    )
    declared = tuple(topic_table(name, table, policy, columns) for table, (policy, columns) in tables.items())
    return Topics(mine, Source(name=name, description="", load=LoadPolicy(), tables=declared), "", broker)


def topic_table(source: str, name: str, policy: RawPolicy, columns: Mapping[str, str]) -> RawTable:
    """A table of a topic as a dbt file would declare it."""
    return RawTable(
        source=source, name=name, description="", kind="kafka", raw=policy, load=LoadPolicy(), maintenance=None,
        columns=tuple(Column(name=column, data_type=kind, description="") for column, kind in columns.items()),
        owners=(),
    )  # fmt: skip


def drop_lake_of(topics: Topics) -> None:
    """Later tests look at all tables of the lake."""
    from ingestion.state import store

    name = topics.source.name
    with store.connect_catalog(topics.settings) as catalog:
        names = [f"raw_{name}", f"mirror_{name}", f"next_mirror_{name}"]
        catalog.execute("DELETE FROM iceberg_tables WHERE table_namespace = ANY(%s)", (names,))
        catalog.execute("DELETE FROM iceberg_namespace_properties WHERE namespace = ANY(%s)", (names,))
