"""A schema registry: Confluent's HTTP API as far as readers use it, of a test's own, and values framed for it.

`tests/test_kafka_avro.py` reads from Apicurio's registry too; this one can fail, forget and refuse.
"""

import io
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro

from ingestion.state.schemas import FOLDER, KeptSchemas


@dataclass
class Registry:
    """What is registered, and how the server behaves; `asked` are the paths that were asked for."""

    url: str = ""
    login: str | None = None  # the header that it wants
    status: int | None = None  # what it answers to everything
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def register(self, number: int, schema: Any, **more: Any) -> None:
        self.schemas[number] = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}

    def answer(self, path: str, login: str | None) -> tuple[int, Any]:
        self.asked.append(path)
        if self.status is not None:
            return self.status, "out of order"
        if self.login is not None and login != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        kind, *rest = path.strip("/").split("/")
        if path == "/schemas/types":
            return 200, ["AVRO"]
        if kind == "schemas":
            found = self.schemas.get(int(rest[1]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if kind == "subjects":
            found = self.subjects.get((rest[0], int(rest[2])))
            return (200, found) if found else (404, {"error_code": 40402, "message": "Version not found"})
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def keeping(folder: Path, source: str, machine: str = "home") -> KeptSchemas:
    """What is kept in a warehouse in this folder, by a task on a machine whose home is there too."""
    return KeptSchemas(source, str(folder / "warehouse" / FOLDER), {}, folder / machine / FOLDER)


@contextmanager
def running_registry(certificate: Path | None = None) -> Iterator[Registry]:
    """A registry on a port of its own; `certificate` is a PEM file with its key."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            sent = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, schema: Any, datum: Any) -> bytes:
    """A value as Confluent's serializer writes it."""
    out = io.BytesIO()
    out.write(b"\0" + number.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return out.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A record's schema."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}
