"""Which jobs a living worker serves: session-level advisory locks in the catalog database.

A lock ends with its session, so a killed worker serves nothing, at once and without a timeout. The locks only divide
the work between worker and sensors; two loads are kept out of one table where the table is written.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from lakehouse.servers.database import CatalogConnection, connect_catalog

if TYPE_CHECKING:
    from lakehouse.settings import Settings

WORKER = "worker"
"""Held by every living worker, whatever it serves."""

CLASS = 20_476_101  # the first half of the locks' key; nothing else in the catalog database uses it


def serve(connection: CatalogConnection, catalog: str, job: str) -> bool:
    """Announces that this session loads what the job would load; False while another worker does."""
    return _ask(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def withdraw(connection: CatalogConnection, catalog: str, job: str) -> None:
    """Leaves the job to Dagster."""
    _ask(connection, "SELECT pg_advisory_unlock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def is_served(settings: Settings, job: str) -> bool:
    """Whether a living worker loads what this job would load."""
    with closing(connect_catalog(settings)) as connection:
        return _ask(
            connection,
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
            " AND objid = (hashtext(%s)::bigint & 4294967295)::oid AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
            CLASS,
            f"{settings.catalog_name}/{job}",
        )


def _ask(connection: CatalogConnection, query: str, *values: object) -> bool:
    row = connection.execute(query, values).fetchone()
    return bool(row and row[0])
