"""Slots that stay in sources when this stack ends; only the catalog knows those of sources without a connection."""

from collections.abc import Collection

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.servers.embedded import is_sample
from lakehouse.settings import Settings
from lakehouse.text.sql import literal


def slots_left(settings: Settings) -> dict[str, str] | None:
    """The slot of each source that runs on beyond this stack; None where the catalog does not answer."""
    from ingestion.state.store import connect_catalog, read_slots

    if settings.catalog_url is None:
        return {}
    try:
        with connect_catalog(settings) as states:
            found = read_slots(states)
    except psycopg.errors.UndefinedTable:  # nothing was ingested yet
        return {}
    except (LakehouseError, psycopg.Error):
        return None
    return {source: slot for source, slot in found.items() if not is_sample(settings, source)}


def wal_kept(settings: Settings, source: str, slot: str) -> str:
    """How much WAL the source keeps for the slot, and may at most; that it keeps some, where it cannot be asked."""
    from ingestion.sources.postgres.connection import connect_source, read_slot

    try:
        with connect_source(settings, source) as connection:
            if (found := read_slot(connection, slot)) is None:
                return "is not there any more"
            [most] = connection.execute("SELECT current_setting('max_slot_wal_keep_size')").fetchone() or ("-1",)
    except (LakehouseError, psycopg.Error):
        return "stays, and its server keeps WAL for it"
    bound = "without a limit (max_slot_wal_keep_size is -1)" if most == "-1" else f"to {most}: then the slot is lost"
    return f"stays, and its server keeps {found.lag_bytes / 2**20:,.0f} MiB of WAL for it, which grows {bound}"


def out_of_reach(settings: Settings, slots: dict[str, str]) -> list[str]:
    """A line for each of these slots that no command here can drop, with what drops it."""
    return [
        f"{source}: {_why(settings.sources, source)}: if slot {slot} is still there and nothing reads it any more, its "
        f"server keeps WAL for it: `SELECT pg_drop_replication_slot({literal(slot)})` in its database drops it"
        for source, slot in slots.items()
        if source not in settings.databases
    ]


def _why(connected: Collection[str], source: str) -> str:
    return "it is read by topics now" if source in connected else "it has no connection here"
