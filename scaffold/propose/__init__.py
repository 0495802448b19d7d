"""Proposes a declaration from a database: things become hubs, what relates them links, and their attributes satellites.

The proposal needs a review: names, personal columns and the split into satellites are guesses. Comments name what it
leaves out and what it could not decide.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from lakehouse.declarations import Declarations
from lakehouse.errors import LakehouseError
from lakehouse.servers.unreachable import unreachable_source
from lakehouse.settings import Settings
from scaffold.entities import names_in_vault
from scaffold.propose.database import DbTable, read, read_one, read_tables
from scaffold.propose.declaration import addition, proposal
from scaffold.propose.names import lake_name

__all__ = ["DbTable", "lake_name", "proposal", "propose", "propose_addition", "read_tables"]


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
    with _connected(settings, source) as connection:
        tables, left_out = read(connection, source, schemas, only)
    return proposal(source, tables, set(taken), left_out, vault)


def propose_addition(
    settings: Settings, declared: Declarations, source: str, table: str, vault: bool | None = None
) -> list[str]:
    """The lines of one more table of a declared source; with a vault if the source has one, unless it is said.

    Raises LakehouseError for a table that is not there, is declared already, or must not be published.
    """
    tables = declared.source(source).tables
    hubs = {each.relation: each.vault.hub.name for each in tables if each.vault and each.vault.hub}
    with _connected(settings, source) as connection:
        found, others = read_one(connection, source, table, hubs)
    if (found.schema, found.name) in {each.relation for each in tables}:
        raise LakehouseError(f"{found.relation} of source {source!r} is declared already")
    beside = {other: hubs[(other.schema, other.name)] for other in others}
    wanted = bool(hubs) if vault is None else vault
    return addition(source, found, beside, names_in_vault(declared.tables), [each.name for each in tables], wanted)


def _connected(settings: Settings, source: str) -> psycopg.Connection[Any]:
    configured = settings.source(source)
    url = (configured.owner_url or configured.url).get_secret_value()
    try:
        return psycopg.connect(url, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise unreachable_source(settings, source, error, "owner_url" if configured.owner_url else "url") from None
