"""Requests that delete a thousand objects: signed as AWS documents it, sent again or refused by the answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse.bulk_delete import _url, delete_objects
from lakehouse.signature import Credentials, signed

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
MAY_2013 = datetime(2013, 5, 24, tzinfo=UTC)
GONE = "<Error><Key>a</Key><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
DENIED = "<Error><Key>b</Key><Code>AccessDenied</Code><Message>not yours</Message></Error>"
SLOW_DOWN = "<Error><Key>c</Key><Code>SlowDown</Code><Message>too fast</Message></Error>"


@pytest.mark.parametrize(
    ("path", "headers", "signature"),
    [
        ("/test.txt", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle=", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_a_request_is_signed_as_the_documentation_has_it(path: str, headers: dict[str, str], signature: str) -> None:
    found = signed(EXAMPLE, "GET", f"https://examplebucket.s3.amazonaws.com{path}", headers, b"", MAY_2013)
    assert found["Authorization"].rpartition("Signature=")[2] == signature
    assert "wJalrXUtnFEMI" not in repr(EXAMPLE)


@pytest.mark.parametrize(
    ("properties", "url"),
    [
        ({}, "https://s3.eu-west-1.amazonaws.com/lake/?delete="),
        ({"s3.endpoint": "http://127.0.0.1:9000/"}, "http://127.0.0.1:9000/lake/?delete="),
        ({"s3.force-virtual-addressing": "true"}, "https://lake.s3.eu-west-1.amazonaws.com/?delete="),
    ],
)
def test_a_bucket_is_found_in_the_path_or_in_the_host_name(properties: dict[str, str], url: str) -> None:
    assert _url(properties, "lake", "eu-west-1").replace("/lake?", "/lake/?") == url


@contextmanager
def store(*answers: tuple[int, str]) -> Iterator[tuple[PyArrowFileIO, list[list[str]]]]:
    """A server that answers so, one after the other, and the keys of each request to it."""
    asked: list[list[str]] = []
    left = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append([key.text or "" for key in ElementTree.fromstring(body).iter() if key.tag.endswith("Key")])
            status, errors = next(left)
            answer = f"<DeleteResult>{errors}</DeleteResult>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

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
    assert [len(keys) for keys in asked] == [1000, 1000, 1]
    assert sorted(key for keys in asked for key in keys) == [path.removeprefix("s3://lake/") for path in paths]


def test_a_store_that_is_busy_is_asked_again_and_what_is_gone_is_fine() -> None:
    with store((503, ""), (200, SLOW_DOWN), (200, GONE)) as (io, asked):
        delete_objects(io, ["s3://lake/a", "s3://lake/c"])
    assert asked == [["a", "c"]] * 3


@pytest.mark.parametrize("answer", [(200, SLOW_DOWN + DENIED), (403, DENIED), (501, "")])
def test_what_the_store_refuses_is_told_and_not_taken_for_deleted(answer: tuple[int, str]) -> None:
    with store(answer) as (io, _), pytest.raises(OSError, match=r"b \(AccessDenied: not yours\)|403|501"):
        delete_objects(io, ["s3://lake/b"])


def test_files_of_a_directory_are_deleted_one_by_one(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    delete_objects(PyArrowFileIO({}), [f"file://{tmp_path}/{number}" for number in range(21)])
    assert list(tmp_path.iterdir()) == []
