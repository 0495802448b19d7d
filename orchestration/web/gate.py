"""What stands between the network and Dagster's web server: who asks, from which page, by which name, and for what."""

import time
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestration.web import login

READING = {"GET", "HEAD"}
GRAPHQL = "/graphql"
GRAPHQL_TYPES = {"application/json", "application/graphql"}
AGAIN = '<!doctype html><meta http-equiv="refresh" content="0{}"><title>Lakehouse</title><p>{}</p>'
WHO = "Log in with the link that `lakehouse dev` printed; `lakehouse env` prints it too, as DAGSTER_LOGIN."


@dataclass(frozen=True)
class Gate:
    """An ASGI application around another one."""

    app: ASGIApp
    secret: str
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what is allowed; answers the rest."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (answer := self.answer(HTTPConnection(scope))) is None:
            await self.app(scope, receive, _unframed(send))
        elif scope["type"] == "http":
            await answer(scope, receive, _unframed(send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the client sees a 403

    def answer(self, asked: HTTPConnection) -> Response | None:
        """What to say instead of asking Dagster; None where it may be asked."""
        host = asked.headers.get("host", "")
        if len(asked.headers.getlist("host")) != 1 or login.host_name(host) not in self.hosts:
            return _refused(HTTPStatus.FORBIDDEN, "This name is not among LAKEHOUSE_DAGSTER__ALLOWED_HOSTS.")
        origin = asked.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return _refused(HTTPStatus.FORBIDDEN, "Pages of other sites may not ask.")
        if asked.scope["type"] == "http" and asked.scope["path"] == login.PATH:
            return self._logged_in(asked)
        by_program = login.shows_secret(self.secret, asked.headers.get("authorization", ""))
        if not by_program and not self._has_session(asked):
            return _who(asked)
        if not by_program and origin is None and not _only_reads(asked):
            return _refused(HTTPStatus.FORBIDDEN, "A browser says from which page it asks (Origin).")
        return _graphql_refusal(asked)

    def _logged_in(self, asked: HTTPConnection) -> Response:
        if not login.is_same(asked.query_params.get("token", ""), self.secret):
            return _who(asked)
        # Not a redirect: after a click in a mail, the browser would follow it without the cookie.
        answer = HTMLResponse(AGAIN.format("; url=/", "Logged in."), headers={"Referrer-Policy": "no-referrer"})
        answer.set_cookie(
            login.cookie_name(self.secret), login.new_session(self.secret, time.time()), login.SESSION_SECONDS,
            httponly=True, samesite="strict", secure=asked.url.scheme == "https",
        )  # fmt: skip
        return answer

    def _has_session(self, asked: HTTPConnection) -> bool:
        value = asked.cookies.get(login.cookie_name(self.secret), "")
        return login.is_session(self.secret, value, time.time())


def _only_reads(asked: HTTPConnection) -> bool:
    return asked.scope["type"] == "http" and asked.scope["method"] in READING


def _graphql_refusal(asked: HTTPConnection) -> Response | None:
    """Dagster takes mutations from a GET, and from a form of any page."""
    if asked.scope["type"] != "http" or asked.scope["path"] != GRAPHQL:
        return None
    if asked.scope["method"] != "POST":
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "POST it.") if "query" in asked.query_params else None
    if asked.headers.get("content-type", "").partition(";")[0].strip().lower() not in GRAPHQL_TYPES:
        return _refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send it as application/json.")
    return None


def _who(asked: HTTPConnection) -> Response:
    """A link on another site comes without the cookie: the same address, asked for by this page, has it."""
    followed = asked.headers.get("sec-fetch-site") == "cross-site" and asked.headers.get("sec-fetch-mode") == "navigate"
    if followed and _only_reads(asked):
        return HTMLResponse(AGAIN.format("", WHO), HTTPStatus.UNAUTHORIZED)
    return _refused(HTTPStatus.UNAUTHORIZED, WHO)


def _refused(status: HTTPStatus, why: str) -> Response:
    return PlainTextResponse(f"{status.phrase}. {why}\n", status)


def _unframed(send: Send) -> Send:
    """No page may show the UI in a frame and have somebody click there."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-frame-options", b"DENY")]
        await send(message)

    return sent
