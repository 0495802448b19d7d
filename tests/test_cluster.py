"""Ingestion on a Spark cluster: a standalone master with two workers, each a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark
import pytest
from pydantic import SecretStr

from lakehouse.servers.java import spark_java_home
from lakehouse.settings import Settings
from tests.ports import free_port
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]
PROPERTIES = Path(__file__).parent.parent / "docker" / "spark.conf"
SECRET = "5c1dab77" * 4
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@pytest.fixture(scope="module")
def master(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running master that has two workers of one core each."""
    folder = tmp_path_factory.mktemp("spark-cluster")
    environment = os.environ | {
        "JAVA_HOME": str(spark_java_home(settings)), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(folder), "SPARK_DAEMON_MEMORY": "256m", "_SPARK_AUTH_SECRET": SECRET,
    }  # fmt: skip
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as ends:

        def start(name: str, *arguments: str) -> None:
            log = ends.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [str(SPARK_CLASS), *arguments, "--properties-file", str(PROPERTIES)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            ends.callback(process.wait, 30)
            ends.callback(process.terminate)

        start(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        for number in (1, 2):
            start(
                f"worker{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), url,
            )  # fmt: skip
        _until_registered(folder / "master.log", workers=2)
        yield url


def _until_registered(log: Path, workers: int) -> None:
    deadline = time.monotonic() + 180  # beside other tests
    while log.read_text().count("Registering worker") < workers:
        assert time.monotonic() < deadline, log.read_text()[-1000:]
        time.sleep(0.2)


def on_cluster(world: World, master: str, secret: str = SECRET) -> World:
    """The same world, whose Spark tasks run on the cluster."""
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    spark = world.settings.spark.model_copy(update={"master": master, "conf": conf, "secret": SecretStr(secret)})
    return World(world.settings.model_copy(update={"spark": spark}), world.source, world.owner_url)


def test_snapshot_and_changes_run_in_the_workers_tasks(settings: Settings, master: str, tmp_path: Path) -> None:
    world = on_cluster(make_world(settings, ORDERS, TABLES, snapshot_chunk_bytes=200_000), master)
    world.sql("INSERT INTO orders SELECT i, 'customer ' || i, i, NULL FROM generate_series(1, 20000) i")
    outcome = world.driver()
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    world.sql(
        "UPDATE orders SET customer = 'x' WHERE id % 3 = 0", "DELETE FROM orders WHERE id % 7 = 0",
        "INSERT INTO lines SELECT i, 1, 1 FROM generate_series(1, 6) i",
    )  # fmt: skip
    outcome = world.driver()
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    for table in TABLES:
        assert_equal(world, table)
    assert_order_is_unique(world, "orders")


def test_who_has_another_secret_runs_nothing_on_the_cluster(settings: Settings, master: str) -> None:
    world = on_cluster(make_world(settings, ORDERS, TABLES), master, secret="0" * 32)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    outcome = world.driver()
    assert outcome.returncode != 0 and "Spark" in outcome.stderr
    assert world.raw("orders") == []


def test_the_secret_of_the_cluster_is_in_no_argument(master: str) -> None:
    seen = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert any("deploy.worker.Worker" in line for line in seen)
    assert not any(SECRET in line for line in seen)
