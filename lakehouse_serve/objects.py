"""A read-only S3 endpoint on the warehouse: GET and HEAD of objects, with the keys that the catalog gives out.

Keys open the folder of one table, for as long as their login may read that table and it lies there. Roles therefore
hold for the files as well, and no client sees the keys of the store itself. Nothing is listed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from threading import Lock
from typing import NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape

from cachetools import TTLCache
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lakehouse.servers.logins import Rights
from lakehouse_serve.access.signature import Request as Sent
from lakehouse_serve.access.signature import is_signed
from lakehouse_serve.access.tokens import ACCESS_KEY, Grant, Tokens
from lakehouse_serve.past.snapshots import NoSnapshot, as_of, at_snapshot, without_pins
from lakehouse_serve.relations import Personal, Relations
from lakehouse_serve.store import Facts, Store

METADATA = re.compile(r"\.metadata\.json(\.gz)?$")
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
KNOWN_KEYS, KNOWN_SECONDS = 10_000, 1.0


logger = logging.getLogger(__name__)


class _Object(NamedTuple):
    facts: Facts
    pieces: Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True)
class Objects:
    """Answers requests for objects."""

    store: Store
    relations: Relations
    tokens: Tokens
    _known: TTLCache[tuple[Grant, Rights], bool] = field(default_factory=lambda: TTLCache(KNOWN_KEYS, KNOWN_SECONDS))
    _lock: Lock = field(default_factory=Lock)

    def answer(self, request: Request) -> tuple[Response, str | None]:
        """The object, or a part of it, and the login whose keys were shown; errors as S3 words them."""
        grant = None
        try:
            grant = self._grant(request)
            response = self._answer(request, grant)
        except (SQLAlchemyError, OSError) as error:
            logger.warning("%s %s: %s", request.method, request.url.path, error)
            away = "the catalog's database or the object store does not answer"
            response = _refusal(503, "ServiceUnavailable", away)
        return response, grant.login if grant else None

    def _answer(self, request: Request, grant: Grant | None) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return _refusal(403, "AccessDenied", "this endpoint is read-only")
        path = unquote(_raw_path(request))
        location = f"{self.store.scheme}:/{path}"
        if grant is None:
            return _refusal(403, "AccessDenied", "the keys are wrong or have expired: ask the catalog for others")
        if not location.startswith(grant.folder) or not path.isprintable() or ".." in path.split("/"):
            return _refusal(403, "AccessDenied", "the keys are not for this table")
        rights = self.relations.grants.rights(grant)
        found = self._find(location, is_whole=rights is not None and rights.namespaces is None)
        if found is None:
            return _refusal(404, "NoSuchKey", "there is no such object, or it has expired")
        return _send(request, location, found)

    def _grant(self, request: Request) -> Grant | None:
        token, now = request.headers.get("x-amz-security-token", ""), time.time()
        grant = self.tokens.read_storage(token, now)
        if grant is None:
            return None
        query = request.scope["query_string"].decode("latin-1")
        sent = Sent(request.method, _raw_path(request), query, dict(request.headers.items()))
        is_theirs = is_signed(sent, ACCESS_KEY, self.tokens.storage_secret(token), datetime.fromtimestamp(now, UTC))
        return grant if is_theirs and self._opens(grant) else None

    def _opens(self, grant: Grant) -> bool:
        """Whether the login may read the table as it is now; asked anew a second later."""
        rights = self.relations.grants.rights(grant)
        if rights is None:
            return False
        with self._lock:
            known = self._known.get((grant, rights))
        if known is None:
            try:
                document = self.relations.find(rights, "TABLE", grant.namespace, grant.name)
                known = document is not None and document.folder == grant.folder
            except Personal:
                known = False
            with self._lock:
                self._known[grant, rights] = known
        return known

    def _find(self, location: str, is_whole: bool) -> _Object | None:
        """The object; metadata that is not for the caller as a `whole` has no pins in it."""
        state = as_of(location)
        if state is None and (is_whole or not METADATA.search(location)):
            facts = self.store.facts(location)
            return _Object(facts, lambda begin, end: self.store.pieces(location, begin, end)) if facts else None
        try:
            stored = self.relations.rows.read(state.file if state else location).metadata
            content = json.dumps(at_snapshot(stored, state.chosen) if state else without_pins(stored)).encode()
        except (FileNotFoundError, NoSnapshot):
            return None
        content = gzip.compress(content, mtime=0) if state is None and ".gz" in location.rpartition("/")[2] else content
        return _Object(
            Facts(len(content), datetime.fromtimestamp(0, UTC)), lambda begin, end: iter((content[begin:end],))
        )


def _raw_path(request: Request) -> str:
    """The path as it was sent. It is signed like this."""
    path: bytes = request.scope["raw_path"]
    return path.decode("latin-1")


def _send(request: Request, location: str, found: _Object) -> Response:
    size = found.facts.size
    headers = {
        "accept-ranges": "bytes",
        "content-type": "application/octet-stream",
        "etag": f'"{hashlib.md5(location.encode(), usedforsecurity=False).hexdigest()}-{size}"',
        "last-modified": format_datetime(found.facts.modified.astimezone(UTC), usegmt=True),
    }
    wanted = part(request.headers.get("range"), size)
    if wanted is None:
        return _refusal(416, "InvalidRange", f"the object has {size} bytes")
    begin, end = wanted
    headers["content-length"] = str(end - begin)
    status = 200
    if "range" in request.headers:
        status, headers["content-range"] = 206, f"bytes {begin}-{end - 1}/{size}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    pieces = found.pieces(begin, end)
    try:
        first = next(pieces, b"")  # here, so that an object that is gone is an answer and no broken one
    except FileNotFoundError:
        return _refusal(404, "NoSuchKey", "there is no such object, or it has expired")
    return StreamingResponse(_chain(first, pieces), status, headers)


def part(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last that a Range header asks for; None if there are no such bytes.

    Several ranges at once, which S3 does not serve either, yield the whole object, as does what is no range.
    """
    found = RANGE.fullmatch(header) if header else None
    if found is None or found[1] == found[2] == "":
        return 0, size
    begin = int(found[1]) if found[1] else max(0, size - int(found[2]))
    end = min(size, int(found[2]) + 1) if found[1] and found[2] else size
    return (begin, end) if begin < end else None


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _refusal(status: int, code: str, message: str) -> Response:
    content = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    )
    return Response(content, status, media_type="application/xml")
