"""When a follower publishes next, and what it says of errors."""

import json
import logging
import math
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ingestion.run import follow
from ingestion.run.pace import Last, flush_in, look_in
from ingestion.run.pauses import Pauses
from lakehouse.errors import LakehouseError
from lakehouse.settings import IngestionSettings, Settings
from lakehouse.text.log_lines import JsonFormatter, about

LIMITS = IngestionSettings(flush_interval_seconds=0.5, flush_bytes=1000)


def test_a_source_in_steady_work_leaves_publishing_half_of_the_time() -> None:
    last = Last()
    for begun in (0.0, 4.0):
        last.passed(begun, 2.0, had_rows=True)
    assert flush_in(LIMITS, 10, since_begun=2.0, took=last.took) == 2.0
    assert flush_in(LIMITS, 10, since_begun=4.5, took=last.took) == 0.0
    assert flush_in(LIMITS, 1000, since_begun=2.0, took=last.took) == 0.0, "much has gathered"


def test_one_slow_publish_does_not_delay_the_next() -> None:
    last = Last()
    for begun, took in ((0.0, 0.4), (1.0, 3.0)):
        last.passed(begun, took, had_rows=True)
    assert flush_in(LIMITS, 10, since_begun=3.0, took=last.took) == 0.0


def test_a_cycle_without_rows_holds_nothing_up() -> None:
    last = Last()
    last.passed(0.0, 0.1, had_rows=True)
    last.passed(10.0, 5.0, had_rows=False)
    assert (last.begun, last.published, last.took) == (10.0, 0.0, 0.1)


@pytest.mark.parametrize("let_go", [True, False])
def test_a_stream_stands_still_while_tables_are_registered_but_not_for_ever(
    let_go: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = SimpleNamespace(registering=threading.Event())
    follow._stand_still(session, threading.Event())
    session.registering.set()
    monkeypatch.setattr(follow, "STILL_SECONDS", 60.0 if let_go else 0.2)
    if let_go:
        threading.Timer(0.2, session.registering.clear).start()
    follow._stand_still(session, threading.Event())
    assert session.registering.is_set() != let_go


@pytest.mark.parametrize("ends", ["the follower", "its JVM", None])
def test_an_error_is_told_with_its_traceback_unless_the_end_has_caused_it(
    ends: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal to the whole process group ends the JVM in the middle of a call, a moment before the follower hears."""
    stop, jvm = threading.Event(), SimpleNamespace(poll=lambda: 143 if ends == "its JVM" else None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
    calls = []

    def fail(*_: object) -> None:
        calls.append(None)
        if ends == "the follower":
            threading.Timer(0.1, stop.set).start()
        elif len(calls) == 2:
            stop.set()
        raise RuntimeError("the connection to the JVM")

    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.5)
    source: Any = SimpleNamespace(name="shop")
    with caplog.at_level(logging.INFO):
        follow._follow_again(Settings(), source, spark, stop, fail)
    assert ("Traceback" in caplog.text) == (ends is None)


def test_an_error_of_a_load_names_its_source_in_a_log_of_json(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The field was there in lines of the follower's own thread alone."""
    lines, stop = list[dict[str, str]](), threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    def fails(_: object) -> None:
        stop.set()
        raise LakehouseError("permission denied for table orders")

    context = SimpleNamespace(setLocalProperty=lambda *_: None, setJobGroup=lambda *_, **__: None)
    session: Any = SimpleNamespace(name="shop", spark=SimpleNamespace(sparkContext=context), stop=stop, limits=LIMITS)
    monkeypatch.setattr(follow, "connections", fails)
    loader = follow.Loader(session)
    monkeypatch.setattr(follow.log, "handlers", [Handler()])
    caplog.set_level(logging.INFO, "lakehouse.follow")
    table: Any = SimpleNamespace(name="orders")
    with about(source="shop"):
        loader.start_if_needed([table])
    loader.join(threading.Event())
    assert [(line["source"], "loading orders" in line["message"]) for line in lines] == [("shop", True)]


@pytest.mark.parametrize(
    ("fails", "ended", "leaves"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_follower_that_is_stopped_while_its_source_fails_is_not_missed(
    fails: bool, ended: bool, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose JVM was killed is: it ends by itself, and nobody has wanted it to."""
    left, stop, broken, jvm = list[str](), threading.Event(), threading.Event(), SimpleNamespace(poll=lambda: None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
    monkeypatch.setattr(follow.leases, "leave", lambda _, source: left.append(source))

    def once(*_: object) -> None:
        if ended:
            broken.set()
        stop.set()
        if fails:
            raise LakehouseError("permission denied for table orders")

    source: Any = SimpleNamespace(name="shop")
    follow._follow_source(Settings(), source, spark, stop, once, broken)
    assert left == (["shop"] if leaves else [])


@pytest.mark.parametrize("stops", [False, True])
def test_a_follower_whose_jvm_ends_alone_is_broken(stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to the whole group ends both, and the JVM may be the first."""
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.2)
    jvm = SimpleNamespace(poll=lambda: 9)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
    stop, broken, threads = threading.Event(), threading.Event(), SimpleNamespace(tend=list, end=list)
    if stops:
        threading.Timer(0.05, stop.set).start()
    with nullcontext() if stops else pytest.raises(LakehouseError, match="JVM has ended"):
        follow._run_threads(Settings(), threads, spark, stop, broken)  # type: ignore[arg-type]
    assert broken.is_set() != stops


def test_a_failure_after_hours_of_work_is_tried_again_as_soon_as_the_first_one() -> None:
    """Failures of a follower's whole life added up: after five of them, each outage of a second cost half a minute."""
    pauses = Pauses(1.0)
    assert [pauses.after(0.1) for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [pauses.after(lasted) for lasted in (3600.0, 0.1, 29.0, 31.0)] == [1.0, 2.0, 4.0, 1.0]


def test_what_is_held_is_published_in_time_though_nothing_new_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def is_due(stream: Any) -> bool:
        asked.append(None)
        return len(asked) > 3

    limits = IngestionSettings(poll_seconds=0.01)
    session: Any = SimpleNamespace(
        name="web", limits=limits, flush_is_due=is_due, reached=lambda stream: stream.position
    )
    source: Any = SimpleNamespace(distance=lambda start, end: 0, now=lambda: SimpleNamespace(position=0))
    monkeypatch.setattr(follow.store, "read_stream", lambda *_: SimpleNamespace(revision=1, position=0))
    waited = threading.Thread(
        target=follow._wait_for_flush,
        args=(session, source, None, None, threading.Event(), follow.Loader(session), Last()),
        daemon=True,
    )
    waited.start()
    waited.join(20)
    assert not waited.is_alive() and len(asked) == 4


def test_an_idle_source_is_looked_at_seldom_but_not_while_a_load_waits_for_its_cycles() -> None:
    looks = [
        look_in(0.5, live, idle_for, loading)
        for live, idle_for, loading in [
            (False, math.inf, False),
            (True, 1.0, False),
            (True, 31.0, False),
            (True, math.inf, True),
        ]
    ]
    assert looks == [0.5, 1.0, 5.0, 1.0]
