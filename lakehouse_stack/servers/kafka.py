"""A Kafka broker that is its own controller (KRaft), and Kafka Connect with Debezium beside it.

The stack starts both with `lakehouse up --with kafka`; tests and benchmarks start brokers of their own by the same
properties. Connect is of the distributed kind, with one worker: the other kind has no exactly-once sources.
"""

import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_shared
from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import KAFKA_FOLDER, kafka_jars
from lakehouse_stack.downloads.download import ensure_artifacts
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import ServerPlacement, run_as
from lakehouse_stack.processes.ownership import own_dir
from lakehouse_stack.processes.process import Launch
from lakehouse_stack.servers.server import Server

BATCH_BYTES = 1 << 20
ALONE = {  # a broker without others
    "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1, "group.initial.rebalance.delay.ms": 0,
}  # fmt: skip
NO_LOGGER = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def lines(properties: Mapping[str, object]) -> str:
    """A file of properties."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def broker_properties(folder: Path, client_port: int, controller_port: int, host: str = LOOPBACK) -> dict[str, object]:
    """A broker that is also the controller, with its data in `folder`."""
    client, controller = f"{host}:{client_port}", f"{LOOPBACK}:{controller_port}"
    return {
        "process.roles": "broker,controller", "node.id": 1, "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}", "controller.listener.names": "CONTROLLER",
        "advertised.listeners": f"PLAINTEXT://{client}", "log.dirs": folder / "data",
        "message.max.bytes": 4 * BATCH_BYTES, **ALONE,
    }  # fmt: skip


def worker_properties(port: int, servers: str, host: str = LOOPBACK) -> dict[str, object]:
    """A worker of Connect that writes JSON without schemas, each change once."""
    json: dict[str, object] = {
        f"{side}.converter{option}": value
        for side in ("key", "value")
        for option, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
    }
    stored = {f"{what}.storage.topic": f"connect-{what}" for what in ("config", "offset", "status")}
    alone = {f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")}
    return json | stored | alone | {
        "bootstrap.servers": servers, "group.id": "connect", "listeners": f"http://{host}:{port}",
        "exactly.once.source.support": "enabled", "plugin.discovery": "service_load",
    }  # fmt: skip


def java_command(java: Path, classes: Path, heap_mb: int, main: str, *arguments: str) -> tuple[str, ...]:
    """Runs a class of Kafka's."""
    heap = (f"-Xms{min(heap_mb, 256)}m", f"-Xmx{heap_mb}m", "-XX:+ExitOnOutOfMemoryError", NO_LOGGER)
    return (str(java), *heap, "-cp", f"{classes}/*", main, *arguments)


def format_command(java: Path, classes: Path, properties: Path) -> tuple[str, ...]:
    """Makes the data folder of a new cluster."""
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    told = ("format", "--ignore-formatted", "--cluster-id", cluster, "--config", str(properties))
    return java_command(java, classes, 256, "kafka.tools.StorageTool", *told)


def kafka_classes(settings: Settings) -> Path:
    """The folder with Kafka's jars, downloaded if they are missing; raises LakehouseError."""
    ensure_artifacts(settings, artifacts=kafka_jars())
    return settings.artifacts / KAFKA_FOLDER


def kafka_servers(
    home: Path, placement: ServerPlacement, java_home: Path, artifacts: Path, ports: Mapping[str, int], heap_mb: int
) -> tuple[Server, Server]:
    """The broker and Connect, on loopback and without logins, as the other servers of one machine are reached."""
    java, classes = placement.program(java_home) / "bin" / "java", placement.program(artifacts / KAFKA_FOLDER)
    servers = f"{LOOPBACK}:{ports['kafka']}"
    of_broker = lines(broker_properties(placement.data / "kafka", ports["kafka"], ports["kafka_controller"]))
    of_worker = lines(worker_properties(ports["connect"], servers))
    broker = _server(home, placement, "kafka", ports["kafka"], of_broker, java, classes, heap_mb, "kafka.Kafka")
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    connect = _server(home, placement, "connect", ports["connect"], of_worker, java, classes, heap_mb, main)
    return broker, connect


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
            _format(placement, folder, format_command(java, classes, properties))

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


def _format(placement: ServerPlacement, folder: Path, command: Sequence[str]) -> None:
    if placement.account is not None:
        run_as(placement.account, 'cd -- "$1" && shift && exec "$@"', folder, *map(Path, command))
        return
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise LakehouseError(f"kafka: its data folder cannot be made: {' '.join(done.stderr.split())[-300:]}")


def broker_trouble(port: int, host: str = LOOPBACK) -> str | None:
    """Why the broker does not serve; None if it does: its listener opens once it is ready."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return None
    except OSError as error:
        return f"no answer ({error})"


def connect_trouble(port: int, host: str = LOOPBACK) -> str | None:
    """Why Connect does not serve; None if it does."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/connectors", timeout=5):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except OSError as error:
        return f"no answer ({error})"
