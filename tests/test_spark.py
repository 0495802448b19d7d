"""The Spark session's JVM."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.servers.spark import JARS, WORKERS
from lakehouse.settings import Settings
from tests.disks import small_disk
from tests.marks import slow

pytestmark = pytest.mark.stack


@pytest.mark.slow
def test_the_heap_grows_when_work_needs_it(spark: SparkSession) -> None:
    """A heap that only collects when it is full, and does not grow, makes a large compaction take hours."""
    jvm, mebibyte = spark._jvm, 1 << 20
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    begun = _collections(jvm)
    held = jvm.java.util.ArrayDeque()
    try:
        for _ in range(runtime.maxMemory() * 6 // 10 // mebibyte):
            held.add(jvm.java.nio.ByteBuffer.allocate(mebibyte))
        assert _collections(jvm) - begun < 60
    finally:
        held.clear()
        jvm.java.lang.System.gc()


JOB = """
import os, time
from lakehouse.servers.spark import spark_session
from lakehouse.settings import load_settings
from lakehouse_cli import commands, main

def work():
    spark = spark_session(load_settings(), "interrupted")
    print("started", flush=True)
    try:
        spark.range(2).rdd.map(lambda row: time.sleep(120)).collect()
    finally:
        print("cleaned up", flush=True)

commands.run_command = work
main.main()
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_command_in_the_middle_of_a_job(settings: Settings) -> None:
    """PySpark took the handler over: it waited for the job's end to cancel it, and raised at each further Ctrl-C."""
    command = [sys.executable, "-c", JOB]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        time.sleep(5)  # the job is at work
        pressed = time.monotonic()
        for _ in range(3):
            running.send_signal(signal.SIGINT)
            time.sleep(0.3)
        output, errors = running.communicate(timeout=60)
    assert (running.returncode, output, errors) == (130, "cleaned up\n", "error: interrupted\n")
    assert time.monotonic() - pressed < 30


LOST = """
import sys, threading, time
import psutil
from ingestion.tasks.outage import outage
from lakehouse.servers.spark import spark_session
from lakehouse.settings import load_settings
from lakehouse_cli import commands, main

def kill():
    next(child for child in psutil.Process().children() if child.name() == "java").kill()

def job():
    spark.range(2).rdd.map(lambda row: time.sleep(5)).collect()

def work():
    global spark
    spark = spark_session(load_settings(), "killed")
    threading.Timer(2, kill).start() if sys.argv[1] == "in a job" else kill()
    for _ in range(2):
        try:
            job()
        except Exception as error:
            print(outage("shop", error))
    job()

commands.run_command = work
main.main()
"""


@pytest.mark.parametrize("when", ["in a job", slow("before it")])
def test_a_killed_jvm_is_told_as_such(settings: Settings, when: str) -> None:
    """It was "object store or disk: Connection refused", after Py4J's traceback."""
    done = subprocess.run([sys.executable, "-c", LOST, when], capture_output=True, text=True, check=False)
    ended = "Spark's JVM has ended; the end of logs/spark.log in the home may say why; "
    assert done.stdout == f"source 'shop': {ended}nothing is lost, the next run goes on from here\n" * 2
    assert done.stderr == f"error: {ended}run this again\n"


START = """
from lakehouse.servers.spark import spark_session
from lakehouse.settings import load_settings
from lakehouse_cli import commands, main

commands.run_command = lambda: spark_session(load_settings(), "interrupted")
main.main()
"""


@pytest.mark.parametrize("seconds", [1.6, slow(0.4), slow(0.8), slow(1.2), slow(2.0), slow(2.4)])
def test_ctrl_c_while_spark_starts_leaves_no_jvm(settings: Settings, seconds: float) -> None:
    """It was left behind for good: the folder by which it learns of its end was gone."""
    before = _jvms(settings)
    with subprocess.Popen([sys.executable, "-c", START], stderr=subprocess.PIPE, start_new_session=True) as running:
        while not psutil.Process(running.pid).children():
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(seconds)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    time.sleep(3)  # a JVM that goes by itself has gone
    left = _jvms(settings) - before
    assert not left
    assert (running.returncode, errors) in ((130, b"error: interrupted\n"), (0, b"")), "it may have started by then"


@pytest.mark.slow
def test_a_full_disk_while_spark_starts_is_one_line(settings: Settings, tmp_path: Path) -> None:
    """Java's error came with two tracebacks: its JVM was ended, and it alone knew the error's text."""
    home = tmp_path / "home"
    with small_disk(home, 8):
        place = {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_CATALOG_URL": settings.catalog_dsn()}
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, env=os.environ | place)
        assert done.returncode == 1
        assert re.fullmatch(rf"error: {home}\S*: No space left on device; make room, .*\n", done.stderr), done.stderr
        assert not [p for p in psutil.process_iter(["cmdline"]) if str(home) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.slow
def test_a_full_disk_of_sparks_own_is_named(settings: Settings, tmp_path: Path) -> None:
    """The home was named, on whose disk there was room."""
    small = tmp_path / "small"
    with small_disk(small, 8):
        place = {"LAKEHOUSE_HOME": str(tmp_path / "home"), "LAKEHOUSE_CATALOG_URL": settings.catalog_dsn()}
        place["SPARK_LOCAL_DIRS"] = str(small)
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, env=os.environ | place)
        assert (done.returncode, done.stderr) == (
            1,
            f"error: {small}: No space left on device; make room, then run this again\n",
        )


