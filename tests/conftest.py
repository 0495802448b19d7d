"""One stack per test session: free ports, its own directory, and no process left behind.

`LAKEHOUSE_TEST_HOME` names a home to keep and use again, which saves the start while a test is being written.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings as hypothesis_settings

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from tests.java import QUICK

os.environ["SPARK_SUBMIT_OPTS"] = QUICK  # Spark's launcher gives them to the JVM of a driver
# Who starts them in the background of a shell, where it is ignored: commands that are tested with it inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_worker", "test_stack", "test_tls", "test_upgrade", "test_vault", "test_wheel", "test_serve_past")


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests, examples are the same each time: a failure is of the change, not of the draw."""
    same = config.option.markexpr == "not slow"
    hypothesis_settings.register_profile("default", deadline=None, derandomize=same)  # a busy machine is no fault
    hypothesis_settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests first: they need no server and fail in seconds. Then the longest files, so that both processes end
    at about the same time."""
    items.sort(key=lambda item: ("unit" not in item.path.parts, item.path.stem not in LONGEST))


@pytest.fixture(scope="session")
def settings() -> Iterator[Settings]:
    """Settings of a running stack in a home of its own."""
    from lakehouse_stack.control.start_stop import down, up
    from lakehouse_stack.servers import trino

    kept = os.environ.get("LAKEHOUSE_TEST_HOME")
    home = Path(kept or tempfile.mkdtemp(prefix="lakehouse-test-"))
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o755)
    before = {name: os.environ.get(name) for name in ("LAKEHOUSE_HOME", "LAKEHOUSE_CONFIG")}
    os.environ["LAKEHOUSE_HOME"] = str(home)
    os.environ["LAKEHOUSE_CONFIG"] = os.devnull
    quick = pytest.MonkeyPatch()
    quick.setattr(trino, "trino_files", _quick_files(trino.trino_files))
    try:
        try:
            up(load_settings())
        except LakehouseError as error:  # another process may take a port between its choice and the server's start
            if "ended while starting" not in str(error):
                raise
            up(load_settings())
        yield load_settings()
    finally:
        if not kept:
            _stop_spark()
            down(load_settings())
            _assert_no_process(home)
            shutil.rmtree(home, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        quick.undo()


def _quick_files(made: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
    def with_option(**given: Any) -> dict[str, str]:
        files = made(**given)
        return files | {"jvm.config": f"{files['jvm.config'].rstrip()}\n{QUICK}"}

    return with_option


@pytest.fixture(scope="module")
def broker(settings: Settings) -> Iterator[Any]:
    """A Kafka broker without topics."""
    from tests.brokers import running_broker

    with running_broker(settings) as running:
        yield running


@pytest.fixture(scope="module")
def connect(settings: Settings, broker: Any) -> Iterator[Any]:
    """A worker of Kafka Connect that delivers exactly once, without connectors."""
    from tests.debezium import running_connect

    with running_connect(settings, broker) as running:
        yield running


@pytest.fixture
def debezium(settings: Settings, broker: Any, connect: Any) -> Iterator[Any]:
    """Makes databases, each with the source of the topics that a connector writes of it; they go with the test."""
    from tests.debezium_world import through

    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(through(settings, broker, connect, **given))


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Any:
    """The session's Spark, started at the first test that needs it."""
    from lakehouse.servers.spark import spark_session

    return spark_session(settings, "lakehouse-tests")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Spark compute the lake's side of every table, as it does for large ones."""
    monkeypatch.setattr(import_module("ingestion.pipeline.repair.compare"), "is_small", lambda iceberg: False)


@pytest.fixture(autouse=True)
def _drop_worlds(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "settings" in request.fixturenames:
        from tests.world import drop_worlds

        drop_worlds(request.getfixturevalue("settings"))


def _stop_spark() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
        SparkContext._gateway.shutdown()
        SparkContext._gateway.proc.stdin.close()
        SparkContext._gateway.proc.wait(timeout=60)


def _assert_no_process(home: Path) -> None:
    left = [p.info for p in psutil.process_iter(["pid", "cmdline"]) if str(home) in " ".join(p.info["cmdline"] or [])]
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def zoo(settings: Settings, tmp_path: Path) -> Iterator[Any]:
    """A source that the project has never seen."""
    from tests.zoo import build_zoo

    zoo = build_zoo(settings, tmp_path)
    yield zoo
    zoo.clear()


@pytest.fixture
def loaded_world(settings: Settings, spark: Any) -> Any:
    """A source with some orders, which are in the lake."""
    from tests.test_ingestion import ORDERS, TABLES
    from tests.test_kills import fill
    from tests.world import make_world

    made = make_world(settings, ORDERS, TABLES)
    fill(made, 1, 50)
    made.ingest(spark)
    return made
