"""The how-to page for AWS, as far as it can be run here: keys of the default chain, and the rights that the page lists.

Every request of ingestion, mirrors and maintenance is recorded on its way to the object store, and named as IAM does.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from lakehouse.settings import Settings
from tests.pages import block
from tests.test_ingestion import ORDERS, TABLES, assert_equal
from tests.test_kills import fill
from tests.test_maintenance_kills import act_apart
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1200)]
ENDS_AT_A_HOP = {"connection", "expect", "transfer-encoding", "keep-alive"}


def action_of(method: str, target: str) -> str:
    """The IAM action that a request to `/bucket/key` needs; the request itself where we know of none."""
    parts = urlsplit(target)
    _, _, key = parts.path.lstrip("/").partition("/")
    asked = parse_qs(parts.query, keep_blank_values=True).keys()
    if not key and method == "GET" and "location" in asked:
        return "s3:GetBucketLocation"
    if not key and method == "POST" and "delete" in asked:
        return "s3:DeleteObject"
    if not key and len(parts.path.strip("/")) > 0 and method in ("GET", "HEAD"):
        return "s3:ListBucket"
    if key and method == "DELETE" and "uploadId" in asked:
        return "s3:AbortMultipartUpload"
    known = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject", "DELETE": "DeleteObject"}
    return f"s3:{known[method]}" if key and method in known else f"{method} {target}"


@contextmanager
def recording(endpoint: str) -> Iterator[tuple[str, set[str]]]:
    """An endpoint that forwards to the object store, and the actions of all requests so far."""
    store, actions = urlsplit(endpoint).netloc, set[str]()

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = list[bytes]()
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return b"".join(chunks)

        def forward(self) -> None:
            actions.add(action_of(self.command, self.path))
            body = self.body()
            upstream = http.client.HTTPConnection(store, timeout=60)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # the signature covers them, the name of this host too
                if name.lower() not in ENDS_AT_A_HOP | {"content-length"}:
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ENDS_AT_A_HOP | {"content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", actions
    finally:
        server.shutdown()
        server.server_close()


def maintain(world: World, action: str) -> str:
    """The status of one action on the table of orders."""
    done = act_apart(world, action)
    assert done.returncode == 0, done.stderr[-3000:]
    status: str = json.loads(done.stdout.splitlines()[-1])["status"]
    return status


def test_the_rights_of_the_page_suffice_and_keys_come_from_the_default_chain(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = json.loads(block("how-to/aws.md", "json"))
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    world = make_world(settings, ORDERS, TABLES)
    keys, endpoint = world.settings.s3, world.settings.s3.endpoint
    assert keys.access_key and keys.secret_key and endpoint
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key.get_secret_value())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key.get_secret_value())
    with recording(endpoint) as (address, used):
        without = keys.model_copy(update={"endpoint": address, "access_key": None, "secret_key": None})
        of_the_page = World(world.settings.model_copy(update={"s3": without}), world.source, world.owner_url)
        for first in (1, 1001):
            fill(world, first, 60)
            for arguments in ((), ("--mirror",)):
                done = of_the_page.driver(*arguments)
                assert done.returncode == 0, done.stderr[-3000:]
        assert maintain(of_the_page, "compact") == maintain(of_the_page, "expire_snapshots") == "done"
        assert maintain(of_the_page, "remove_orphan_files") in ("done", "skipped")
    assert used <= allowed, used - allowed
    assert {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"} <= used
    for table in TABLES:
        assert_equal(world, table)