def _jvms(settings: Settings) -> set[int]:
    """Those of Spark that work in the home."""
    place = str(settings.home / "run" / "spark")
    found = [process.info for process in psutil.process_iter(["pid", "cmdline", "status"])]
    return {p["pid"] for p in found if place in " ".join(p["cmdline"] or ()) and p["status"] != psutil.STATUS_ZOMBIE}


def _collections(jvm: object) -> int:
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()  # type: ignore[attr-defined]
    return sum(bean.getCollectionCount() for bean in beans)


@pytest.mark.parametrize(
    "name",
    ["net.jpountz.lz4.LZ4Factory", "io.netty.channel.Channel", "io.netty.handler.codec.ByteToMessageDecoder",
     "io.netty.handler.ssl.SslHandler", "io.netty.buffer.ByteBuf"],
)  # fmt: skip
def test_spark_loads_the_fixed_releases_and_not_its_own(settings: Settings, spark: SparkSession, name: str) -> None:
    assert spark._jvm is not None
    loaded = spark._jvm.java.lang.Class.forName(name).getProtectionDomain().getCodeSource().getLocation()
    assert Path(loaded.getPath()).is_relative_to(settings.artifacts / "fixed")


def test_no_native_part_of_another_release_is_loaded_by_the_fixed_netty(spark: SparkSession) -> None:
    """It would fail where a port is opened; Spark goes without."""
    assert spark._jvm is not None
    assert not spark._jvm.io.netty.channel.epoll.Epoll.isAvailable()


# who else is on the machine


def unknown_peer(jvm: Any) -> Any:
    """What another user's Spark connects with: it has no secret, and speaks to the port like any executor."""
    spark = jvm.org.apache.spark
    conf = spark.SparkConf(False)
    for name, value in {"numRetries": "1", "askTimeout": "20s"}.items():
        conf.set(f"spark.rpc.{name}", value)
    default = getattr(spark.SecurityManager, "$lessinit$greater$default$3")()
    manager = spark.SecurityManager(conf, jvm.scala.Option.apply(None), default)
    return spark.rpc.RpcEnv.create("attacker", "127.0.0.1", "127.0.0.1", 0, conf, manager, 0, True)


def test_nobody_without_the_secret_speaks_to_the_driver(spark: SparkSession) -> None:
    """Who could, sends it Java objects, takes its files, and tells it that it is an executor."""
    jvm, port = spark._jvm, spark.sparkContext.getConf().get("spark.driver.port")
    assert jvm is not None and port
    peer = unknown_peer(jvm)
    try:
        with pytest.raises(Py4JJavaError, match="awaitResult"):
            peer.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(port)), "BlockManagerMaster")
        file = peer.openChannel(f"spark://127.0.0.1:{port}/jars/{JARS[-1]}")
        with pytest.raises(Py4JJavaError, match="Unauthenticated"):
            file.read(jvm.java.nio.ByteBuffer.allocate(4))
    finally:
        peer.shutdown()


def test_nobody_without_the_secret_speaks_to_the_block_manager(spark: SparkSession) -> None:
    """It would tell where its files are, hand out blocks, and take those of anybody."""
    jvm = spark._jvm
    assert jvm is not None
    java_conf = jvm.org.apache.spark.SparkConf(False)
    conf = jvm.org.apache.spark.network.netty.SparkTransportConf.fromSparkConf(
        java_conf, "shuffle", 1, jvm.scala.Option.apply(None), jvm.scala.Option.apply(None)
    )
    client = jvm.org.apache.spark.network.shuffle.ExternalBlockStoreClient(conf, None, False, 20_000)
    client.init(spark.sparkContext.applicationId)
    manager = jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    told = jvm.java.util.concurrent.CompletableFuture()
    executors = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)
    executors[0] = manager.executorId()
    try:
        client.getHostLocalDirs("127.0.0.1", manager.port(), executors, told)
        with pytest.raises(Py4JJavaError, match="Unknown challenge message"):
            told.get(20, jvm.java.util.concurrent.TimeUnit.SECONDS)
    finally:
        client.close()


def test_the_processes_that_run_python_listen_on_no_port(spark: SparkSession) -> None:
    """Each connection to a port of Spark's Python daemon made it fork a process, before it asked for the secret."""
    spark.range(4).mapInArrow(lambda batches: batches, "id bigint").count()
    # cmdline() raises for a zombie, as_dict() gives None
    daemons = [
        child
        for child in psutil.Process().children(recursive=True)
        if WORKERS in (child.as_dict(["cmdline"])["cmdline"] or ())
    ]
    assert daemons
    connections = [one for process in (psutil.Process(), *daemons) for one in process.net_connections()]
    assert [one for one in connections if one.status == psutil.CONN_LISTEN] == []


def test_what_spark_spills_is_in_folders_that_only_the_owner_may_enter(settings: Settings, spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    spark.range(1000).repartition(2).count()
    local = [
        Path(str(folder))
        for folder in jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()
    ]
    workspaces = settings.home / "run" / "spark"
    assert local and all(workspaces in folder.parents for folder in local)
    assert {path.stat().st_mode & 0o077 for folder in local for path in (folder, *folder.parents[:3])} == {0}
    assert not list(workspaces.glob("*/*.properties")), "the keys are gone once Spark has read them"
