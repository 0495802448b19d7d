"""The UI behind its gate, attacked as a page in the operator's browser, another user or a stranger would.

Against `dagster-webserver` itself every attack of this file succeeded.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from lakehouse.settings import load_settings
from orchestration.web import login
from tests.ports import free_port

SECRET = "s" * 43
NAME = "lake.example.com"
CODE = """
import dagster as dg

@dg.op(config_schema={"path": str})
def touch(context):
    open(context.op_config["path"], "w").close()

@dg.job
def attacked():
    touch()

defs = dg.Definitions(jobs=[attacked])
"""
LAUNCH = (
    'mutation { launchRun(executionParams: {mode: "default", runConfigData: %s, selector: {jobName: "attacked", '
    'repositoryLocationName: "attacked.py", repositoryName: "__repository__"}}) '
    "{ __typename ... on PythonError { message } } }"
)
RUNS = "{ runsOrError { ... on Runs { count } } }"
Headers = dict[str, str]
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Server:
    """A running web server."""

    port: int
    proof: Path
    session: Headers = field(default_factory=dict)
    program: Headers = field(default_factory=lambda: {"Authorization": f"Bearer {SECRET}"})

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, headers: Headers | None = None, body: str | None = None) -> HTTPResponse:
        """One request, as curl would make it; its text is in `reply`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        answer.reply = answer.read().decode(errors="replace")  # type: ignore[attr-defined]
        connection.close()
        return answer

    def launch(self) -> str:
        """A mutation that runs code here."""
        config = json.dumps(json.dumps({"ops": {"touch": {"config": {"path": str(self.proof)}}}}))
        return LAUNCH % config

    def runs(self) -> int:
        """How many runs were launched."""
        answer = self.ask("POST", "/graphql", {**self.program, **JSON}, json.dumps({"query": RUNS}))
        return int(json.loads(answer.reply)["data"]["runsOrError"]["count"])  # type: ignore[attr-defined]

    def subscribe(self, headers: Headers, origin: str | None) -> str:
        """The first answer on a websocket."""
        url, protocol = f"ws://127.0.0.1:{self.port}/graphql", Subprotocol("graphql-ws")
        with connect(url, origin=origin, additional_headers=headers, subprotocols=[protocol]) as socket:  # type: ignore[arg-type]
            socket.send(json.dumps({"type": "connection_init"}))
            return str(socket.recv(10))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("web")
    (home / "attacked.py").write_text(CODE)
    (home / "workspace.yaml").write_text("load_from:\n  - python_file: attacked.py\n")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    port = free_port()
    own = {
        "DAGSTER_HOME": str(home), "LAKEHOUSE_HOME": str(home), "LAKEHOUSE_DAGSTER__UI_SECRET": SECRET,
        "LAKEHOUSE_DAGSTER__ALLOWED_HOSTS": f'["{NAME}"]',
    }  # fmt: skip
    command = [sys.executable, "-m", "orchestration.web", "--workspace", "workspace.yaml", "--port", str(port)]
    with (home / "log").open("w") as log:
        process = psutil.Popen(command, cwd=home, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT)
    made = Server(port, home / "proof")
    try:
        for _ in range(600):
            assert process.poll() is None, (home / "log").read_text()
            if _listens(port):
                break
            time.sleep(0.1)
        cookie = made.ask("GET", f"/login?token={SECRET}").headers["Set-Cookie"] or ""
        made.session["Cookie"] = cookie.partition(";")[0]
        yield made
    finally:
        family = [*process.children(recursive=True), process]
        process.terminate()
        _, left = psutil.wait_procs(family, timeout=15)
        for each in left:
            each.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_link_logs_a_browser_in_and_it_stays_so(server: Server) -> None:
    answer = server.ask("GET", f"/login?token={SECRET}")
    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 200 and "url=/" in answer.reply  # type: ignore[attr-defined]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert SECRET not in cookie
    assert server.ask("GET", "/", server.session).status == 200
    assert server.ask("GET", "/runs", server.session).status == 200


