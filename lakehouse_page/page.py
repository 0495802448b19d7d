"""Answers with the page: rendered at most twice a minute, however many look at it."""

import asyncio
import time
from functools import cache
from pathlib import Path

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakehouse.settings import Settings
from lakehouse_page.contents import Contents

PATH = "/lake"
SECONDS = 30.0
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class WithPage:
    """ASGI: answers the page at its path, and forwards everything else. A gate has to be in front of it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.lock = asyncio.Lock()
        self.text, self.made = "", -SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and scope["path"] == PATH:
            await (await self._answer(Request(scope)))(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("GET it.\n", 405)
        async with self.lock:  # one at a time: the others get what this one has made
            if time.monotonic() - self.made >= SECONDS:
                self.text = await run_in_threadpool(self._made)
                self.made = time.monotonic()
        return HTMLResponse(self.text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})

    def _made(self) -> str:
        from lakehouse_page.asked import ask

        return render(ask(self.settings))


def render(contents: Contents) -> str:
    """The page as HTML; names and texts of a source are escaped."""
    return _template().render(page=contents, seconds=int(SECONDS))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"size": _size, "age": _age}
    return environment.from_string(Path(__file__).with_name("page.html.j2").read_text())


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
