"""Serves a process's metrics at `/metrics` and its readiness at `/ready`, over HTTP, to Prometheus and probes."""

import errno
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lakehouse.metrics import CONTENT_TYPE, REGISTRY, Registry

log = logging.getLogger("lakehouse.metrics")
Readiness = Callable[[], Mapping[str, str]]
"""What each source is not ready for; an empty text if it is ready."""
AT_ONCE = 16
"""Requests that are answered at once. There is no login, and readiness takes a connection of the catalog's database."""
TAKEN = "the port is taken, as by another follower, watch or worker on this machine"
OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@contextmanager
def served(host: str, port: int | None, ready: Readiness, registry: Registry = REGISTRY) -> Iterator[int | None]:
    """Serves in the background while the body runs, if there is a port; yields the port.

    A port that is taken is logged: nobody's data waits for metrics.
    """
    if port is None:
        yield None
        return
    try:
        server = _Server((host, port), _handler(host, registry, ready))
    except OSError as error:
        why = TAKEN if error.errno == errno.EADDRINUSE else error.strerror
        remedy = "this process works without them; LAKEHOUSE_METRICS__…_PORT gives it another port"
        log.warning("no metrics at %s:%s: %s: %s", host, port, why, remedy)
        yield None
        return
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Hangs up on whoever comes while as many as may be are answered."""

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        level = logging.DEBUG if isinstance(sys.exc_info()[1], ConnectionError) else logging.ERROR
        log.log(level, "a request of %s ended in an error", client_address[0], exc_info=True)


def _is_meant(host: str, listens: str) -> bool:
    """Whether a Host header names a server on loopback: a page whose name leads here names itself (DNS rebinding)."""
    try:
        return not host or listens not in OWN_NAMES or urlsplit(f"//{host}").hostname in OWN_NAMES
    except ValueError:
        return False


def _handler(listens: str, registry: Registry, ready: Readiness) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing holds no thread

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            if not _is_meant(self.headers.get("Host", ""), listens):
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "ask localhost\n")
            elif path == "/metrics":
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
