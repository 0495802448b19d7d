"""Login to the UI with the home's secret: a link with the secret gives the browser a session cookie."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from pathlib import Path

from lakehouse.files.private_files import private_dir, write_private
from lakehouse.settings import Settings

PATH = "/login"
ANY_ADDRESS = {"0.0.0.0", "::"}
SESSION_SECONDS = 30 * 24 * 3600


def ui_secret(settings: Settings) -> str:
    """The secret from the settings, or else the home's, which is generated on first use."""
    if settings.dagster.ui_secret is not None:
        return settings.dagster.ui_secret.get_secret_value()
    path = secret_file(settings)
    if not path.exists():
        private_dir(path.parent)
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text().strip()


def secret_file(settings: Settings) -> Path:
    """The file of the home's secret; deleting it ends all sessions, and the next start generates a new one."""
    return settings.dagster_home / "ui_secret"


def login_url(settings: Settings) -> str:
    """The link that logs in a browser on this machine."""
    return f"http://{ui_host(settings)}:{settings.dagster.port}{PATH}?token={ui_secret(settings)}"


def ui_host(settings: Settings) -> str:
    """The host at which this machine reaches the UI, as URLs have it."""
    host = "127.0.0.1" if settings.dagster.host in ANY_ADDRESS else settings.dagster.host
    return f"[{host}]" if ":" in host else host


def cookie_name(secret: str) -> str:
    """The cookie's name, different for each home: a browser sends cookies of a host to all its ports."""
    return f"lakehouse_{hashlib.sha256(secret.encode()).hexdigest()[:8]}"


def new_session(secret: str, now: float) -> str:
    """The cookie's value: its expiry, signed with the secret."""
    ends = str(int(now) + SESSION_SECONDS)
    return f"{ends}.{_signature(secret, ends)}"


def is_session(secret: str, value: str, now: float) -> bool:
    """Whether this is an unexpired session signed with the secret."""
    ends, _, signature = value.partition(".")
    return is_same(signature, _signature(secret, ends)) and ends.isascii() and ends.isdigit() and now < int(ends)


def shows_secret(secret: str, authorization: str) -> bool:
    """Whether an Authorization header has the secret: as bearer token, or as password of any user (proxies)."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        return is_same(value.strip(), secret)
    if kind.lower() == "basic":
        return is_same(_password(value), secret)
    return False


def is_same(given: str, secret: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode(), secret.encode())


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The host names that requests may use; others could resolve to this machine too (DNS rebinding)."""
    named = {settings.dagster.host, *settings.dagster.allowed_hosts} - ANY_ADDRESS
    return frozenset({"localhost", "127.0.0.1", "::1", *map(str.lower, named)})


def host_name(header: str) -> str | None:
    """The name in a Host header, without port and brackets; None if it is malformed."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d+)?", header, re.ASCII)
    return (found[1] or found[2]).lower() if found else None


def _signature(secret: str, ends: str) -> str:
    return hmac.new(secret.encode(), f"session until {ends}".encode(), hashlib.sha256).hexdigest()


def _password(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode().rpartition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
