"""Debezium in a Kafka Connect of a test's own, beside a test's broker: distributed, so that exactly once can be had."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition

from benchmarks.peers.maven import jars
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.connectors import JSON, connector_config
from lakehouse.servers.java import spark_java_home
from lakehouse.settings import DebeziumSettings, Settings
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import last_lines
from tests.brokers import QUIET, Broker, Topics, topic_table
from tests.java import QUICK
from tests.world import World

KAFKA, NEWEST = "4.1.0", "3.7.0.Final"
STORES = "".join(
    f"{store}.storage.topic=connect-{{port}}-{store}\n{store}.storage.replication.factor=1\n"
    for store in ("config", "offset", "status")
)  # a worker's own: another one beside the same broker would run its connectors, too
HASTE = {
    "poll.interval.ms": "50", "slot.retry.delay.ms": "300", "slot.max.retries": "100",
    "retriable.restart.connector.wait.ms": "500",
}  # fmt: skip


@dataclass
class Connect:
    """A Connect worker that can be killed and started again."""

    java: list[str]
    folder: Path
    rest_port: int
    process: psutil.Process | None = None
    connectors: dict[str, dict[str, str]] = field(default_factory=dict)

    def start(self) -> None:
        with (self.folder / "connect.log").open("ab") as output:
            command = [
                *self.java,
                "org.apache.kafka.connect.cli.ConnectDistributed",
                str(self.folder / f"connect-{self.rest_port}.properties"),
            ]
            started = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.process = psutil.Process(started.pid)
        self.until(lambda: self.asked("GET", "/connectors") is not None, 120)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def end(self) -> None:
        if self.process is not None and self.process.is_running():
            self.process.terminate()
            try:
                self.process.wait(20)
            except psutil.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)

    def asked(self, method: str, path: str, body: object = None) -> Any:
        """What Connect's REST API answers; None while it does not."""
        connection = HTTPConnection("127.0.0.1", self.rest_port, timeout=30)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        except OSError:
            return None
        finally:
            connection.close()
        if answer.status in (404, 409, 500, 503):
            return None
        assert answer.status < 400, text
        return json.loads(text) if text else {}

    def run(self, name: str, config: dict[str, str]) -> None:
        """Starts a connector, or changes its configuration, and waits until its task runs."""
        self.connectors[name] = config
        self.until(lambda: self.asked("PUT", f"/connectors/{name}/config", config) is not None)
        self.until(lambda: self.is_running(name), 120)

    def is_running(self, name: str) -> bool:
        status = self.asked("GET", f"/connectors/{name}/status")
        assert "FAILED" not in json.dumps(status), json.dumps(status)[:3000]
        return bool(status) and [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def healed(self, name: str) -> bool:
        """Whether the connector runs; what has failed, since its broker went, is started again."""
        status = self.asked("GET", f"/connectors/{name}/status")
        if status and "FAILED" in json.dumps(status):
            self.asked("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true")
            time.sleep(2)
            return False
        return bool(status) and [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def until(self, done: Any, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            log = self.folder / "connect.log"
            assert self.process is None or self.process.is_running(), last_lines(log)
            if time.monotonic() > deadline:
                raise LakehouseError(f"Connect did not get there in {seconds} s: {last_lines(log)}")
            time.sleep(0.1)


@contextmanager
def running_connect(
    settings: Settings, broker: Broker, *, version: str = NEWEST, exactly_once: bool = True, flush_ms: int = 60_000,
    more: tuple[Path, ...] = (),
) -> Iterator[Connect]:  # fmt: skip
    """A worker without connectors; it stores offsets every `flush_ms` where delivery is not exactly once. `more` are
    folders of further jars."""
    wanted = (
        ("io.debezium", "debezium-connector-postgres", version),
        ("org.apache.kafka", "kafka_2.13", KAFKA),
        ("org.apache.kafka", "connect-runtime", KAFKA),
    )
    classes = jars(settings, f"debezium-{version}-kafka-{KAFKA}", wanted)
    java = [str(spark_java_home(settings) / "bin" / "java"), QUICK, "-Xms256m", "-Xmx768m", "-cp"]
    java.append(":".join(f"{folder}/*" for folder in (classes, *more)))
    port = plan_ports(("rest",), {}, {}, {})["rest"]
    (broker.folder / f"connect-{port}.properties").write_text(
        f"bootstrap.servers={broker.server}\ngroup.id=connect-{port}\nlisteners=http://127.0.0.1:{port}\n"
        f"{STORES.format(port=port)}"
        f"exactly.once.source.support={'enabled' if exactly_once else 'disabled'}\nplugin.discovery=service_load\n"
        f"key.converter={JSON}\nvalue.converter={JSON}\noffset.flush.interval.ms={flush_ms}\n"
    )
    connect = Connect(java, broker.folder, port)
    try:
        connect.start()
        yield connect
    finally:
        connect.end()


def connector(url: str, prefix: str, tables: str, *, schemas: bool = False, **options: Any) -> dict[str, str]:
    """The configuration that the product recommends, in haste, with a publication of the connector's own and whatever
    Connect delivers; underscores in `options` stand for dots."""
    recommended = connector_config(url, prefix, [tables], prefix)
    return recommended | HASTE | {
        "publication.autocreate.mode": "filtered", "exactly.once.support": "requested",
        "value.converter.replace.null.with.default": "true",
        "key.converter.schemas.enable": str(schemas).lower(), "value.converter.schemas.enable": str(schemas).lower(),
    } | {name.replace("_", "."): str(value) for name, value in options.items()}  # fmt: skip


def make_debezium(
    world: World, broker: Broker, tables: Mapping[str, tuple[tuple[str, ...], dict[str, str]]],
    prefix: str | None = None, policy: Mapping[str, Any] | None = None, **given: Any,
) -> Topics:  # fmt: skip
    """The source of topics that a connector with the prefix writes, by default the world's name; of each table its key
    and columns. `policy` is what else its tables declare, `given` are settings of the source.
    """
    prefix = prefix or world.source.name
    name = f"d{prefix}"
    fixed = {"delivery": "exactly_once", "decimals": "precise", "transactions": f"{prefix}.transaction"}
    of = DebeziumSettings(kind="debezium", bootstrap_servers=broker.server, **(fixed | given))
    declared = tuple(
        topic_table(
            name, table, RawPolicy(topic=f"{prefix}.public.{table}", key=key, **(policy or {})), columns
        ).model_copy(update={"kind": "debezium"})
        for table, (key, columns) in tables.items()
    )
    limits = world.settings.ingestion.model_copy(update={"lease_seconds": 2})
    mine = world.settings.model_copy(update={"sources": {name: of}, "ingestion": limits})
    return Topics(mine, Source(name=name, description="", load=LoadPolicy(), tables=declared), world.owner_url, broker)


def events_of(server: str, topic: str, *, committed: bool = True) -> list[dict[str, Any]]:
    """All events of a topic, in the order of its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": server, "group.id": "tests", "enable.auto.commit": False, "enable.partition.eof": True,
         "isolation.level": "read_committed" if committed else "read_uncommitted"}, logger=QUIET,
    )  # fmt: skip
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        left = set(partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while left:
            message = consumer.poll(10)
            assert message is not None, f"{topic}: nothing came"
            if message.error():
                left.discard(message.partition())
                continue
            found.append({
                "partition": message.partition(), "offset": message.offset(), "at": message.timestamp()[1],
                "key": _text(message.key()), "value": _text(message.value()),
                "headers": [(name, _text(value)) for name, value in message.headers() or ()],
            })  # fmt: skip
    finally:
        with suppress(Exception):
            consumer.close()
    return sorted(found, key=lambda event: (event["partition"], event["offset"]))


def _text(given: bytes | None) -> str | None:
    return None if given is None else given.decode()
