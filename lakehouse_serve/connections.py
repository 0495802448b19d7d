"""What is refused before anybody looks at what is asked: connections without a request, and requests of two lengths."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 15.0
MOST_HEADER_BYTES = 64 << 10


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; a client has to finish the headers of each request within two looks.

    uvicorn closes idle connections between two requests only. Its other parser takes headers of any size.
    """

    _watch: asyncio.TimerHandle | None = None
    _seen: Any = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to watch the connection."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the watch."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is self._seen:  # the same as at the last look: no request has come since
            self.transport.close()
            return
        self._seen = self.cycle if is_idle else ()
        self._watch = self.loop.call_later(IDLE_SECONDS, self._look)


class OneLength:
    """Refuses a request that says in two ways where its body ends: a proxy may choose the other one.

    Then what is the body of one request to the proxy is a second request to us, with somebody else's login.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {"transfer-encoding", "content-length"} <= set(Headers(scope=scope)):
            refusal = PlainTextResponse("a request has one length", 400, {"connection": "close"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)
