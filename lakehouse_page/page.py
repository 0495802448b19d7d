"""Answers with the page: rendered at most twice a minute, however many look at it."""

import asyncio
import time
from decimal import Decimal
from functools import cache
from pathlib import Path

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakehouse.declarations.dbt.changes import changes_of_settings
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, connected_now
from lakehouse_page.contents import Contents, Number
from lakehouse_page.questions import Answer, answer
from lakehouse_watch.asking import Asking, NoAnswer

PATH = "/lake"
SECONDS = 30.0
ANSWER_SECONDS = 60.0
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"


class WithPage:
    """ASGI: answers the page and questions below it, and forwards everything else. A gate has to be in front of it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings, self.changes = settings, changes_of_settings(settings)
        self.lock, self.asking = asyncio.Lock(), asyncio.Lock()
        self.text, self.made = "", -SECONDS
        self.charts, self.questions = Asking(), Asking()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and (scope["path"] == PATH or scope["path"].startswith(f"{PATH}/")):
            await (await self._answer(Request(scope)))(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("GET it.\n", 405)
        if request.url.path == PATH:
            text = await self._page()
        else:
            async with self.asking:  # one at a time, and a slow one keeps nobody from the page
                text = await run_in_threadpool(self._answered, request)
        if not text:
            return Response("There is no such question, or dashboard.yml is wrong: /lake says so then.\n", 404)
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})

    async def _page(self) -> str:
        async with self.lock:  # one at a time: the others get what this one has made
            if time.monotonic() - self.made >= SECONDS:
                self.text = await run_in_threadpool(self._made)
                self.made = time.monotonic()
            return self.text

    def _answered(self, request: Request) -> str:
        """The page of a question; empty where none has that name."""
        from lakehouse_page.asked import read_dashboard

        slug = request.scope["path"].removeprefix(f"{PATH}/")
        try:
            found = [question for question in read_dashboard(self.settings).questions if question.slug == slug]
        except LakehouseError:
            return ""  # the page itself says what is wrong
        if not found:
            return ""
        asked = dict(request.query_params)
        try:
            given = self.questions.ask(slug, lambda: answer(self.settings, found[0], asked), ANSWER_SECONDS)
        except NoAnswer as error:
            given = Answer(found[0], asked, trouble=f"Trino: {error}")
        return render_answer(given)

    def _made(self) -> str:
        from lakehouse_page.asked import ask

        if self.changes.settled():
            self.settings = connected_now(self.settings)
        return render(ask(self.settings, self.charts))


def render(contents: Contents) -> str:
    """The page as HTML; names and texts of a source are escaped."""
    return _template("page").render(page=contents, seconds=int(SECONDS))


def render_answer(answered: Answer) -> str:
    """The page of a question; what was typed and what was found are escaped."""
    return _template("answer").render(answer=answered)


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )  # fmt: skip
    environment.filters |= {"size": _size, "age": _age, "number": _number}
    return environment.get_template(f"{name}.html.j2")


def _size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def _number(value: Number | None) -> str:
    """With all its digits."""
    if value is None:
        return "–"
    return f"{value:,f}" if isinstance(value, Decimal) else f"{value:,}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
