"""Checks requests that are signed with AWS Signature Version 4, for S3.

The format is in Amazon's documentation, "Signature Calculations for the Authorization Header".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/,]+)/(?P<scope>(?P<day>\d{8})/(?P<region>[^/,]+)/s3/aws4_request),"
    r"\s*SignedHeaders=(?P<names>[a-z0-9;-]+),\s*Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
SIGNED = frozenset({"host", "x-amz-date", "x-amz-security-token"})
CLOCK_SKEW = timedelta(minutes=15)
MOMENT = "%Y%m%dT%H%M%SZ"


class Request(NamedTuple):
    """A request as it was sent: the path is encoded; names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


def is_signed(request: Request, access_key: str, secret_key: str, now: datetime) -> bool:
    """Whether the request was signed with these keys, within the last minutes, with its session token."""
    found = AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if found is None or found["key"] != access_key:
        return False
    names, sent = found["names"].split(";"), request.headers.get("x-amz-date", "")
    if not set(names) >= SIGNED or not _is_recent(sent, found["day"], now):
        return False
    return hmac.compare_digest(signature(request, names, found["scope"], secret_key), found["signature"])


def signature(request: Request, names: Sequence[str], scope: str, secret_key: str) -> str:
    """The signature over these headers; `scope` is `day/region/s3/aws4_request`."""
    digest = hashlib.sha256(_canonical(request, names).encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, digest))
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = _sign(key, part)
    return _sign(key, text).hex()


def _is_recent(sent: str, day: str, now: datetime) -> bool:
    try:
        moment = datetime.strptime(sent, MOMENT).replace(tzinfo=UTC)
    except ValueError:
        return False
    return sent.startswith(day) and abs(now - moment) < CLOCK_SKEW


def _canonical(request: Request, names: Sequence[str]) -> str:
    parameters = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(request.query, keep_blank_values=True)
    )
    return "\n".join(
        (
            request.method,
            request.path,
            "&".join(f"{name}={value}" for name, value in parameters),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
            "",
            ";".join(names),
            request.headers.get("x-amz-content-sha256", ""),
        )
    )


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