def test_a_logged_in_page_and_a_program_with_the_secret_can_do_everything(server: Server) -> None:
    before = server.runs()
    body = json.dumps({"query": server.launch()})
    for who in ({**server.session, "Origin": server.origin}, server.program):
        answer = server.ask("POST", "/graphql", {**who, **JSON}, body)
        assert "LaunchRunSuccess" in answer.reply, answer.reply  # type: ignore[attr-defined]
    assert server.runs() == before + 2
    assert "connection_ack" in server.subscribe(server.session, server.origin)
    assert "connection_ack" in server.subscribe(server.program, None)


def test_the_page_of_the_lake_is_behind_the_same_login_and_comes_without_a_lake_too(server: Server) -> None:
    assert server.ask("GET", "/lake").status == 401
    answer = server.ask("GET", "/lake", server.session)
    assert answer.status == 200 and "What needs attention" in answer.reply  # type: ignore[attr-defined]
    assert "the catalog&#39;s database cannot be read" in answer.reply  # type: ignore[attr-defined]
    assert server.ask("GET", "/runs", server.session).status == 200


def test_a_proxy_that_has_logged_somebody_in_shows_the_secret(server: Server) -> None:
    """As oauth2-proxy does: the authenticated user with our secret as the password, and the browser's Host header."""
    before = server.runs()
    shown = base64.b64encode(f"auth0|1:2:{SECRET}".encode()).decode()
    proxied = {"Host": NAME, "Authorization": f"Basic {shown}", "X-Forwarded-Proto": "https"}
    body = json.dumps({"query": server.launch()})
    assert server.ask("GET", "/", proxied).status == 200
    assert server.ask("POST", "/graphql", {**proxied, **JSON, "Origin": f"https://{NAME}"}, body).status == 200
    for status, asked in (
        (403, server.ask("POST", "/graphql", {**proxied, **JSON, "Origin": "https://evil.example"}, body)),
        (405, server.ask("GET", f"/graphql?query={quote(server.launch())}", proxied)),
        (401, server.ask("GET", "/", {"Host": NAME})),
    ):
        assert asked.status == status
    assert server.runs() == before + 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 401),
        ({"Cookie": "lakehouse_0=1"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic !"}, 401),
        ({"session": "as the operator's browser sends it from a page of another port of this host"}, 405),
        ({"session": "", "Accept": "text/html"}, 405),
        ({"session": "", "Host": "evil.example"}, 403),
        ({"session": "", "Origin": "https://evil.example"}, 403),
    ],
)
def test_nobody_launches_anything_with_a_get(server: Server, headers: Headers, status: int) -> None:
    """The whole attack was one image on any page."""
    before = server.runs()
    who = server.session if "session" in headers else {}
    sent = {**who, **{name: value for name, value in headers.items() if name != "session"}}
    answer = server.ask("GET", f"/graphql?query={quote(server.launch())}", sent)
    assert answer.status == status, answer.reply  # type: ignore[attr-defined]
    assert server.runs() == before


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", None])
@pytest.mark.parametrize("path", ["/graphql", "/report_asset_materialization/x"])
def test_a_page_from_elsewhere_posts_nothing_even_with_the_operators_cookie(
    server: Server, origin: str | None, path: str
) -> None:
    before = server.runs()
    sent = {**server.session, **JSON, **({"Origin": origin} if origin else {})}
    assert server.ask("POST", path, sent, json.dumps({"query": server.launch()})).status == 403
    assert server.runs() == before


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded"])
def test_what_a_form_can_send_is_no_query(server: Server, kind: str) -> None:
    before = server.runs()
    sent = {**server.session, "Origin": server.origin, "Content-Type": kind}
    body = json.dumps({"query": server.launch()})
    assert server.ask("POST", f"/graphql?query={quote(server.launch())}", sent, body).status == 415
    assert server.runs() == before


