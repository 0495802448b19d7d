"""Tokens and keys end with the login that they were given to: the service without its server."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from lakehouse.servers.logins import add_login, ensure_own_logins, remove_login
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.limits import Limit
from lakehouse_serve.access.signature import Request
from lakehouse_serve.access.tokens import Tokens
from lakehouse_serve.access_log import AccessLog
from lakehouse_serve.answers import Access, Answers
from lakehouse_serve.app import EXCHANGE, Service
from lakehouse_serve.objects import Objects
from lakehouse_serve.relations import Relations
from lakehouse_serve.store import Facts
from tests.unit.test_serve import SECRET, signed

FOLDER = "s3://warehouse/parsed/a/"


class Asked:
    """The service over one table that everybody may read, or over these rows, and what it answers."""

    def __init__(self, folder: Path, rows: Any = None) -> None:
        self.access, self.tokens, self.log = folder / "access", Tokens(SECRET), folder / "log"
        self.grants = Grants(self.access)
        found = SimpleNamespace(folder=FOLDER)
        relations = cast(Any, SimpleNamespace(grants=self.grants, find=lambda *_: found))
        if rows is not None:
            relations = Relations(rows, self.grants)
        store = SimpleNamespace(
            scheme="s3", facts=lambda _: Facts(1, datetime.now(UTC)), pieces=lambda *_: iter((b"x",))
        )
        none = cast(Any, None)
        answers = Answers("lake", relations, none, none, self.tokens, Access("http://here", "here"))
        objects, log = Objects(cast(Any, store), relations, self.tokens), AccessLog(self.log, "lake")
        self._app = Service(answers, objects, self.tokens, log, Limit(99, 99), Limit(99, 99)).application()

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
        sent: list[Any] = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(),
            "server": ("h", 80), "client": ("10.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def login(self, **form: str) -> str | None:
        """The token; None where it is refused."""
        body = urlencode(form).encode()
        status, text = self.send("POST", "/v1/oauth/tokens", {"content-length": str(len(body))}, body)
        assert status in {200, 401}
        return str(json.loads(text)["access_token"]) if status == 200 else None

    def opens(self, token: str) -> list[bool]:
        """Whether the catalog answers to the token, and gives another one for it."""
        catalog = self.send("GET", "/v1/config", {"authorization": f"Bearer {token}"})[0] == 200
        again = self.login(grant_type=EXCHANGE, subject_token=token) is not None
        return [catalog, again]

    def keys(self, login: str, token: str) -> Callable[[], bool]:
        """Whether the keys that a token gets open a file."""
        grant, now = self.tokens.read(token, time.time()), time.time()
        assert grant is not None
        keys = self.tokens.issue_storage(login, grant.mark, "parsed", "a", FOLDER, now)
        return lambda: self.fetch(keys.session_token, keys.secret_key, "/warehouse/parsed/a/1.parquet") == 200

    def fetch(self, session_token: str, secret_key: str, path: str) -> int:
        """The status of a file that is asked for with keys of the store."""
        return self.file(session_token, secret_key, path)[0]

    def file(self, session_token: str, secret_key: str, path: str) -> tuple[int, bytes]:
        """The same, and what is answered."""
        headers = {
            "host": "h", "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-security-token": session_token,
            "x-amz-date": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
        }  # fmt: skip
        request = signed(Request("GET", path, "", headers), sorted(headers), secret_key)
        return self.send("GET", path, dict(request.headers))


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


@pytest.mark.parametrize("removed", [False, True])
def test_tokens_and_keys_end_with_the_password_of_their_login(asked: Asked, removed: bool) -> None:
    """A stolen token renewed itself for ever, and was valid again once somebody else had the name."""
    password = add_login(asked.access, "ada", "reader")
    token = asked.login(client_id="ada", client_secret=password)
    assert token is not None
    opens = asked.keys("ada", token)
    assert asked.opens(token) == [True, True] and opens()
    if removed:
        remove_login(asked.access, "ada")
        assert asked.opens(token) == [False, False] and not opens()
    newer = add_login(asked.access, "ada", "reader")
    assert asked.opens(token) == [False, False] and not opens()
    assert asked.login(client_id="ada", client_secret=password) is None
    again = asked.login(client_id="ada", client_secret=newer)
    assert again is not None and asked.opens(again) == [True, True] and asked.keys("ada", again)()


@pytest.mark.parametrize("sent", ["Basic é", "Basic ?", "Basic /w==", "Basic"])
def test_a_basic_login_that_cannot_be_read_is_a_wrong_one(asked: Asked, sent: str) -> None:
    """One that was not ASCII ended in a 500, was not counted, and left no line."""
    status, text = asked.send("POST", "/v1/oauth/tokens", {"content-length": "0", "authorization": sent})
    assert (status, json.loads(text)["error"]) == (401, "invalid_client")
    [line] = map(json.loads, asked.log.with_name("log-refused").read_text().splitlines())
    assert (line["what"], line["status"]) == ("login", 401)


def test_wrong_basic_logins_are_counted(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_serve.app.time", SimpleNamespace(time=time.time, monotonic=lambda: 0.0))
    sent = {"content-length": "0", "authorization": "Basic é"}
    assert {asked.send("POST", "/v1/oauth/tokens", sent)[0] for _ in range(99)} == {401}
    assert asked.send("POST", "/v1/oauth/tokens", sent)[0] == 429


def test_tokens_of_the_installations_own_logins_outlive_its_restart(asked: Asked) -> None:
    ensure_own_logins(asked.access, {"reader": "r"})
    token = asked.login(client_id="reader", client_secret="r")
    assert token is not None and asked.login(client_id="reader", client_secret="w") is None
    ensure_own_logins(asked.access, {"reader": "r"})
    assert asked.opens(token) == [True, True]
    ensure_own_logins(asked.access, {"reader": "w"})
    assert asked.opens(token) == [False, False]


def test_a_token_from_before_it_carried_a_mark_is_refused(asked: Asked) -> None:
    ensure_own_logins(asked.access, {"reader": "r"})
    former = cast(Any, ("reader", int(time.time()) + 60, "", "", ""))
    assert asked.opens(asked.tokens._sign("catalog", former)) == [False, False]
