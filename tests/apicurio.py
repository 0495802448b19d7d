"""Apicurio's schema registry, as a plain process of a test's own; it speaks Confluent's HTTP API as well as its own."""

import hashlib
import json
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import Artifact
from lakehouse_stack.downloads.download import ivy_command
from lakehouse_stack.downloads.java import server_java
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.process import last_lines, stop

APP = Artifact(
    org="io.apicurio", name="apicurio-registry-app", version="3.3.3", classifier="all", ext="tar.gz",
    sha256="8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63", size=158_577_952, licence="Apache-2.0",
)  # fmt: skip


@dataclass(frozen=True)
class Apicurio:
    """A registry that runs."""

    url: str

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """The id of the schema."""
        body = json.dumps({"schema": json.dumps(schema), "schemaType": "AVRO", **more}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.loads(answer.read())["id"])


@contextmanager
def running_apicurio(settings: Settings) -> Iterator[Apicurio]:
    """A registry that knows nothing yet."""
    app, ports = _app(settings), plan_ports(("http", "management"), {}, {}, {})
    with tempfile.TemporaryDirectory(prefix="lakehouse-apicurio-") as name:
        log = Path(name) / "log"
        java = [str(server_java()), "-Xmx384m"]  # it needs 21 or newer
        java += [f"-Dquarkus.http.port={ports['http']}", "-Dquarkus.http.host=127.0.0.1"]
        java += [f"-Dquarkus.management.port={ports['management']}", "-Dquarkus.management.host=127.0.0.1"]
        with log.open("wb") as output:
            started = subprocess.Popen(
                [*java, "-jar", str(app / "quarkus-run.jar")],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=name,
            )
        url = f"http://127.0.0.1:{ports['http']}/apis/ccompat/v7"
        try:
            deadline = time.monotonic() + 300  # on a machine that is busy
            while not _answers(url):
                assert started.poll() is None and time.monotonic() < deadline, last_lines(log, 20)
                time.sleep(0.3)
            yield Apicurio(url)
        finally:
            stop([psutil.Process(started.pid)], signal.SIGTERM, 20.0)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/schemas/types", timeout=5):
            return True
    except OSError:
        return False


def _app(settings: Settings) -> Path:
    """The folder with the unpacked application, downloaded once."""
    target = settings.cache / "peers" / f"apicurio-{APP.version}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        done = subprocess.run(ivy_command(work, (APP,)), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-500:]
        [archive] = work.glob(f"cache/**/{APP.file_name}")
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == APP.sha256
        with tarfile.open(archive) as opened:
            opened.extractall(work / "app", filter="data")
        (work / "app").rename(target)
    return target
