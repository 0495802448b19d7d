"""Requests that delete a thousand objects: sent again, or refused by the answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse.catalog.writing.bulk_delete import _endpoint, delete_objects
from lakehouse.servers.outage import told

DENIED = "<Error><Key>b</Key><Code>AccessDenied</Code><Message>not yours</Message></Error>"
SLOW_DOWN = "<Error><Key>c</Key><Code>SlowDown</Code><Message>too fast</Message></Error>"


def test_a_bucket_in_the_host_name_is_put_before_the_endpoints() -> None:
    assert _endpoint("http://store:9000", "lake") == "http://lake.store:9000"
    assert _endpoint("http://store:9000", None) == "http://store:9000"
    assert _endpoint(None, "lake") is None


@contextmanager
def store(*answers: tuple[int, str]) -> Iterator[tuple[PyArrowFileIO, list[list[str]]]]:
    """A server that answers so, one after the other and then as the last time; the keys of each request to it."""
    asked: list[list[str]] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append([key.text or "" for key in ElementTree.fromstring(body).iter() if key.tag.endswith("Key")])
            status, errors = left.pop(0) if len(left) > 1 else left[0]
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in asked[-1])
            answer = f"<DeleteResult>{errors or deleted}</DeleteResult>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "3")
            self.send_header("Last-Modified", "Sat, 21 Nov 2026 07:28:00 GMT")
            self.end_headers()

        def do_DELETE(self) -> None:
            asked.append([unquote(self.path).removeprefix("/lake/")])
            self.send_response(204)
            self.end_headers()

        def do_PUT(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    keys = {"s3.access-key-id": "me", "s3.secret-access-key": "secret", "s3.region": "us-east-1"}
    yield PyArrowFileIO({"s3.endpoint": address, **keys}), asked
    server.shutdown()


def test_a_thousand_objects_are_one_request() -> None:
    paths = [f"s3://lake/{number:04}" for number in range(2_001)]
    with store((200, ""), (200, ""), (200, "")) as (io, asked):
        delete_objects(io, paths)
    assert sorted(len(keys) for keys in asked) == [1, 1000, 1000]
    assert sorted(key for keys in asked for key in keys) == [path.removeprefix("s3://lake/") for path in paths]


def test_a_store_that_is_busy_is_asked_again() -> None:
    with store((503, ""), (200, "")) as (io, asked):
        delete_objects(io, ["s3://lake/a", "s3://lake/c"])
    assert asked == [["a", "c"]] * 2


def test_no_proxy_stands_before_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with store((200, "")) as (io, asked):
        delete_objects(io, ["s3://lake/a"])
    assert asked == [["a"]]


@pytest.mark.parametrize("answer", [(200, SLOW_DOWN + DENIED), (403, DENIED), (501, "")])
def test_what_the_store_refuses_is_told_and_not_taken_for_deleted(answer: tuple[int, str]) -> None:
    with store(answer) as (io, _), pytest.raises(OSError, match=r"SlowDown|403|501") as refused:
        delete_objects(io, ["s3://lake/b"])
    assert (told(refused.value) or "").startswith("object store: ")


@pytest.mark.parametrize("key", ["a#b", "a?b", "data/lang=C#/1.parquet", "a%20b", "a%23b", "a\tb", "~a*b|c"])
def test_a_key_is_deleted_as_it_stands(key: str) -> None:
    with store((200, "")) as (io, asked):
        delete_objects(io, [f"s3://lake/{key}"])
    assert asked == [[key]]


@pytest.mark.parametrize("key", ["/a", "a//b", "a/", "a/./b", "a/../b"])
def test_a_name_that_no_client_leaves_as_it_is_is_refused(key: str) -> None:
    with store((200, "")) as (io, asked), pytest.raises(OSError, match="cannot be deleted by this name"):
        delete_objects(io, [f"s3://lake/{key}"])
    assert asked == []


def test_files_of_a_directory_are_deleted_one_by_one(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    delete_objects(PyArrowFileIO({}), [f"file://{tmp_path}/{number}" for number in range(21)])
    assert list(tmp_path.iterdir()) == []


def test_a_neighbour_in_a_directory_is_not_taken_for_a_file_with_a_hash(tmp_path: Path) -> None:
    for name in ("a", "a#b", "c", "c?d"):
        (tmp_path / name).touch()
    delete_objects(PyArrowFileIO({}), [f"file://{tmp_path}/a#b", f"file://{tmp_path}/c?d"])
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}
