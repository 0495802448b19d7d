"""The bank through Debezium: its publication, its topics, the connector that fills them, and their declaration."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.servers.connectors import connector_config, failure_of
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.text.shown import shortened
from lakehouse.text.sql import ident
from lakehouse.text.urls import parse_url
from lakehouse_samples.database import session
from lakehouse_samples.loading import SAMPLES

TABLES = SAMPLES["bank"]
ANSWER_SECONDS, START_SECONDS = 30.0, 120.0
NOTED_SECONDS = 10.0  # after a restart Connect may still tell the failure of before
NOT_YET = (404, 409, 500, 503)
LONGEST = 500  # of what Connect says
PUBLISHED = "SELECT 1 FROM pg_publication WHERE pubname = %s"
SLOT = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"


def declaration(source: str, prefix: str) -> str:
    """The text of the file that declares the topics of a connector with this prefix as a source."""
    text = Path(__file__).with_name("debezium.yml").read_text(encoding="utf-8")
    return Template(text).substitute(source=source, prefix=prefix)


def publish(owner_url: str, url: str, publication: str) -> None:
    """Lets the role of `url` read the tables, and publishes them, as their owner; twice changes nothing."""
    tables, role = ", ".join(f"public.{ident(table)}" for table in TABLES), ident(parse_url(url).user)
    with session(owner_url, "bank") as connection, connection.transaction():
        connection.execute(f"GRANT USAGE ON SCHEMA public TO {role}".encode())
        connection.execute(f"GRANT SELECT ON {tables} TO {role}".encode())
        if connection.execute(PUBLISHED, (publication,)).fetchone() is None:
            connection.execute(f"CREATE PUBLICATION {ident(publication)} FOR TABLE {tables}".encode())


def make_topics(properties: Mapping[str, Any], prefix: str) -> None:
    """Makes the topics that are not there, so that they can be read before the first event; raises LakehouseError."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    wanted = [*(f"{prefix}.public.{table}" for table in TABLES), f"{prefix}.transaction"]
    try:
        admin = AdminClient(dict(properties))
        there = admin.list_topics(timeout=ANSWER_SECONDS).topics
        new = [NewTopic(topic, 1, -1) for topic in wanted if topic not in there]
        for made in (admin.create_topics(new) if new else {}).values():
            made.result(ANSWER_SECONDS)
    except (KafkaException, TimeoutError) as error:
        raise LakehouseError(f"the topics {', '.join(wanted)} cannot be made: {error}") from None


def connect(connect_url: str, owner_url: str, url: str, prefix: str, publication: str) -> bool:
    """Has Kafka Connect run the connector, and waits until it streams; returns whether it was not there before.

    Where it has no slot, the offsets that Connect keeps of a former connector go: what happened in between would be
    missing, so it begins with a snapshot. What has failed is restarted, once. Whoever is interrupted can run it again.
    Raises LakehouseError.
    """
    config = connector_config(url, prefix, (f"public.{table}" for table in TABLES), publication)
    path = f"{connect_url}/connectors/{prefix}"
    is_new = _asked("GET", f"{path}/status") is None
    if not _one(owner_url, SLOT, prefix):
        stopped = {"name": prefix, "config": config, "initial_state": "STOPPED"}
        _until(lambda: _asked("POST", f"{connect_url}/connectors", stopped) or _asked("GET", f"{path}/status"), path)
        _until(lambda: _asked("PUT", f"{path}/stop") is not None, path)
        _until(lambda: _asked("DELETE", f"{path}/offsets", not_yet=(*NOT_YET, 400)) is not None, path)
    _until(lambda: _asked("PUT", f"{path}/config", config) is not None, path)
    _until(lambda: _asked("PUT", f"{path}/resume") is not None, path)
    tasks = _Tasks(path)
    _until(lambda: tasks.stream() and _one(owner_url, SLOT, prefix) == [True], path)
    return is_new


@dataclass
class _Tasks:
    """The tasks of a connector. Those that have failed, as where the database was away for long, are restarted once;
    `restarted_at` is when."""

    path: str
    restarted_at: float | None = None
    has_begun: bool = False  # since then

    def stream(self) -> bool:
        """Whether all run; raises LakehouseError where one fails once more."""
        status = _asked("GET", f"{self.path}/status")
        if status is None:
            return False
        says = failure_of(status)
        self.has_begun = self.has_begun or says is None
        if says is None:
            return [task["state"] for task in status["tasks"]] == ["RUNNING"]
        if self.restarted_at is None:
            _asked("POST", f"{self.path}/restart?includeTasks=true&onlyFailed=true")
            self.restarted_at, self.has_begun = time.monotonic(), False
        elif self.has_begun or time.monotonic() - self.restarted_at > NOTED_SECONDS:
            raise LakehouseError(
                f"connector {self.path}: {says}; it was restarted once: correct that, and run this again"
            )
        return False


def _one(owner_url: str, query: str, *values: str) -> list[Any]:
    with session(owner_url, "bank") as connection:
        return list(connection.execute(query.encode(), values).fetchone() or ())


def _until(done: Any, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise LakehouseError(f"connector {path} does not stream after {START_SECONDS:.0f} s: see its log")
        time.sleep(0.2)


def _asked(method: str, url: str, body: object = None, not_yet: tuple[int, ...] = NOT_YET) -> Any:
    """What Connect answers; None where there is no such connector, or Connect is not ready. Raises LakehouseError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code in not_yet:
            return None
        says = " ".join(error.read().decode(errors="replace").split())
        raise LakehouseError(f"{url}: Kafka Connect answers {error.code}: {shortened(says, LONGEST)}") from None
    except BROKEN_OFF as error:
        raise LakehouseError(f"{url}: Kafka Connect does not answer ({error})") from None
