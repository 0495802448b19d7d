"""The HTTP application: routes, logins, limits and the access log around `answers` and `objects`."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_plus

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lakehouse_serve.access.limits import Limit
from lakehouse_serve.access.tokens import CATALOG_SECONDS, Tokens
from lakehouse_serve.access_log import AccessLog
from lakehouse_serve.answers import NAMESPACE, PREFIX, Answers, Caller, Refused
from lakehouse_serve.connections import OneLength
from lakehouse_serve.objects import Objects

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
MOST_FORM_BYTES, FORM_SECONDS = 16_384, 10.0
logger = logging.getLogger(__name__)
Answer = Callable[[Caller, Request], Response]


@dataclass(frozen=True)
class Service:
    """What answers requests."""

    answers: Answers
    objects: Objects
    tokens: Tokens
    log: AccessLog
    requests: Limit
    wrong_logins: Limit

    def application(self) -> Starlette:
        """The application; `close` of its parts is the caller's."""
        ask, table = self.answers, f"{NAMESPACE}/tables/{{table}}"
        reads: Mapping[str, tuple[str, Answer]] = {
            "namespaces": (
                "/namespaces",
                lambda c, r: JSONResponse(ask.namespaces(c, _prefix(r), r.query_params.get("parent"))),
            ),
            "namespace": (NAMESPACE, lambda c, r: JSONResponse(ask.namespace(c, *_space(r)))),
            "tables": (f"{NAMESPACE}/tables", lambda c, r: JSONResponse(ask.names(c, *_space(r), "TABLE"))),
            "table": (table, lambda c, r: _text(ask.table(c, *_name(r)))),
            "credentials": (f"{table}/credentials", lambda c, r: JSONResponse(ask.credentials(c, *_name(r)))),
            "views": (f"{NAMESPACE}/views", lambda c, r: JSONResponse(ask.names(c, *_space(r), "VIEW"))),
            "view": (f"{NAMESPACE}/views/{{view}}", lambda c, r: _text(ask.view(c, *_name(r)))),
        }
        config = self._guarded("config", lambda c, r: JSONResponse(ask.config(c, r.query_params.get("warehouse", ""))))
        metrics = self._guarded("metrics", lambda *_: Response(status_code=204))
        return Starlette(
            routes=[
                Route("/healthz", self._healthy),
                Route("/v1/oauth/tokens", self._token, methods=["POST"]),
                Route("/v1/config", config),
                *(Route(f"{PREFIX}{path}", self._guarded(what, answer)) for what, (path, answer) in reads.items()),
                Route(f"{PREFIX}{table}/metrics", metrics, methods=["POST"]),
                Route("/v1/{rest:path}", self._guarded("write", _read_only), methods=METHODS),
                Route("/{bucket}", self._object, methods=METHODS),
                Route("/{bucket}/{key:path}", self._object, methods=METHODS),
            ],
            exception_handlers={404: _unknown, 405: _unknown},
            middleware=[Middleware(OneLength)],
        )

    def _guarded(self, what: str, answer: Answer) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            caller, response = None, None
            try:
                caller = self._caller(request)
                response = answer(caller, request)
                if request.method == "HEAD":
                    response = Response(status_code=204)
            except Refused as refused:
                response = _error(refused)
            except (SQLAlchemyError, OSError) as error:
                logger.warning("%s %s: %s", request.method, request.url.path, error)
                away = "the catalog's database or the object store does not answer: try again"
                response = _error(Refused(503, "ServiceUnavailableException", away))
            return self._logged(response, what, caller.login if caller else None, request, aside=caller is None)

        return endpoint

    def _logged(
        self, response: Response, what: str, login: str | None, request: Request, aside: bool = False
    ) -> Response:
        """The answer, once its line is written: without one nobody is given keys, a view or a token."""
        try:
            self.log.write(what, login, request, response.status_code, aside)
        except OSError as error:
            logger.error("the access log cannot be written, so nothing is given out: %s", error)
            if response.status_code < 400:
                return _error(Refused(503, "ServiceUnavailableException", "the access log cannot be written"))
        return response

    def _caller(self, request: Request) -> Caller:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        grant = self.tokens.read(token.strip(), time.time()) if kind.lower() == "bearer" else None
        rights = self.answers.relations.grants.rights(grant) if grant else None
        if grant is None or rights is None:
            raise Refused(
                401, "NotAuthorizedException", "the token is wrong or has expired: ask /v1/oauth/tokens for one"
            )
        if not self.requests.admits(grant.login, time.monotonic()):
            raise Refused(429, "TooManyRequestsException", "too many requests: wait a second")
        return Caller(grant.login, rights, grant.mark)

    async def _token(self, request: Request) -> Response:
        try:
            fields = await asyncio.wait_for(_form(request), FORM_SECONDS)
        except TimeoutError:
            return JSONResponse({"error": "invalid_request", "error_description": "the form came too slowly"}, 400)
        return await run_in_threadpool(self._login, request, fields)

    def _login(self, request: Request, fields: Mapping[str, str]) -> Response:
        """Client credentials, in the form or as HTTP Basic; or a token that has not expired, for a new one."""
        address, grants = request.client.host if request.client else "", self.answers.relations.grants
        login, password = _basic(request) or (fields.get("client_id", ""), fields.get("client_secret", ""))
        if fields.get("grant_type") == EXCHANGE:
            grant = self.tokens.read(fields.get("subject_token", ""), time.time())
            login, mark = (grant.login, grant.mark if grants.rights(grant) else None) if grant else ("", None)
        elif not self.wrong_logins.has_room(address, time.monotonic()):
            slowed = Refused(429, "TooManyRequestsException", "too many wrong logins from here: wait a minute")
            return self._logged(_error(slowed), "login", login, request, aside=True)
        else:
            mark = grants.mark(login, password)
        if mark is None:
            self.wrong_logins.admits(address, time.monotonic())
            wrong = {"error": "invalid_client", "error_description": "login or password is wrong"}
            return self._logged(JSONResponse(wrong, 401), "login", login, request, aside=True)
        token = self.tokens.issue(login, mark, time.time())
        answer = {"access_token": token, "token_type": "bearer", "expires_in": CATALOG_SECONDS}
        return self._logged(JSONResponse({**answer, "issued_token_type": ACCESS_TOKEN}), "login", login, request)

    def _object(self, request: Request) -> Response:
        response, login = self.objects.answer(request)
        return self._logged(response, "object", login, request, aside=True) if response.status_code == 403 else response

    def _healthy(self, _: Request) -> Response:
        try:
            self.answers.relations.rows.check()
        except SQLAlchemyError:
            return JSONResponse({"status": "the catalog's database does not answer"}, 503)
        return JSONResponse({"status": "ok"})


def _read_only(_: Caller, request: Request) -> Response:
    if request.method in {"GET", "HEAD"}:
        raise Refused(404, "NotFoundException", f"there is no {request.url.path}")
    raise Refused(
        403, "ForbiddenException", f"this catalog is read-only: {request.method} {request.url.path} is refused"
    )


def _prefix(request: Request) -> str:
    return str(request.path_params["prefix"])


def _space(request: Request) -> tuple[str, str]:
    return _prefix(request), str(request.path_params["namespace"])


def _name(request: Request) -> tuple[str, str, str]:
    values = request.path_params
    return *_space(request), str(values["table"] if "table" in values else values["view"])


def _text(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _error(refused: Refused) -> Response:
    error = {"message": str(refused), "type": refused.kind, "code": refused.status}
    return JSONResponse({"error": error}, refused.status)


def _unknown(request: Request, _: Exception) -> Response:
    return _error(Refused(404, "NotFoundException", f"there is no {request.method} {request.url.path}"))


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM_BYTES:
            return {}
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


def _basic(request: Request) -> tuple[str, str] | None:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        login, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:  # not base64, no UTF-8, or not even ASCII
        return None
    return unquote_plus(login), unquote_plus(password)
