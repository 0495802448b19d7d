"""A connector whose task has failed, by the status of Connect's REST API: it is told, and the sample restarts it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.connectors import failure_of, source_of_connector
from lakehouse.settings import Settings
from lakehouse_samples.bank import debezium
from lakehouse_stack.control import connectors
from lakehouse_watch.probes import sources

TRACE = """org.apache.kafka.connect.errors.ConnectException: An exception occurred in the change event producer.
\tat io.debezium.pipeline.ErrorHandler.setProducerThrowable(ErrorHandler.java:67)
Caused by: io.debezium.DebeziumException: it went on
\tat io.debezium.Whatever(Whatever.java:1)
Caused by: org.postgresql.util.PSQLException: ERROR: replication slot "bank_topics" does not exist
\t... 7 more
"""
SAYS = (
    "task 0 has failed: org.apache.kafka.connect.errors.ConnectException: An exception occurred in the change event "
    'producer.; org.postgresql.util.PSQLException: ERROR: replication slot "bank_topics" does not exist'
)


def status(*tasks: str, connector: str = "RUNNING") -> dict[str, Any]:
    """As Connect tells it."""
    traces = {"FAILED": {"trace": TRACE}}
    told = [{"id": number, "state": state, **traces.get(state, {})} for number, state in enumerate(tasks)]
    return {"name": "bank_topics", "connector": {"state": connector, "worker_id": "w"}, "tasks": told, "type": "source"}


@dataclass
class Connect:
    """What it answers for a status, one after the other and the last one from then on; `asked` is what came."""

    told: list[dict[str, Any]]
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, asked: str) -> Any:
        self.asked.append(asked)
        if asked == "GET /connectors?expand=info&expand=status":
            info = {"config": {"topic.prefix": "bank_topics"}}
            return {"other": {"info": {"config": {}}}, "mine": {"info": info, "status": self.told[0]}}
        if asked.startswith("POST "):
            return {}
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]


@contextmanager
def running(*told: dict[str, Any]) -> Iterator[Connect]:
    connect = Connect([*told])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(connect.answer(f"{self.command} {self.path}")).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connect.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield connect
        finally:
            server.shutdown()


def settings(folder: Path, prefix: str = "bank_topics") -> Settings:
    of = source_of_connector("broker:9092", prefix, "postgresql://lake:secret@db:5433/bank")
    return Settings.model_validate({"home": folder, "sources": {"topics": of}})


def test_a_failure_is_the_first_line_of_its_trace_and_the_last_cause() -> None:
    assert failure_of(status("FAILED")) == SAYS
    assert failure_of(status("RUNNING", "FAILED")) == SAYS.replace("task 0", "task 1")
    failed = status("RUNNING") | {"connector": {"state": "FAILED", "trace": "java.lang.Error: no disk\n\tat a.b"}}
    assert failure_of(failed) == "it has failed: java.lang.Error: no disk"
    assert failure_of(status() | {"connector": {"state": "FAILED"}}) == "it has failed: no reason told"
    for fine in (status("RUNNING"), status("PAUSED", connector="PAUSED"), status(), status("UNASSIGNED")):
        assert failure_of(fine) is None


@pytest.mark.parametrize(
    ("prefix", "state", "says"),
    [("bank_topics", "FAILED", f"connector mine: {SAYS}"), ("bank_topics", "RUNNING", None), ("shop", "FAILED", None)],
)
def test_a_source_tells_that_its_connector_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, state: str, says: str | None
) -> None:
    """`lakehouse status` had "never ingested", or 0 s behind, and the watch a slot that nobody reads."""
    with running(status(state)) as connect:
        monkeypatch.setattr(connectors, "connect_address", lambda _: connect.url)
        assert connectors.connector_failure(settings(tmp_path, prefix), "topics") == says
        monkeypatch.setattr(sources, "declared_still", lambda _: None)
        monkeypatch.setattr(sources, "connector_trouble", lambda *_: None)
        told = [occasion.summary for occasion in sources.read_connector(settings(tmp_path, prefix), "topics").occasions]
        assert told == ([f"nothing new comes by the topics of topics: {says}"] if says else [])


def test_a_connect_that_does_not_answer_tells_nothing_of_its_connectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("http://127.0.0.1:1", None):
        monkeypatch.setattr(connectors, "connect_address", lambda _, url=url: url)
        assert connectors.connector_failure(settings(tmp_path), "topics") is None


def test_the_sample_restarts_a_task_that_has_failed() -> None:
    told = (status("FAILED"), status("FAILED"), status("RESTARTING"), status("RUNNING"))
    with running(*told) as connect:
        tasks = debezium._Tasks(f"{connect.url}/connectors/bank_topics")
        assert [tasks.stream() for _ in told] == [False, False, False, True]
        restarts = [asked for asked in connect.asked if asked.startswith("POST")]
        assert restarts == ["POST /connectors/bank_topics/restart?includeTasks=true&onlyFailed=true"]


@pytest.mark.parametrize("is_noted", [True, False])
def test_what_fails_once_more_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, is_noted: bool) -> None:
    """The whole trace was told, cut off before its cause, and nothing was restarted."""
    monkeypatch.setattr(debezium, "NOTED_SECONDS", 10.0 if is_noted else 0.0)
    told = (status("FAILED"), *([status("RUNNING")] if is_noted else []), status("FAILED"))
    with running(*told) as connect:
        tasks = debezium._Tasks(f"{connect.url}/connectors/bank_topics")
        assert not tasks.stream()
        assert not is_noted or tasks.stream()
        with pytest.raises(LakehouseError) as failure:
            tasks.stream()
        assert f"/connectors/bank_topics: {SAYS}; it was restarted once: " in str(failure.value)
        assert "\n" not in str(failure.value) and sum("POST" in asked for asked in connect.asked) == 1
