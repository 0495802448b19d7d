"""A real HTTP server and a real SMTP server that take alerts, and can refuse them."""

import asyncio
import email
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@dataclass
class Webhook:
    """What was posted, and how the next post is answered."""

    url: str = ""
    status: int = 200
    unwanted: str = ""  # a text that is refused
    posted: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""


@contextmanager
def webhook(port: int = 0) -> Iterator[Webhook]:
    """A running HTTP server."""
    taken = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            taken.text += body
            status = 400 if taken.unwanted and taken.unwanted in body else taken.status
            if status == 200:
                taken.posted.append(json.loads(body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", taken.url)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        taken.url = f"http://127.0.0.1:{server.server_address[1]}/services/T0/B0/hunter2-of-slack"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield taken
        finally:
            server.shutdown()


@dataclass
class Mailbox:
    """What was mailed, and whether the next mail is taken."""

    port: int = 0
    refuses: bool = False
    unwanted: str = ""  # a text of mails that a filter refuses
    unknown: str = ""  # an address that nobody has
    mails: list[Message] = field(default_factory=list)


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    """A running SMTP server: as much of RFC 5321 as smtplib speaks."""
    box, loop, started = Mailbox(), asyncio.new_event_loop(), threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            word = line[:4].upper().strip()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                text = b""
                while (part := await reader.readline()) != b".\r\n":
                    text += part.removeprefix(b".") if part.startswith(b"..") else part
                if box.unwanted and box.unwanted.encode() in text:
                    writer.write(b"554 this is spam\r\n")
                    continue
                box.mails.append(email.message_from_bytes(text))
                writer.write(b"250 taken\r\n")
            elif word == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            elif word == b"RCPT" and box.unknown and box.unknown.encode() in line:
                writer.write(b"550 no such user\r\n")
            else:
                writer.write(b"451 not now\r\n" if box.refuses and word == b"MAIL" else b"250 well\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        box.port = server.sockets[0].getsockname()[1]
        started.set()
        async with server:
            await server.serve_forever()

    thread = threading.Thread(target=lambda: loop.run_until_complete(_until_cancelled(run())), daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield box
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)


async def _until_cancelled(work: Any) -> None:
    with suppress(asyncio.CancelledError):
        await work
