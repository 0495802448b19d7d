"""Signed tokens: what a client shows to the catalog, and the keys to the object store that it is given for a table.

Both are made from the installation's secret and stored nowhere, so that several servers can answer one client. A
token ends by itself; it also ends when its login is removed or gets another password, because each request looks the
login up. Keys end as well when their login may not read the table any more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from lakehouse.files.private_files import private_dir, write_private
from lakehouse.settings import Settings

CATALOG_SECONDS = 3600
STORAGE_SECONDS = 12 * 3600
"""Longer than a query: PyIceberg and DuckDB ask for keys once per table and do not renew them."""
ACCESS_KEY = "lakehouse-serve"


class Grant(NamedTuple):
    """Whom a token was issued to, its end (Unix seconds), and, for the store, the table and the folder of its files.

    `mark` tells the login, with its password of then, from another one of that name.
    """

    login: str
    ends: int
    mark: str
    namespace: str = ""
    name: str = ""
    folder: str = ""


@dataclass(frozen=True)
class StorageKeys:
    """Keys to the object store as S3 clients take them."""

    access_key: str
    secret_key: str
    session_token: str


class Tokens:
    """Issues and reads tokens."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def issue(self, login: str, mark: str, now: float) -> str:
        """A bearer token for the catalog."""
        return self._sign("catalog", Grant(login, int(now) + CATALOG_SECONDS, mark))

    def issue_storage(self, login: str, mark: str, namespace: str, name: str, folder: str, now: float) -> StorageKeys:
        """Keys for a table's files, which are below `folder` (`s3://bucket/folder/`)."""
        token = self._sign("storage", Grant(login, int(now) + STORAGE_SECONDS, mark, namespace, name, folder))
        return StorageKeys(ACCESS_KEY, self.storage_secret(token), token)

    def read(self, token: str, now: float) -> Grant | None:
        """The grant of a catalog token; None if it is forged or has expired."""
        return self._read("catalog", token, now)

    def read_storage(self, token: str, now: float) -> Grant | None:
        """The grant of a session token of the store; None if it is forged or has expired."""
        return self._read("storage", token, now)

    def storage_secret(self, token: str) -> str:
        """The secret key that belongs to a session token."""
        return self._signature("key", token)

    def _sign(self, purpose: str, grant: Grant) -> str:
        text = base64.urlsafe_b64encode(json.dumps(grant, separators=(",", ":")).encode()).decode().rstrip("=")
        return f"{text}.{self._signature(purpose, text)}"

    def _read(self, purpose: str, token: str, now: float) -> Grant | None:
        text, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(purpose, text).encode()):
            return None
        grant = Grant(*json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
        return grant if now < grant.ends else None

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def serve_secret(settings: Settings) -> str:
    """The secret from the settings, or else the home's, which is generated on first use."""
    if settings.serve.secret is not None:
        return settings.serve.secret.get_secret_value()
    path = settings.home / "run" / "serve_secret"
    if not path.exists():
        private_dir(path.parent)
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text().strip()
