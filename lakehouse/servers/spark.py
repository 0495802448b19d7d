"""The Spark session that ingestion and maintenance share.

All properties travel in a file with mode 0600: PySpark would put them on the command line of the JVM, where `ps`
shows the passwords of the catalog and the object store to everybody. That file, and what Spark spills, lie in a
folder of the home that only its owner may enter.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lakehouse.catalog.open import LOST_CONNECTION
from lakehouse.errors import LakehouseError
from lakehouse.files.logs import keep_bounded
from lakehouse.files.private_files import private_dir, privately, write_private
from lakehouse.files.workspace import private_workspace
from lakehouse.servers.java import spark_java_home
from lakehouse.servers.outage import is_full, no_room, said, text_of
from lakehouse.servers.trust import TRUST_STORE_PASSWORD, write_trust_store
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.servers.spark")

# G1 grows the heap whenever other processes keep it waiting; a follower's JVM then has twice what it needs for good.
# The parallel collector may grow the old generation: without its adaptive policy it collects for ever instead. What the
# heap begins with is touched at once, and not bit by bit over the first quarter of an hour.
STEADY_HEAP = "-XX:+UseParallelGC -XX:+AlwaysPreTouch -Xms384m -Xmn192m"
WORKERS = "ingestion.tasks.daemon"  # the module that Spark's Python workers are forked from
JARS = ("iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "iceberg-aws-bundle-1.12.0.jar", "postgresql-42.7.14.jar")
OVERRIDES = ("fixed/lz4-java-1.13.0", "fixed/netty-4.2.18.Final")  # folders of jars that go before Spark's own

AUTH_SECRET = "spark.authenticate.secret"
AUTHENTICATED = {  # of the driver's ports; `docker/spark.conf` says the same to master and workers
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}


def spark_session(settings: Settings, app_name: str) -> SparkSession:
    """The process's Spark session with the Iceberg catalog; started at the first call (5–9 s), shared afterwards.

    Raises LakehouseError when jars or a fitting Java are missing, or Spark does not start.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    os.environ["JAVA_HOME"] = str(spark_java_home(settings))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.spark.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the machine's own name may not resolve
    properties = _write_properties(settings, app_name)
    log = settings.home / "logs" / "spark.log"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(properties))} pyspark-shell"
    try:
        with _stderr_to(log), privately(), _interrupts_kept():
            session = SparkSession.builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError) as error:
        raise _not_started(error, properties, log) from None
    except BaseException:
        _end_started(properties)
        raise
    finally:
        properties.unlink(missing_ok=True)
    keep_bounded(log)
    session.sparkContext.setLogLevel("ERROR")
    quiet_accumulators()
    quiet_py4j()
    return session


def _not_started(error: Exception, properties: Path, log: Path) -> LakehouseError:
    """The error for people. What has started of the JVM is ended: the next call in this process starts another."""
    from pyspark import SparkContext

    reason, full = said(error), is_full(text_of(error))  # while there is the JVM, which knows
    _end_started(properties)
    SparkContext._gateway = SparkContext._jvm = None
    if full:
        return no_room(min((properties.parent, *local_dirs()), key=lambda folder: shutil.disk_usage(folder).free))
    return LakehouseError(f"Spark did not start ({reason}): the end of {log} says why")


def local_dirs() -> list[Path]:
    """The folders that are set in the place of Spark's local folder, as far as they are there."""
    return [
        folder for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name and (folder := Path(name)).is_dir()
    ]


def _end_started(properties: Path) -> None:
    """Ends the JVM of a start that was interrupted: nobody has a connection by which it would notice the end."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(properties) in word for word in child.cmdline()):
                child.kill()


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keeps the command's handler of Ctrl-C. PySpark's own asks the JVM to cancel all jobs in the middle of the call
    that it interrupts, and raises again at each Ctrl-C during the clean-up."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def quiet_accumulators() -> None:
    """Keeps PySpark's thread that talks to the JVM from printing a traceback when the JVM goes first, as on Ctrl-C."""
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        server.handle_error = _note_error  # type: ignore[method-assign, assignment]


def quiet_py4j() -> None:
    """Keeps Py4J from printing a traceback of the call that Ctrl-C has interrupted, of closing its connection, and of
    each call that finds no JVM: what the caller raises tells it in a line."""
    for name in (None, "py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    from py4j.protocol import Py4JNetworkError

    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt | Py4JNetworkError):
        error = error.__context__
    return error is None


def _note_error(server: object, request: object, client_address: object) -> None:
    level = logging.DEBUG if isinstance(sys.exc_info()[1], EOFError | ConnectionError) else logging.ERROR
    log.log(level, "Spark's accumulator server: a connection ended in an error", exc_info=True)


def has_ended(session: SparkSession) -> bool:
    """Whether the session's JVM, a child of this process, is gone; nothing that needs Spark can work from then on."""
    child = getattr(session.sparkContext._gateway, "proc", None)
    return child is not None and child.poll() is not None


