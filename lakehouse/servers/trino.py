"""Connections to Trino."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse.servers.logins import Role
from lakehouse.servers.outage import UP
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import Settings, TrinoSettings
from lakehouse.text.shown import shortened

if TYPE_CHECKING:
    import requests
    from trino.dbapi import Connection


STARTING = "authenticators were not loaded"  # in the error 500 and stack trace of a server that listens already
Session = Mapping[str, str]
"""Session properties by name."""


def connect(settings: Settings, role: Role = "writer", session: Session = MappingProxyType({})) -> Connection:
    """A DB-API connection to the lake's catalog; nothing is sent before a query."""
    return connect_to(settings.trino, role, session=session)


def connect_to(
    trino: TrinoSettings, role: Role = "writer", attempts: int = 3, session: Session = MappingProxyType({})
) -> Connection:
    """The same from the settings of Trino alone; each query is tried so many times.

    The session's time zone is UTC, as positions and moments of the lake are, and not this machine's.
    """
    from trino.auth import BasicAuthentication
    from trino.dbapi import connect as trino_connect

    login = trino.login(role)
    auth = BasicAuthentication(login.user, login.password.get_secret_value()) if login.password else None
    return trino_connect(
        host=trino.host, port=trino.port, user=login.user, catalog=trino.catalog, http_scheme=trino.http_scheme,
        auth=auth, source="lakehouse", http_session=http_session(trino), max_attempts=attempts,
        session_properties=dict(session), timezone="UTC",
    )  # fmt: skip


def http_session(trino: TrinoSettings) -> requests.Session:
    """What verifies Trino's certificate, and goes to this machine itself without a proxy."""
    import requests

    class OneServer(requests.Session):
        """REQUESTS_CA_BUNDLE wins over a session's `verify` otherwise, and would know our authority from nowhere."""

        def merge_environment_settings(self, *given: Any) -> Any:
            merged = super().merge_environment_settings(*given)
            return {**merged, "verify": str(trino.ca)} if trino.ca else merged

    session = OneServer()
    session.trust_env = not is_here(trino.host)
    return session


def is_here(host: str) -> bool:
    """Whether the host is this machine."""
    return host in ("127.0.0.1", "::1", "localhost")


def answers(settings: Settings) -> bool:
    """Whether Trino runs a query now, without a second try; True where it refuses the login: waiting would not help."""
    from trino.exceptions import Error, HttpError

    try:
        connect_to(settings.trino, attempts=1).cursor().execute("SELECT 1").fetchall()
    except (Error, HttpError, OSError) as error:
        return "error 401" in str(error)
    return True


@contextmanager
def answering(settings: Settings) -> Iterator[None]:
    """Turns a failure to reach Trino into Unreachable (a LakehouseError); errors of a query are raised as they are."""
    from trino.exceptions import HttpError, TrinoAuthError, TrinoConnectionError

    try:
        yield
    except (TrinoConnectionError, TrinoAuthError, HttpError, OSError) as error:
        where = f"{settings.trino.host}:{settings.trino.port}"
        if "error 401" in str(error):
            raise Unreachable(
                f"Trino at {where} does not let this login in: check LAKEHOUSE_TRINO__USER and …__PASSWORD, {UP}"
            ) from None
        raise Unreachable(_no_answer(f" at {where}", str(error))) from None


def lost_connection(message: str) -> str | None:
    """What the client says of a connection that failed, on one line and with the remedy; None for other messages."""
    if STARTING in message:
        return _no_answer("", message)
    if not re.match(r"failed to (execute|fetch): ", message):
        return None
    where = re.search(r"ConnectionPool\(host='([^']+)', port=(\d+)\)", message)
    return _no_answer(f" at {where[1]}:{where[2]}" if where else "", message)


def reason_of(message: str) -> str:
    """Why Trino does not answer, in the system's own words where there are any: the client wraps them in pages."""
    text = " ".join(message.split())
    system = re.search(r"\[Errno -?\d+\] ([\w ]+)|(?:Error\(\d+, |Disconnected\()'([\w ]+)'", text)
    return "it is starting" if STARTING in text else system[1] or system[2] if system else shortened(text, 200)


def _no_answer(where: str, message: str) -> str:
    reason = reason_of(message)
    return f"Trino{where} does not answer ({reason}): check LAKEHOUSE_TRINO__HOST and …__PORT, {UP}"


def query(
    settings: Settings, sql: str, role: Role = "writer", session: Session = MappingProxyType({})
) -> list[list[Any]]:
    """All rows of one statement."""
    cursor = connect(settings, role, session).cursor()
    cursor.execute(sql)
    return cursor.fetchall()
