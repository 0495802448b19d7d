"""The catalog service as a process of its own, and clients for it."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyiceberg.catalog.rest import RestCatalog

from lakehouse.declarations.access.rules import RELATIONS as RELATIONS_FILE
from lakehouse.servers.logins import ensure_own_logins
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.ports import free_port

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
PASSWORDS = {"lakehouse": "writer's", "reader": "reader's", "privacy": "privacy's"}
LOGINS = {"writer": "lakehouse", "reader": "reader", "privacy": "privacy"}
RELATIONS = (
    {"schema": "parsed", "name": "served_people", "least": "reader", "personal": ["email"]},
    {"schema": "parsed", "name": "served_stores", "least": "reader", "personal": []},
    {"schema": "parsed", "name": "served_view", "least": "reader", "personal": []},
    {"schema": "parsed", "name": "served_secret", "least": "writer", "personal": []},
)


@dataclass(frozen=True)
class Served:
    """A running service."""

    uri: str
    access: Path
    log: Path
    pid: int

    def client(self, role: str, warehouse: str = "lake", **properties: Any) -> RestCatalog:
        """PyIceberg's REST client, in a role."""
        login = LOGINS[role]
        given = {
            "uri": self.uri,
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
            "warehouse": warehouse,
            "credential": f"{login}:{PASSWORDS[login]}",
        }
        return RestCatalog("served", **given, **properties)

    def token(self, login: str, password: str) -> tuple[int, dict[str, Any]]:
        """Status and answer of a login."""
        form = {"grant_type": "client_credentials", "client_id": login, "client_secret": password}
        return self.ask("POST", "/v1/oauth/tokens", urlencode(form).encode())

    def ask(self, method: str, path: str, body: bytes | None = None, token: str = "") -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{self.uri}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=TRUSTING) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            content = error.read()
            return error.code, json.loads(content) if content.startswith(b"{") else {"text": content.decode()}

    def accesses(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def sample_lake(settings: Settings, folder: Path, **options: str) -> Iterator[Served]:
    """A service over tables with and without personal columns, and a view."""
    query(settings, "CREATE SCHEMA IF NOT EXISTS lake.parsed")
    _drop_samples(settings)  # of a run that was killed, in a home that was kept
    for statement in (
        "CREATE TABLE lake.parsed.served_people AS SELECT 1 AS id, 'ann@example.com' AS email",
        "CREATE TABLE lake.parsed.served_stores AS SELECT id, format('%d', id) AS name FROM (VALUES 1, 2, 3) t (id)",
        "CREATE VIEW lake.parsed.served_view AS SELECT id FROM lake.parsed.served_stores",
    ):
        query(settings, statement)
    try:
        with served(settings, folder, RELATIONS, **options) as found:
            yield found
    finally:
        _drop_samples(settings)


def _drop_samples(settings: Settings) -> None:
    for kind, name in (("VIEW", "served_view"), ("TABLE", "served_people"), ("TABLE", "served_stores")):
        query(settings, f"DROP {kind} IF EXISTS lake.parsed.{name}")


def write_relations(folder: Path, relations: Sequence[Mapping[str, Any]]) -> None:
    """The rules that the service reads."""
    (folder / RELATIONS_FILE).write_text(json.dumps({"relations": list(relations)}))


@contextmanager
def served(
    settings: Settings, folder: Path, relations: Sequence[Mapping[str, Any]], **options: str
) -> Iterator[Served]:
    """A service with logins and rules of its own; ends with the block."""
    folder.mkdir(exist_ok=True)
    ensure_own_logins(folder, PASSWORDS)
    write_relations(folder, relations)
    port = free_port()
    environment = {
        **os.environ,
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_TRINO__ACCESS": str(folder),
        "LAKEHOUSE_SERVE__PORT": str(port),
        **options,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lakehouse_serve"], env=environment, cwd=Path(__file__).parents[1]
    )
    scheme = "https" if "LAKEHOUSE_SERVE__CERTIFICATE" in options else "http"
    found = Served(f"{scheme}://127.0.0.1:{port}", folder, settings.home / "logs" / "serve-access.log", process.pid)
    try:
        _wait(found, process)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


def _wait(service: Served, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the service has ended"
        try:
            if service.ask("GET", "/healthz")[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the service does not answer")
