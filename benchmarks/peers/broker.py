"""A Kafka broker of a benchmark's own, and producers that fill its topics."""

import io
import json
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lakehouse.errors import LakehouseError
from lakehouse.servers.java import spark_java_home
from lakehouse.settings import Settings
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import last_lines, stop
from lakehouse_stack.servers.kafka import (
    broker_properties,
    broker_trouble,
    format_command,
    java_command,
    kafka_classes,
    lines,
)

HEAP_MB = 1024
START_SECONDS = 60.0
SCHEMA_ID = 1
Event = Callable[[int], bytes]


@dataclass(frozen=True)
class Broker:
    """A broker that runs."""

    process: psutil.Process
    server: str
    folder: Path

    def create(self, topic: str, partitions: int) -> None:
        """Makes a topic."""
        admin = AdminClient({"bootstrap.servers": self.server})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def fill(self, topic: str, first: int, last: int, partitions: int, event: Event) -> None:
        """Produces the events `first` to `last`, exclusive, to all partitions in turn; raises LakehouseError."""
        options = {"linger.ms": 50, "batch.num.messages": 100_000, "batch.size": 1 << 20, "compression.type": "lz4"}
        producer = Producer({"bootstrap.servers": self.server, "queue.buffering.max.messages": 500_000} | options)
        for number in range(first, last):
            while True:
                try:
                    producer.produce(topic, event(number), partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
        if producer.flush(120):
            raise LakehouseError(f"topic {topic} could not be filled")


@contextmanager
def running_broker(settings: Settings) -> Iterator[Broker]:
    """Starts a broker without topics; removes it and its data at the end. Raises LakehouseError."""
    classes, java = kafka_classes(settings), spark_java_home(settings) / "bin" / "java"
    ports = plan_ports(("broker", "controller"), {}, {}, {})
    with tempfile.TemporaryDirectory(prefix="lakehouse-kafka-") as name:
        folder = Path(name)
        properties, log = folder / "broker.properties", folder / "broker.log"
        properties.write_text(lines(broker_properties(folder, ports["broker"], ports["controller"])))
        subprocess.run(format_command(java, classes, properties), check=True, capture_output=True)
        with log.open("wb") as output:
            command = java_command(java, classes, HEAP_MB, "kafka.Kafka", str(properties))
            started = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        process, deadline = psutil.Process(started.pid), time.monotonic() + START_SECONDS
        try:
            while broker_trouble(ports["broker"]) is not None:
                if started.poll() is not None or time.monotonic() > deadline:
                    raise LakehouseError(f"the broker does not start: {last_lines(log)}")
                time.sleep(0.1)
            yield Broker(process, f"127.0.0.1:{ports['broker']}", folder)
        finally:
            stop([process], signal.SIGTERM, 20.0)


def as_json(number: int) -> bytes:
    """A narrow event as most producers write it."""
    return f'{{"id": {number}, "name": "name {number}", "amount": {number / 100}}}'.encode()


SCHEMA = {
    "type": "record", "name": "event", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    ],
}  # fmt: skip


def as_avro(number: int) -> bytes:
    """The same event in Avro, framed for a schema registry."""
    size = (number.bit_length() + 8) // 8
    return b"".join((
        b"\0", SCHEMA_ID.to_bytes(4, "big"), _long(number), _long(len(name := f"name {number}".encode())), name,
        _long(size), number.to_bytes(size, "big", signed=True),
    ))  # fmt: skip


def _long(number: int) -> bytes:
    out, left = bytearray(), number << 1
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def check_avro() -> None:
    """Raises LakehouseError if the events are not what their schema says."""
    read: Any = fastavro.schemaless_reader(io.BytesIO(as_avro(12345)[5:]), fastavro.parse_schema(SCHEMA), None)
    if (read["id"], read["name"], str(read["amount"])) != (12345, "name 12345", "123.45"):
        raise LakehouseError(f"the benchmark writes other events than it means to: {read}")


@contextmanager
def registry() -> Iterator[str]:
    """The URL of a server that knows the schema of the events, as a schema registry would tell it."""
    answer = json.dumps({"schema": json.dumps(SCHEMA)}).encode()

    class Handler(BaseHTTPRequestHandler):
        """Tells the one schema."""

        def do_GET(self) -> None:
            """Whatever is asked for."""
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
