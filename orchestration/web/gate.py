"""The gate in front of Dagster's web server: checks host name, origin, session and kind of each request."""

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
REFRESH_PAGE = '<!doctype html><meta http-equiv="refresh" content="0{}"><title>Lakehouse</title><p>{}</p>'
LOGIN_HINT = "Log in with the link that `lakehouse dev` printed; `lakehouse env` prints it too, as DAGSTER_LOGIN."


@dataclass(frozen=True)
class Gate:
    """ASGI middleware."""

    app: ASGIApp
    secret: str
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards allowed requests and answers the others."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (answer := self.answer(HTTPConnection(scope))) is None:
            await self.app(scope, receive, _deny_framing(send))
        elif scope["type"] == "http":
            await answer(scope, receive, _deny_framing(send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # not yet accepted: the client sees a 403

    def answer(self, request: HTTPConnection) -> Response | None:
        """The refusal or login page to send instead of forwarding; None if the request is allowed."""
        host = request.headers.get("host", "")
        if len(request.headers.getlist("host")) != 1 or login.host_name(host) not in self.hosts:
            return _refusal(HTTPStatus.FORBIDDEN, "This name is not among LAKEHOUSE_DAGSTER__ALLOWED_HOSTS.")
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return _refusal(HTTPStatus.FORBIDDEN, "Pages of other sites may not ask.")
        if request.scope["type"] == "http" and request.scope["path"] == login.PATH:
            return self._logged_in(request)
        by_program = login.shows_secret(self.secret, request.headers.get("authorization", ""))
        if not by_program and not self._has_session(request):
            return _login_required(request)
        if not by_program and origin is None and not _only_reads(request):
            return _refusal(HTTPStatus.FORBIDDEN, "A browser says from which page it asks (Origin).")
        return _graphql_refusal(request)

    def _logged_in(self, request: HTTPConnection) -> Response:
        if not login.is_same(request.query_params.get("token", ""), self.secret):
            return _login_required(request)
        # Not a redirect: after a click in a mail, the browser follows redirects without the cookie.
        answer = HTMLResponse(REFRESH_PAGE.format("; url=/", "Logged in."), headers={"Referrer-Policy": "no-referrer"})
        answer.set_cookie(
            login.cookie_name(self.secret), login.new_session(self.secret, time.time()), login.SESSION_SECONDS,
            httponly=True, samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    def _has_session(self, request: HTTPConnection) -> bool:
        value = request.cookies.get(login.cookie_name(self.secret), "")
        return login.is_session(self.secret, value, time.time())


def _only_reads(request: HTTPConnection) -> bool:
    return request.scope["type"] == "http" and request.scope["method"] in READING


def _graphql_refusal(request: HTTPConnection) -> Response | None:
    """Dagster accepts mutations by GET and from HTML forms of any site."""
    if request.scope["type"] != "http" or request.scope["path"] != GRAPHQL:
        return None
    if request.scope["method"] != "POST":
        return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "POST it.") if "query" in request.query_params else None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in GRAPHQL_TYPES:
        return _refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send it as application/json.")
    return None


def _login_required(request: HTTPConnection) -> Response:
    """After a link from another site, which the browser follows without the cookie, a refresh sends it."""
    followed = (
        request.headers.get("sec-fetch-site") == "cross-site" and request.headers.get("sec-fetch-mode") == "navigate"
    )
    if followed and _only_reads(request):
        return HTMLResponse(REFRESH_PAGE.format("", LOGIN_HINT), HTTPStatus.UNAUTHORIZED)
    return _refusal(HTTPStatus.UNAUTHORIZED, LOGIN_HINT)


def _refusal(status: HTTPStatus, why: str) -> Response:
    return PlainTextResponse(f"{status.phrase}. {why}\n", status)


def _deny_framing(send: Send) -> Send:
    """Forbids other sites to show the UI in a frame (clickjacking)."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-frame-options", b"DENY")]
        await send(message)

    return sent
