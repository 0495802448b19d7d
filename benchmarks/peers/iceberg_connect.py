"""Kafka Connect's Iceberg sink, Iceberg's own way from a topic to a table: it types JSON by the columns of the table.

Its worker is Kafka's standalone one with as many tasks as the topic has partitions. It commits to the lake's catalog,
as Spark and ingestion do, so that Trino counts its rows where it counts ours.
"""

import json
import signal
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.peers.broker import Broker
from benchmarks.peers.connect import answers, has_ended, request, start, until
from benchmarks.peers.kafka import worker
from benchmarks.peers.maven import jars
from lakehouse.errors import LakehouseError
from lakehouse.servers.java import spark_java_home
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import last_lines, stop
from lakehouse_stack.servers.kafka import java_command, kafka_classes, lines

ICEBERG = "1.12.0"
DOES = f"Kafka Connect's Iceberg sink {ICEBERG}: typed, appended to Iceberg; a commit a second"
WANTED = tuple(
    ("org.apache.iceberg", name, ICEBERG) for name in ("iceberg-kafka-connect", "iceberg-parquet", "iceberg-aws")
)
NAME, TABLE = "bench_sink", "bench_connect"
HEAP_MB = 2048
TIMEOUT_SECONDS = 180.0
POLL_MS = 500  # a task that has read all waits so long, by default a minute, before it looks for a commit to answer
TUNED = {
    "iceberg.control.commit.interval-ms": "1000",
    "iceberg.control.commit.timeout-ms": "2000",  # a commit that a task does not answer held up the next one for 30 s
    "consumer.override.auto.offset.reset": "earliest", "consumer.override.max.poll.records": "20000",
    "consumer.override.max.partition.fetch.bytes": str(16 << 20),
}  # fmt: skip


@dataclass(frozen=True)
class Sink:
    """A worker that runs the connector."""

    process: psutil.Process
    settings: Settings
    rest_port: int
    folder: Path

    def pause(self) -> None:
        """Has the tasks read nothing; they keep running."""
        request(self.rest_port, "PUT", f"/connectors/{NAME}/pause")
        self._until(lambda: self._states() == {"PAUSED"}, "the pause")

    def resume(self) -> None:
        """Has the tasks read on, without waiting for it."""
        request(self.rest_port, "PUT", f"/connectors/{NAME}/resume")

    def until_counted(self, rows: int) -> None:
        """Waits until Trino counts so many rows; raises LakehouseError on timeout or failure."""
        self._until(lambda: rows_in(self.settings) >= rows, f"{rows} rows")

    def _states(self) -> set[str]:
        return {task["state"] for task in request(self.rest_port, "GET", f"/connectors/{NAME}/status")["tasks"]}

    def _until(self, done: Callable[[], bool], what: str) -> None:
        until(done, partial(self._check_alive, what), pause=0.1)

    def _check_alive(self, what: str, waited: float) -> None:
        if has_ended(self.process):
            raise LakehouseError(f"the Iceberg sink, waiting for {what}: {last_lines(self.folder / 'connect.log')}")
        status = json.dumps(request(self.rest_port, "GET", "/connectors?expand=status"))
        if '"FAILED"' in status:
            raise LakehouseError(f"the Iceberg sink, waiting for {what}: {status[:3000]}")
        if waited > TIMEOUT_SECONDS:
            raise LakehouseError(f"the Iceberg sink: {what} did not come within {TIMEOUT_SECONDS:.0f} s")


def rows_in(settings: Settings) -> int:
    """The rows of the sink's table, by Trino."""
    return int(query(settings, f"SELECT count(*) FROM meta.{TABLE}")[0][0])


@contextmanager
def iceberg_sink(settings: Settings, broker: Broker, topic: str, tasks: int) -> Iterator[Sink]:
    """Runs the sink from the beginning of a topic into its table, which exists. Raises LakehouseError."""
    ports = plan_ports(("rest",), {}, {}, {}) | {"broker": int(broker.server.rpartition(":")[2])}
    java, classes = spark_java_home(settings) / "bin" / "java", kafka_classes(settings)
    with tempfile.TemporaryDirectory(prefix="lakehouse-connect-") as name:
        folder = Path(name)
        _link_plugin(settings, folder / "plugins" / "iceberg")
        properties, log = folder / "worker.properties", folder / "connect.log"
        more = {"plugin.path": folder / "plugins", "offset.flush.interval.ms": POLL_MS}
        properties.write_text(worker(folder, ports, tuned=True) + lines(more))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        process = start([*java_command(java, classes, HEAP_MB, main, str(properties))], log)
        sink = Sink(process, settings, ports["rest"], folder)
        try:
            while not answers(ports["rest"]):
                if has_ended(process):
                    raise LakehouseError(f"Kafka Connect does not start: {last_lines(log)}")
                time.sleep(0.1)
            config = _catalog(settings) | TUNED | {
                "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector", "tasks.max": str(tasks),
                "topics": topic, "iceberg.tables": f"meta.{TABLE}",
            }  # fmt: skip
            request(ports["rest"], "POST", "/connectors", {"name": NAME, "config": config})
            yield sink
        finally:
            stop([process], signal.SIGTERM, 20.0)


def _link_plugin(settings: Settings, folder: Path) -> None:
    """The connector with what it leaves to its user: S3's and Hadoop's clients, and the catalog's driver."""
    folder.mkdir(parents=True)
    pyspark = Path(sysconfig.get_path("purelib")) / "pyspark" / "jars"
    given = settings.artifacts / "jars"
    for jar in (
        *jars(settings, f"iceberg-connect-{ICEBERG}", WANTED).glob("*.jar"), *pyspark.glob("hadoop-client-*.jar"),
        *given.glob("iceberg-aws-bundle-*.jar"), *given.glob("postgresql-*.jar"),
    ):  # fmt: skip
        (folder / jar.name).symlink_to(jar)


def _catalog(settings: Settings) -> dict[str, str]:
    url, secrets = parse_url(settings.catalog_dsn()), (settings.s3.access_key, settings.s3.secret_key)
    of_catalog = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog", "uri": url.jdbc(), "jdbc.user": url.user,
        "jdbc.password": url.password, "jdbc.schema-version": "V1", "jdbc.init-catalog-tables": "false",
        "warehouse": settings.warehouse, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": settings.s3.region, "s3.path-style-access": str(settings.s3.path_style).lower(),
        "s3.endpoint": settings.s3.endpoint or "",
    }  # fmt: skip
    for name, secret in zip(("s3.access-key-id", "s3.secret-access-key"), secrets, strict=True):
        assert secret is not None
        of_catalog[name] = secret.get_secret_value()
    given = {f"iceberg.catalog.{name}": value for name, value in of_catalog.items()}
    return given | {"iceberg.catalog": settings.catalog_name}
