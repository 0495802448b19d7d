"""What is wrong with a server's certificate, and what to do: of brokers and of schema registries alike."""

import socket
import ssl
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from ingestion.sources.findings import Finding

OF_ANOTHER, OUTDATED = (62, 64), 10  # of OpenSSL: the certificate is for other names, or addresses; it has expired
SOON = timedelta(days=14)  # before a certificate expires
Address = tuple[str, int]


def remedy_of(error: ssl.SSLCertVerificationError, variable: str, rename: str) -> str:
    """What to do about a certificate that is not trusted; `variable` begins the names of the settings, `rename` is for
    one that is of other names."""
    if error.verify_code in OF_ANOTHER:
        return rename
    return "renew it" if error.verify_code == OUTDATED else f"correct {variable}CA, the authorities that are trusted"


def says_of(error: ssl.SSLCertVerificationError) -> str:
    """Why a certificate is not trusted, in one line."""
    return error.verify_message.strip().rstrip(".")


def expiring(source: str, about: str, servers: Iterable[Address], ca: str | None) -> Iterator[Finding]:
    """The certificates of servers that expire soon. One that cannot be looked at, or is not trusted, is told when it is
    asked for what it has."""
    for host, port in servers:
        if (end := _end_of(host, port, ca)) is not None and end - datetime.now(UTC) < SOON:
            says = f"the certificate of {host}:{port} expires at {end:%Y-%m-%d %H:%M} UTC"
            yield Finding(source, None, about, "warning", says, "renew it before, or nothing is read from then on")


def _end_of(host: str, port: int, ca: str | None) -> datetime | None:
    try:
        trust = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection((host, port), timeout=5.0) as plain,
            trust.wrap_socket(plain, server_hostname=host) as secure,
        ):
            end = (secure.getpeercert() or {}).get("notAfter")
    except OSError:
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC) if isinstance(end, str) else None
