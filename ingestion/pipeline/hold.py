"""Holds a read until the flush is due, and shows it meanwhile: live within seconds, few snapshots."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ingestion.pipeline.held import Files
from ingestion.pipeline.session import Cycle, Session
from ingestion.schema.positions import Position
from ingestion.sink.live import StagedTable, stage_live
from ingestion.sink.publish import STAGING_THREADS
from ingestion.sink.writer import Written
from ingestion.state import lease as leases
from ingestion.state import live
from ingestion.state.live import LiveTable
from ingestion.state.store import Stream
from lakehouse.servers.database import CatalogConnection


def hold(
    session: Session,
    states: CatalogConnection,
    cycle: Cycle,
    stream: Stream,
    written: tuple[Written, ...],
    aside: Files,
    position: Position,
) -> None:
    """Holds what was read up to `position`, and shows what lands as the live states of the tables. Where nothing does,
    a table of the cut as it is says how far the read went. Raises LeaseLost."""
    held = session.held
    assert held is not None
    held.add(cycle.id, cycle.ingested_at, stream, written, aside, position)
    landing = held.written or (Written(stream.cut_tables[0], (), {}, {}),)
    identifiers = {w.name: (f"raw_{session.name}", w.name) for w in landing}
    bases = session.catalog.load_tables(list(identifiers.values()))

    def stage(part: Written) -> StagedTable:
        return stage_live(
            session.catalog, bases[identifiers[part.name]], held.staged.get(part.name), part, position.text,
            cycle.id, session.limits.max_snapshots,
        )  # fmt: skip

    with ThreadPoolExecutor(STAGING_THREADS) as pool:
        held.staged = dict(zip(identifiers, pool.map(stage, landing), strict=True))
    shown = [
        LiveTable(*identifiers[name], s.base_location, s.base_snapshot, s.table.metadata_location)
        for name, s in held.staged.items()
    ]
    with states.transaction():
        leases.check(states, session.lease, session.limits.lease_seconds)
        live.show(states, session.name, position, shown)