def cancel_jobs(session: SparkSession, group: str) -> None:
    """Cancels the jobs of a group that run now. A session that ends meanwhile has none."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        if not has_ended(session):
            session.sparkContext.cancelJobGroup(group)


def spark_properties(settings: Settings, app_name: str, local: Path) -> dict[str, str]:
    """All Spark properties, the user's `spark.conf` last. Holds secrets: write them only to a private file."""
    fixed = ":".join(str(settings.artifacts / folder / "*") for folder in OVERRIDES)
    properties = {
        "spark.master": settings.spark.master,
        "spark.app.name": app_name,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraClassPath": fixed,
        "spark.executor.extraClassPath": fixed,  # of a cluster, where its machines have them in the same place
        "spark.local.dir": str(local),
        **AUTHENTICATED,
        "spark.jars": ",".join(map(str, _jars(settings))),
        "spark.python.daemon.module": WORKERS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parser.escapedStringLiterals": "false",  # as lakehouse/text/sql.py quotes
        "spark.sql.variable.substitute": "false",  # it takes `${env:…}` in a quoted name or value for a variable
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.warehouse.dir": str(settings.home / "data" / "spark-warehouse"),
        "spark.driver.extraJavaOptions": " ".join((STEADY_HEAP, *_java_options(settings, local))),
        **_sockets(settings, local.parent),
        **_catalog_properties(settings),
    }
    if not settings.spark.master.startswith("local"):
        del properties["spark.driver.host"]
    if settings.spark.secret is not None:
        properties[AUTH_SECRET] = settings.spark.secret.get_secret_value()
    return _known_to_its_peers(properties | settings.spark.conf)


def _catalog_properties(settings: Settings) -> dict[str, str]:
    """The Iceberg catalog and its files."""
    catalog = f"spark.sql.catalog.{settings.catalog_name}"
    url = parse_url(settings.catalog_dsn())
    properties = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": url.jdbc(),
        f"{catalog}.jdbc.user": url.user,
        f"{catalog}.jdbc.password": url.password,
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.jdbc.init-catalog-tables": "false",
        f"{catalog}.retryable_status_codes": ",".join(LOST_CONNECTION),
        f"{catalog}.warehouse": settings.warehouse,
        f"{catalog}.cache-enabled": "false",
        f"{catalog}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{catalog}.client.region": settings.s3.region,
        f"{catalog}.s3.path-style-access": str(settings.s3.path_style).lower(),
    }
    if settings.s3.endpoint:
        properties[f"{catalog}.s3.endpoint"] = settings.s3.endpoint
    if settings.s3.access_key and settings.s3.secret_key:
        properties[f"{catalog}.s3.access-key-id"] = settings.s3.access_key.get_secret_value()
        properties[f"{catalog}.s3.secret-access-key"] = settings.s3.secret_key.get_secret_value()
    return properties


def _java_options(settings: Settings, local: Path) -> list[str]:
    options = [_option("derby.system.home", settings.home / "data" / "derby")]
    if settings.s3.ca:  # Iceberg's S3 client trusts what Java trusts
        options.append(_option("javax.net.ssl.trustStore", _trust_store(local)))
        options.append(f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}")
    return options


def _authorities(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise LakehouseError(f"LAKEHOUSE_S3__CA: {file} cannot be read: {error.strerror}") from None


def _trust_store(local: Path) -> Path:
    return local.with_name("trusted.p12")


def _option(name: str, value: Path) -> str:
    """A Java option as Spark takes a line of them apart: a space in it ends it, unless it stands in quotes."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-D{name}={text}"'


def _known_to_its_peers(properties: dict[str, str]) -> dict[str, str]:
    """The same; Spark makes a secret of its own for every master but a standalone one."""
    authenticated = properties["spark.authenticate"] == "true"
    if properties["spark.master"].startswith("spark://") and authenticated and AUTH_SECRET not in properties:
        raise LakehouseError(
            f"{properties['spark.master']} and this session need a secret in common: set LAKEHOUSE_SPARK__SECRET, "
            "and start master and workers with it (docs/security.md#spark)"
        )
    return properties


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """The JVM started inside the block writes its messages to `log` rather than over the user's terminal."""
    private_dir(log.parent)
    sys.stderr.flush()
    terminal = os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(file)


def _jars(settings: Settings) -> list[Path]:
    jars = [settings.artifacts / "jars" / jar for jar in JARS]
    fixed = [settings.artifacts / folder for folder in OVERRIDES]
    missing = [path.name for path in (*jars, *fixed) if not path.exists()]
    if missing:
        raise LakehouseError(
            f"{settings.artifacts}: {', '.join(missing)} missing; run `python -m lakehouse_stack jars`, "
            "which downloads it"
        )
    return jars


def _write_properties(settings: Settings, app_name: str) -> Path:
    folder = settings.home / "run"
    private_dir(folder)
    _remove_leftovers(folder)
    workspace = private_workspace(folder / "spark")
    path = workspace / "spark.properties"
    properties = spark_properties(settings, app_name, workspace / "local")
    if settings.s3.ca and write_trust_store(_authorities(settings.s3.ca), _trust_store(workspace / "local")) is None:
        raise LakehouseError(f"LAKEHOUSE_S3__CA: {settings.s3.ca} has no certificate")
    write_private(path, "".join(f"{key}={_escape(value)}\n" for key, value in properties.items()))
    return path


def _sockets(settings: Settings, workspace: Path) -> dict[str, str]:
    """Python and the JVM of one machine talk by Unix sockets: whoever else is on it could open a port.

    The path of such a socket has at most 107 bytes, of which Spark's names take 42.
    """
    if not settings.spark.master.startswith("local"):
        return {}
    folder = workspace
    if len(os.fsencode(workspace)) > 64:
        folder = Path(tempfile.mkdtemp(prefix="lakehouse-spark-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def _remove_leftovers(folder: Path) -> None:
    """Release 0.1 wrote `spark-<pid>.properties`, which a kill while Spark started left behind."""
    for left in folder.glob("spark-*.properties"):
        if not Path("/proc", left.stem.removeprefix("spark-")).exists():
            left.unlink(missing_ok=True)


def _escape(value: str) -> str:
    """Java's properties format: a backslash escapes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
