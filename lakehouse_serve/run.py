"""Starts the service from the settings."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

import uvicorn

from lakehouse.errors import LakehouseError
from lakehouse.settings import ServeSettings, Settings
from lakehouse_serve.access.grants import Grants
from lakehouse_serve.access.limits import Limit
from lakehouse_serve.access.tokens import Tokens, serve_secret
from lakehouse_serve.access_log import AccessLog
from lakehouse_serve.answers import Access, Answers
from lakehouse_serve.app import Service
from lakehouse_serve.connections import MOST_HEADER_BYTES, ImpatientProtocol
from lakehouse_serve.objects import Objects
from lakehouse_serve.past.cuts import Cuts
from lakehouse_serve.reading import CatalogRows
from lakehouse_serve.relations import Relations
from lakehouse_serve.store import Store
from lakehouse_serve.user import become

WRONG_LOGINS_PER_SECOND, WRONG_LOGINS_AT_ONCE = 0.5, 20


def serve(settings: Settings) -> None:
    """Answers requests until it is told to stop. Raises LakehouseError for settings that would not be safe."""
    options = settings.serve
    refuse_open(options)
    service = build(settings)
    server = uvicorn.Config(
        service.application(),
        host=options.host,
        port=options.port,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        proxy_headers=options.behind_proxy,
        log_level="warning",
        server_header=False,
        http=ImpatientProtocol,
        ws="none",
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_graceful_shutdown=5,
    )
    server.load()
    server.get_loop_factory()  # imports the loop, like all that is needed before it becomes another user
    listening = server.bind_socket()
    become(options.user)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(server).run([listening])
    service.answers.relations.rows.close()
    service.log.close()


def build(settings: Settings) -> Service:
    """The service. Raises LakehouseError where no folder of logins is set."""
    folder = settings.trino.access
    if folder is None:
        raise LakehouseError(
            "lakehouse serve needs the folder of logins and rules: run `lakehouse up`, or set LAKEHOUSE_TRINO__ACCESS"
        )
    store, tokens = Store(settings), Tokens(serve_secret(settings))
    relations = Relations(CatalogRows(settings, store), Grants(folder))
    access = Access(settings.serve.address(), settings.s3.region)
    return Service(
        Answers(settings.catalog_name, relations, Cuts(settings), Cuts(settings, "mirror"), tokens, access),
        Objects(store, relations, tokens),
        tokens,
        AccessLog(settings.serve.access_log or settings.home / "logs" / "serve-access.log", settings.catalog_name),
        Limit(settings.serve.requests_per_second, 2 * settings.serve.requests_per_second),
        Limit(WRONG_LOGINS_PER_SECOND, WRONG_LOGINS_AT_ONCE),
    )


def refuse_open(options: ServeSettings) -> None:
    """Passwords and data go over the network in the clear otherwise."""
    if options.certificate is None and not options.behind_proxy and not _is_loopback(options.host):
        raise LakehouseError(
            f"lakehouse serve would listen on {options.host} without TLS: set LAKEHOUSE_SERVE__CERTIFICATE and "
            "LAKEHOUSE_SERVE__KEY, or LAKEHOUSE_SERVE__BEHIND_PROXY=true if a proxy ends TLS"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
