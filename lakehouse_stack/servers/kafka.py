"""A Kafka broker that is its own controller (KRaft), and Kafka Connect with Debezium beside it.

The stack starts both with `lakehouse up --with kafka`; tests and benchmarks start brokers of their own by the same
properties. Connect is of the distributed kind, with one worker: the other kind has no exactly-once sources.
"""

import os
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_shared
from lakehouse.servers.java import spark_java_home
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import kafka_folder, kafka_jars
from lakehouse_stack.downloads.download import ensure_artifacts
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import Account, ServerPlacement, run_as
from lakehouse_stack.processes.ownership import own_dir
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.server import Server

BATCH_BYTES = 1 << 20
CONTAINER_PORT, CONTROLLER_PORT, CONNECT_PORT = 9092, 9093, 8083
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
ALONE = {  # a broker without others
    "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1, "group.initial.rebalance.delay.ms": 0,
}  # fmt: skip
NO_LOGGER = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def lines(properties: Mapping[str, object]) -> str:
    """A file of properties."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def broker_properties(
    folder: Path, client_port: int, controller_port: int, host: str = LOOPBACK, bound_to: str = LOOPBACK
) -> dict[str, object]:
    """A broker that is also the controller, with its data in `folder`; clients reach it by `host`."""
    client, controller = f"{host}:{client_port}", f"{LOOPBACK}:{controller_port}"
    return {
        "process.roles": "broker,controller", "node.id": 1, "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{bound_to}:{client_port},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}", "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "message.max.bytes": 4 * BATCH_BYTES, **ALONE,
    }  # fmt: skip


def worker_properties(port: int, servers: str, bound_to: str = LOOPBACK) -> dict[str, object]:
    """A worker of Connect that writes JSON without schemas, each change once."""
    json: dict[str, object] = {
        f"{side}.converter{option}": value
        for side in ("key", "value")
        for option, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
    }
    stored = {f"{what}.storage.topic": f"connect-{what}" for what in ("config", "offset", "status")}
    alone = {f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")}
    return json | stored | alone | {
        "bootstrap.servers": servers, "group.id": "connect", "listeners": f"http://{bound_to}:{port}",
        "exactly.once.source.support": "enabled", "plugin.discovery": "service_load",
    }  # fmt: skip


def java_command(java: Path, classes: Path, heap_mb: int, main: str, *arguments: str) -> tuple[str, ...]:
    """Runs a class of Kafka's."""
    heap = (f"-Xms{min(heap_mb, 256)}m", f"-Xmx{heap_mb}m", "-XX:+ExitOnOutOfMemoryError", NO_LOGGER)
    return (str(java), *heap, "-cp", f"{classes}/*", main, *arguments)


def format_command(java: Path, classes: Path, properties: Path) -> tuple[str, ...]:
    """Makes the data folder of a new cluster."""
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # the id may begin with a hyphen, and would be an option by itself
    told = ("format", "--ignore-formatted", f"--cluster-id={cluster}", "--config", str(properties))
    return java_command(java, classes, 256, "kafka.tools.StorageTool", *told)


def kafka_classes(settings: Settings) -> Path:
    """The folder with Kafka's jars, downloaded if they are missing; raises LakehouseError."""
    ensure_artifacts(settings, artifacts=kafka_jars())
    return settings.artifacts / kafka_folder()


def kafka_servers(
    home: Path, placement: ServerPlacement, java_home: Path, artifacts: Path, ports: Mapping[str, int], heap_mb: int
) -> tuple[Server, Server]:
    """The broker and Connect, on loopback and without logins, as the other servers of one machine are reached."""
    java, classes = placement.program(java_home) / "bin" / "java", placement.program(artifacts / kafka_folder())
    servers = f"{LOOPBACK}:{ports['kafka']}"
    of_broker = lines(broker_properties(placement.data / "kafka", ports["kafka"], ports["kafka_controller"]))
    of_worker = lines(worker_properties(ports["connect"], servers))
    broker = _server(home, placement, "kafka", ports["kafka"], of_broker, java, classes, heap_mb, "kafka.Kafka")
    connect = _server(home, placement, "connect", ports["connect"], of_worker, java, classes, heap_mb, CONNECT)
    return broker, connect


def broker_in_container(folder: Path, host: str, settings: Settings, heap_mb: int) -> NoReturn:
    """Replaces this process by the broker of docker/, with its data on the volume `folder`; clients call it `host`."""
    java, classes = spark_java_home(settings) / "bin" / "java", settings.artifacts / kafka_folder()
    properties = Path(tempfile.mkdtemp()) / "broker.properties"
    properties.write_text(lines(broker_properties(folder, CONTAINER_PORT, CONTROLLER_PORT, host, "0.0.0.0")))
    if not (folder / "data" / "meta.properties").exists():
        _format(None, folder, format_command(java, classes, properties))
    command = java_command(java, classes, heap_mb, "kafka.Kafka", str(properties))
    os.execv(command[0], command)


def connect_in_container(servers: str, settings: Settings, heap_mb: int) -> NoReturn:
    """Replaces this process by the Connect of docker/, a worker for the brokers `servers`."""
    java, classes = spark_java_home(settings) / "bin" / "java", settings.artifacts / kafka_folder()
    properties = Path(tempfile.mkdtemp()) / "worker.properties"
    properties.write_text(lines(worker_properties(CONNECT_PORT, servers, "0.0.0.0")))
    command = java_command(java, classes, heap_mb, CONNECT, str(properties))
    os.execv(command[0], command)


def _server(
    home: Path,
    placement: ServerPlacement,
    name: str,
    port: int,
    text: str,
    java: Path,
    classes: Path,
    heap_mb: int,
    main: str,
) -> Server:
    folder, properties = placement.data / name, placement.config / f"{name}.properties"

    def prepare() -> None:
        own_dir(folder, placement.account)
        write_shared(properties, text)
        if name == "kafka" and not (folder / "data" / "meta.properties").exists():
            _format(placement.account, folder, format_command(java, classes, properties))

    return Server(
        name=name,
        port=port,
        launch=Launch(
            argv=java_command(java, classes, heap_mb, main, str(properties)),
            cwd=folder,
            log=home / "logs" / f"{name}.log",
            env={},
            account=placement.account,
            config=text,
        ),
        check_health=(lambda: broker_trouble(port)) if name == "kafka" else (lambda: connect_trouble(port)),
        prepare=prepare,
        after_start=lambda: None,
        working_dir=folder,
        program="java",
    )


def _format(account: Account | None, folder: Path, command: Sequence[str]) -> None:
    if account is not None:
        run_as(account, 'cd -- "$1" && shift && exec "$@"', folder, *map(Path, command))
        return
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise LakehouseError(f"kafka: its data folder cannot be made: {' '.join(done.stderr.split())[-300:]}")


def broker_trouble(port: int, host: str = LOOPBACK) -> str | None:
    """Why the broker does not serve; None if it does: its listener opens once it is ready."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return None
    except BROKEN_OFF as error:
        return f"no answer ({error})"


def connect_trouble(port: int, host: str = LOOPBACK) -> str | None:
    """Why Connect does not serve; None if it does."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/connectors", timeout=5):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except BROKEN_OFF as error:
        return f"no answer ({error})"