def test_a_websocket_needs_the_session_and_the_right_page(server: Server) -> None:
    for headers, origin in (
        ({}, None), ({}, server.origin), (server.session, "https://evil.example"), (server.session, None),
        ({**server.session, "Host": "evil.example"}, server.origin),
    ):  # fmt: skip
        with pytest.raises(InvalidStatus) as refused:
            server.subscribe(headers, origin)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/", "/runs", "/server_info", "/logs/x", "/download_debug/x", "/favicon.png"])
def test_another_user_of_the_machine_sees_nothing(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    assert answer.status == 401
    assert "lakehouse dev" in answer.reply and "\n" not in answer.reply.strip()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:3000", "x@localhost"]
)
def test_a_name_that_leads_here_from_outside_is_refused(server: Server, host: str) -> None:
    """DNS rebinding: a page's own name, pointed to 127.0.0.1, is the same origin to the browser."""
    for who in (server.session, server.program):
        assert server.ask("GET", "/", {**who, "Host": host}).status == 403


def test_a_link_on_another_site_is_asked_for_again_by_our_own_page_and_only_once(server: Server) -> None:
    """The browser keeps the cookie from it (SameSite=Strict); what our page asks for next comes with it."""
    clicked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert 'http-equiv="refresh"' in server.ask("GET", "/runs", clicked).reply  # type: ignore[attr-defined]
    for sent in ({**clicked, "Sec-Fetch-Site": "same-origin"}, {**clicked, "Sec-Fetch-Mode": "no-cors"}):
        assert "refresh" not in server.ask("GET", "/runs", sent).reply  # type: ignore[attr-defined]


def test_a_wrong_link_logs_nobody_in(server: Server) -> None:
    for path in ("/login", "/login?token=", "/login?token=wrong", f"/login?token={SECRET[:-1]}"):
        answer = server.ask("GET", path)
        assert answer.status == 401 and "Set-Cookie" not in answer.headers


def test_no_page_can_frame_the_ui(server: Server) -> None:
    assert server.ask("GET", "/", server.session).headers["X-Frame-Options"] == "DENY"


def test_a_session_is_of_one_secret_and_ends() -> None:
    session = login.new_session(SECRET, now=1000.0)
    assert login.is_session(SECRET, session, now=1000.0 + login.SESSION_SECONDS - 1)
    assert not login.is_session(SECRET, session, now=1000.0 + login.SESSION_SECONDS)
    assert not login.is_session("t" * 43, session, now=1000.0)
    later = "9" + session
    for forged in (later, "", ".", "x.y", session + "0", f"٣.{session.partition('.')[2]}"):
        assert not login.is_session(SECRET, forged, now=1000.0)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:3000", "localhost"), ("127.0.0.1:3000", "127.0.0.1"),
        ("[::1]:1", "::1"), ("[::1]", "::1"),
        ("localhost@evil.example", None), ("evil.example/localhost", None), ("", None), ("[::1", None), ("a b", None),
    ],
)  # fmt: skip
def test_the_name_in_a_host_header(header: str, name: str | None) -> None:
    assert login.host_name(header) == name


def test_the_homes_secret_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    settings = load_settings()
    made = login.ui_secret(settings)
    assert len(made) >= 43 and login.ui_secret(load_settings()) == made
    assert login.secret_file(settings).stat().st_mode & 0o777 == 0o600
    login.secret_file(settings).unlink()
    assert login.ui_secret(settings) != made


@pytest.mark.parametrize(
    ("host", "link"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("lake.example.com", "lake.example.com")],
)
def test_the_link_leads_where_the_server_lets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, link: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__HOST", host)
    monkeypatch.setenv("LAKEHOUSE_DAGSTER__UI_SECRET", SECRET)
    settings = load_settings()
    assert login.login_url(settings) == f"http://{link}:{settings.dagster.port}/login?token={SECRET}"
    assert login.allowed_hosts(settings) == {"localhost", "127.0.0.1", "::1", link.strip("[]")}
