"""Proposes a declaration from a database: things become hubs, what relates them links, and their attributes satellites.

The proposal needs a review: names, personal columns and the split into satellites are guesses. Comments name what it
leaves out and what it could not decide.
"""

from collections.abc import Iterable, Sequence

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings
from scaffold.propose.database import DbTable, read, read_tables
from scaffold.propose.declaration import proposal
from scaffold.propose.names import lake_name

__all__ = ["DbTable", "lake_name", "proposal", "propose", "read_tables"]


def propose(
    settings: Settings,
    source: str,
    schemas: Sequence[str] = ("public",),
    taken: Iterable[str] = (),
    only: Sequence[str] = (),
    vault: bool = True,
) -> str:
    """The YAML of models/sources/<source>.yml, for all tables or `only` these. `taken` are names of other sources.

    Raises LakehouseError for a schema without tables, and for a table that is not there.
    """
    if source not in settings.sources:
        known = ", ".join(settings.sources) or "none"
        raise LakehouseError(f"no connection to source {source!r} is set (known: {known}): set LAKEHOUSE_SOURCES")
    configured = settings.source(source)
    url = (configured.owner_url or configured.url).get_secret_value()
    try:
        connection = psycopg.connect(url, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, "owner_url" if configured.owner_url else "url") from None
    with connection:
        tables, left_out = read(connection, source, schemas, only)
    return proposal(source, tables, set(taken), left_out, vault)
