"""Whether the run-time role may copy the source's whole cluster: REPLICATION is all that physical replication asks for.

It connects to `replication`, where logical replication connects to the database, so that pg_hba.conf can tell them
apart. Only a superuser can read that file; what it does is found out by trying.
"""

from collections.abc import Iterable, Iterator

import psycopg

from ingestion.sources.findings import Finding
from ingestion.sources.postgres.connection import source_url
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from lakehouse.text.urls import parse_url

ABOUT = "physical replication"
Server = tuple[str, int, str]


def may_copy_cluster(settings: Settings, source: str) -> bool:
    """Whether the server lets the role in for physical replication."""
    try:
        psycopg.connect(f"{source_url(settings.source(source))}&replication=true").close()
    except psycopg.OperationalError:
        return False
    return True


def server_of(settings: Settings, source: str) -> Server:
    """Which server a source is on, and by which role it is read: a line of pg_hba.conf is for all such sources."""
    url = parse_url(settings.source(source).url.get_secret_value())
    return url.host, url.port, url.user


def once(settings: Settings, found: Iterable[Finding], said: set[Server]) -> Iterator[Finding]:
    """The findings, but of those about a copy of the cluster the first one of each server; `said` is of which."""
    for finding in found:
        if finding.about == ABOUT:
            server = server_of(settings, finding.source)
            if server in said:
                continue
            said.add(server)
        yield finding


def advice(settings: Settings, source: str) -> tuple[str, str]:
    """What to say of a role that may, and what to do."""
    role = ident(parse_url(settings.source(source).url.get_secret_value()).user)
    return (
        f"role {role} may copy the whole cluster (pg_basebackup)",
        f"put the line `host replication {role} all reject` above all others in pg_hba.conf and reload it: ingestion "
        "connects to the database (docs/operations.md)",
    )
