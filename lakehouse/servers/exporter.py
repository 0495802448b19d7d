"""Serves a process's metrics at `/metrics` and its readiness at `/ready`, over HTTP, to Prometheus and probes."""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lakehouse.metrics import CONTENT_TYPE, REGISTRY, Registry

log = logging.getLogger("lakehouse.metrics")
Readiness = Callable[[], Mapping[str, str]]
"""What each source is not ready for; an empty text if it is ready."""


@contextmanager
def served(host: str, port: int | None, ready: Readiness, registry: Registry = REGISTRY) -> Iterator[int | None]:
    """Serves in the background while the body runs, if there is a port; yields the port.

    A port that is taken is logged: nobody's data waits for metrics.
    """
    if port is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer((host, port), _handler(registry, ready))
    except OSError as error:
        log.error("no metrics at %s:%s: %s; set another port, see the settings table in README.md", host, port, error)
        yield None
        return
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _handler(registry: Registry, ready: Readiness) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing holds no thread

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            if path == "/metrics":
                self._answer(HTTPStatus.OK, CONTENT_TYPE, registry.render())
            elif path == "/ready" or path.startswith("/ready/"):
                self._ready(path.removeprefix("/ready").removeprefix("/"))
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "/metrics, /ready or /ready/<source>\n")

        def _ready(self, source: str) -> None:
            found = ready()
            asked = {source: found.get(source, "no such source")} if source else found
            status = HTTPStatus.SERVICE_UNAVAILABLE if any(asked.values()) or not asked else HTTPStatus.OK
            self._answer(status, "application/json", json.dumps({name: why or "ready" for name, why in asked.items()}))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            log.debug(format, *values)

    return Handler
