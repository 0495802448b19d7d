"""Whether the connector that writes a source's topics has stopped: then nothing is behind, and nothing comes."""

from datetime import timedelta

from ingestion.sources.kinds import unread_slots
from ingestion.state import store
from lakehouse.settings import DebeziumSettings, Settings

SILENT = timedelta(minutes=5)  # a connector does not read its slot while it takes a snapshot, whose rows land


def connector_trouble(settings: Settings, source: str) -> str | None:
    """Why nothing new will come by a source's topics, as far as the database behind them tells.

    None where nothing is wrong, or cannot be told: without `url`, or while rows land. Raises LakehouseError where the
    database cannot be asked.
    """
    of = settings.connection(source)
    if not isinstance(of, DebeziumSettings) or of.url is None:
        return None
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream, now, own = store.read_stream(states, source), store.catalog_clock(states), store.read_slots(states)
    if stream is None or now - stream.updated_at < SILENT:
        return None
    slots = unread_slots(settings, source, own.values())
    return f"no connector reads its database: slot {', '.join(slots)} is inactive" if slots else None
