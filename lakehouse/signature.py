"""AWS Signature Version 4: what makes a request to an S3 store one of the owner of a key. Pure.

As AWS describes it in "Authenticating Requests (AWS Signature Version 4)". Arrow signs all requests but the one that it
does not offer, see `bulk_delete`.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import urlsplit

ALGORITHM, SERVICE, TERMINATOR = "AWS4-HMAC-SHA256", "s3", "aws4_request"


@dataclass(frozen=True)
class Credentials:
    """Who asks, and in which region."""

    access_key: str
    secret_key: str = field(repr=False)
    region: str


def signed(
    credentials: Credentials, method: str, url: str, headers: Mapping[str, str], body: bytes, now: datetime
) -> dict[str, str]:
    """The headers to send, `Authorization` among them; Host is signed as the URL has it.

    The URL is as it will be sent: percent-encoded, its query sorted and with a `=` after each name.
    """
    parts, digest = urlsplit(url), sha256(body).hexdigest()
    moment = now.astimezone(UTC)
    sent = {**headers, "x-amz-content-sha256": digest, "x-amz-date": f"{moment:%Y%m%dT%H%M%SZ}"}
    covered = sorted((name.lower(), value.strip()) for name, value in {**sent, "host": parts.netloc}.items())
    names = ";".join(name for name, _ in covered)
    lines = [f"{name}:{value}" for name, value in covered]
    request = "\n".join([method, parts.path or "/", parts.query, *lines, "", names, digest])
    scope = f"{moment:%Y%m%d}/{credentials.region}/{SERVICE}/{TERMINATOR}"
    text = "\n".join([ALGORITHM, sent["x-amz-date"], scope, sha256(request.encode()).hexdigest()])
    signature = _hmac(_key(credentials, f"{moment:%Y%m%d}"), text).hex()
    who = f"Credential={credentials.access_key}/{scope}"
    return sent | {"Authorization": f"{ALGORITHM} {who},SignedHeaders={names},Signature={signature}"}


def _key(credentials: Credentials, day: str) -> bytes:
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, credentials.region, SERVICE, TERMINATOR):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), sha256).digest()
