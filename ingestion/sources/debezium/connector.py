"""Whether a connector reads the database behind topics, which say nothing themselves once it has stopped."""

from collections.abc import Collection

from ingestion.sources.postgres.connection import connect_source
from lakehouse.settings import Settings

# A standby has copies of its primary's slots, which nobody reads there.
_SLOTS = """
SELECT slot_name::text, active FROM pg_replication_slots
WHERE slot_type = 'logical' AND database = current_database() AND NOT temporary AND NOT pg_is_in_recovery()
ORDER BY slot_name
"""


def slots_behind(settings: Settings, source: str, own: Collection[str]) -> dict[str, bool]:
    """The slots of the database behind a source, but for the lake's `own`, and whether somebody reads each.

    Raises LakehouseError where the database cannot be asked.
    """
    with connect_source(settings.behind(source), source) as connection:
        return {name: active for name, active in connection.execute(_SLOTS) if name not in own}


def unread_slots(settings: Settings, source: str, own: Collection[str]) -> tuple[str, ...]:
    """The slots of the database behind a source, but for the lake's `own`, where nobody reads any of them.

    Nothing where one is read: nobody knows whose it is. Raises LakehouseError where the database cannot be asked.
    """
    slots = slots_behind(settings, source, own)
    return () if any(slots.values()) else tuple(slots)
