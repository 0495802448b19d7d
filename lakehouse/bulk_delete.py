"""Deletes objects a thousand at a time: S3's DeleteObjects, which neither PyArrow nor PyIceberg offers for a list.

Arrow takes three requests for each object: it asks whether it is there, deletes it, and sees to its parent. So the one
request is made here, signed with the keys of the settings. Where they hold none (an instance's role, a profile: only
Arrow finds those), and where the lake is a directory, objects are deleted one by one, several at once.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import md5
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lakehouse.retry import Unreachable, until_answered
from lakehouse.signature import Credentials, signed

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

BATCH = 1_000  # the most that S3 takes
SEVERAL = 16
TIMEOUT_SECONDS, PATIENCE_SECONDS = 60, 60
BUSY_STATUS = frozenset({429, *range(500, 600)} - {HTTPStatus.NOT_IMPLEMENTED})
BUSY_CODES, GONE = frozenset({"SlowDown", "InternalError", "ServiceUnavailable"}), "NoSuchKey"
_opener = build_opener(ProxyHandler({}))  # as Arrow: no proxy stands before the store


def delete_objects(io: FileIO, paths: Collection[str]) -> None:
    """Deletes objects; one that is gone already is fine.

    Raises OSError when the store refuses one, and LakehouseError when it does not answer for a minute.
    """
    credentials, by_bucket = _credentials(io.properties), _by_bucket(paths)
    if credentials is None or None in by_bucket:
        with ThreadPoolExecutor(SEVERAL) as pool:
            list(pool.map(lambda path: _delete(io, path), paths))
        return
    for bucket, keys in by_bucket.items():
        url = _url(io.properties, str(bucket), credentials.region)
        for batch in _batches(sorted(keys)):
            until_answered(partial(_send, url, credentials, batch), "deleting objects", PATIENCE_SECONDS)


def _delete(io: FileIO, path: str) -> None:
    with suppress(FileNotFoundError):
        io.delete(path)


def _credentials(properties: Mapping[str, str]) -> Credentials | None:
    access, secret = properties.get("s3.access-key-id"), properties.get("s3.secret-access-key")
    return Credentials(access, secret, properties["s3.region"]) if access and secret else None


def _by_bucket(paths: Collection[str]) -> dict[str | None, list[str]]:
    """Keys by bucket; None for what is not in an S3 store."""
    found: dict[str | None, list[str]] = defaultdict(list)
    for path in paths:
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        found[bucket if scheme in ("s3", "s3a", "s3n") else None].append(key)
    return dict(found)


def _url(properties: Mapping[str, str], bucket: str, region: str) -> str:
    partition = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = properties.get("s3.endpoint", f"https://s3.{region}.{partition}").rstrip("/")
    if properties.get("s3.force-virtual-addressing") != "true":
        return f"{endpoint}/{bucket}?delete="
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{bucket}.{parts.netloc}/?delete="


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))


def _send(url: str, credentials: Credentials, keys: Sequence[str]) -> None:
    """One request; raises Unreachable for what may be tried again and OSError for what the store refuses."""
    objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
    body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{objects}</Delete>'.encode()
    headers = {"Content-MD5": b64encode(md5(body, usedforsecurity=False).digest()).decode()}
    headers = signed(credentials, "POST", url, headers, body, datetime.now(UTC))
    request = Request(url, body, {**headers, "Content-Type": "application/xml"}, method="POST")
    try:
        with _opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            answer = response.read()
    except HTTPError as error:
        kind = Unreachable if error.code in BUSY_STATUS else OSError
        raise kind(f"{url}: {error.code} {error.reason} {_reason(error.read())}".rstrip()) from None
    except (URLError, TimeoutError, ConnectionError) as error:
        raise Unreachable(f"{url}: {getattr(error, 'reason', error)}") from None
    _check(answer)


def _reason(answer: bytes) -> str:
    """Code and message of an error; the rest of it quotes what was signed."""
    try:
        root = ElementTree.fromstring(answer)
    except ElementTree.ParseError:
        return ""
    return f"({_text(root, 'Code')}: {_text(root, 'Message')})"


def _check(answer: bytes) -> None:
    """A quiet answer names only what could not be deleted."""
    errors = [item for item in ElementTree.fromstring(answer) if item.tag.endswith("Error")]
    errors = [error for error in errors if _text(error, "Code") != GONE]
    refused = [error for error in errors if _text(error, "Code") not in BUSY_CODES]
    if errors:
        worst, kind = (refused[0], OSError) if refused else (errors[0], Unreachable)
        reason = f"{_text(worst, 'Code')}: {_text(worst, 'Message')}"
        raise kind(f"{len(errors)} objects could not be deleted, first {_text(worst, 'Key')} ({reason})")


def _text(element: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in element if child.tag.rpartition("}")[2] == name), "")
