"""Debezium in Kafka Connect, with one Kafka broker, as local processes."""

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.peers.connect import answers, has_ended, request, start, until
from benchmarks.peers.kafka import end_offset, worker
from benchmarks.peers.maven import jars
from benchmarks.workloads import SOURCE
from lakehouse.errors import LakehouseError
from lakehouse.servers.java import spark_java_home
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import last_lines, stop
from lakehouse_stack.servers.kafka import broker_properties, format_command, lines

DEBEZIUM, KAFKA = "3.3.1.Final", "4.1.0"
DOES = f"Debezium {DEBEZIUM}, Kafka {KAFKA}: JSON without schemas in a topic per table; not typed, in no table yet"
DOES_AS_SHIPPED = "the same with the settings that are shipped: JSON with schemas, numerics as bytes, small batches"
WANTED = (
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM),
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    ("org.apache.kafka", "connect-runtime", KAFKA),
)
NAME = "bench_debezium"  # of the connector, its slot and its topics
HEAP = ("-Xms1g", "-Xmx1g")  # of each of the two
TIMEOUT_SECONDS = 600.0  # seconds


@dataclass(frozen=True)
class Debezium:
    """A Kafka broker and a Connect worker that runs the connector."""

    processes: tuple[psutil.Process, ...]
    folder: Path
    server: str
    rest_port: int
    slot_active: Callable[[], bool]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have events."""
        return tuple(sorted(path.name.removesuffix("-0") for path in self.folder.glob(f"data/{NAME}.public.*-0")))

    def pause(self) -> None:
        """Stops the connector, so that changes accumulate in the slot; both processes keep running."""
        self._rest("PUT", "/stop")
        self._until(lambda: not self.slot_active() and not self._tasks(), "the connector's end")

    def resume(self) -> None:
        """Resumes the connector without waiting for it."""
        self._rest("PUT", "/resume")

    def until_streaming(self) -> None:
        """Waits until the connector reads the slot."""
        self._until(self.slot_active, "the connector's start")

    def until_events(self, count: int) -> None:
        """Waits until Kafka has this number of events; raises LakehouseError on timeout or failure."""
        self._until(lambda: self.events() >= count, f"{count} events")

    def events(self) -> int:
        """Number of events in Kafka: the sum of the topics' end offsets, read from the broker's logs."""
        return sum(map(end_offset, self.folder.glob(f"data/{NAME}.public.*-0")))

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Waits until `done`; raises LakehouseError that names `what` on timeout or failure."""
        until(done, partial(self._check_alive, what), pause=0.05)

    def _check_alive(self, what: str, waited: float) -> None:
        """Raises LakehouseError if a process or the connector has failed, or the time limit is reached."""
        for process, log in zip(self.processes, ("broker.log", "connect.log"), strict=True):
            if has_ended(process):
                raise LakehouseError(f"Debezium, waiting for {what}: {last_lines(self.folder / log)}")
        if answers(self.rest_port):
            status = json.dumps(request(self.rest_port, "GET", "/connectors?expand=status"))
            if '"FAILED"' in status:
                raise LakehouseError(f"Debezium, waiting for {what}: {status[:2000]}")
        if waited > TIMEOUT_SECONDS:
            raise LakehouseError(f"Debezium: {what} did not come within {TIMEOUT_SECONDS:.0f} s")

    def _tasks(self) -> Any:
        return self._rest("GET", "/status")["tasks"]

    def _rest(self, method: str, path: str) -> Any:
        return request(self.rest_port, method, f"/connectors/{NAME}{path}")


@contextmanager
def debezium(settings: Settings, tables: tuple[str, ...], tuned: bool) -> Iterator[Debezium]:
    """Runs broker and connector for tables of the publication, with their own slot; removes everything at the end.

    If not `tuned`, they have their default settings except where the measurement needs others.
    """
    classes = jars(settings, f"debezium-{DEBEZIUM}-kafka-{KAFKA}", WANTED)
    java = [str(spark_java_home(settings) / "bin" / "java"), *HEAP, "-cp", f"{classes}/*"]
    ports = plan_ports(("broker", "controller", "rest"), {}, {}, {})
    url = settings.source(SOURCE).url.get_secret_value()
    processes: list[psutil.Process] = []
    with (
        tempfile.TemporaryDirectory(prefix="lakehouse-kafka-") as name,
        psycopg.connect(url, autocommit=True) as source,
    ):

        def slot_active() -> bool:
            found = source.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (NAME,)).fetchone()
            return found is not None and found[0]

        folder = Path(name)
        of_broker, of_worker = folder / "broker.properties", folder / "worker.properties"
        of_broker.write_text(lines(broker_properties(folder, ports["broker"], ports["controller"])))
        of_worker.write_text(worker(folder, ports, tuned))
        subprocess.run(format_command(Path(java[0]), classes, of_broker), check=True, capture_output=True)
        try:
            processes.append(start([*java, "kafka.Kafka", str(of_broker)], folder / "broker.log"))
            connect = "org.apache.kafka.connect.cli.ConnectStandalone"
            processes.append(start([*java, connect, str(of_worker)], folder / "connect.log"))
            server = f"127.0.0.1:{ports['broker']}"
            peer = Debezium(tuple(processes), folder, server, ports["rest"], slot_active)
            peer._until(lambda: answers(ports["rest"]), "Kafka Connect")
            request(ports["rest"], "POST", "/connectors", {"name": NAME, "config": _connector(url, tables, tuned)})
            peer.until_streaming()
            yield peer
        finally:
            stop(processes[::-1], signal.SIGTERM, 20.0)
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
            source.execute(drop, (NAME,))


def _connector(source_url: str, tables: tuple[str, ...], tuned: bool) -> dict[str, str]:
    url = parse_url(source_url)
    large_batches = {
        "decimal.handling.mode": "string", "max.batch.size": "16384", "max.queue.size": "65536",
        "poll.interval.ms": "100",
    }  # fmt: skip
    return (large_batches if tuned else {}) | {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput",
        "database.hostname": url.host, "database.port": str(url.port), "database.dbname": url.database,
        "database.user": url.user, "database.password": url.password, "topic.prefix": NAME, "slot.name": NAME,
        "publication.name": "lakehouse", "publication.autocreate.mode": "disabled", "snapshot.mode": "no_data",
        "table.include.list": ",".join(f"public.{table}" for table in tables), "tombstones.on.delete": "false",
        # it reconnects after it has found its position; the default delay is 10 s while the slot is still in use
        "slot.retry.delay.ms": "200", "slot.max.retries": "100",
    }  # fmt: skip
