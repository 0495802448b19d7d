"""Makes the raw layer wrong on purpose, compares it with the source, and repairs it: what tests of both share."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ingestion.pipeline.repair import KeyRange, stage_repair
from ingestion.pipeline.session import Session, append_of, begin_cycle, register
from ingestion.sink.publication import Publication
from ingestion.sink.publish import publish
from ingestion.sources.postgres.points import consistent_point
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.verify import TableComparison, reconcile_raw
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import RawPolicy
from tests.world import World

ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(12,2), big text)"
TABLES = {"items": RawPolicy(relation="public.items", key=("id",))}


def repair(world: World, spark: Any, table: str, key_range: KeyRange | None = None) -> dict[str, int]:
    """Stages and publishes a repair of what is in the lake now, at a new point; gives rows by operation."""
    catalog = open_catalog(world.settings)
    with store.connect_catalog(world.settings) as states:
        lease = leases.acquire(states, world.source.name, 60, "once")
        assert lease is not None
        try:
            session = Session(world.settings, catalog, spark, lease, world.source)
            declared = world.source.table(table)
            stream, position = (
                store.read_stream(states, world.source.name),
                store.read_positions(states, world.source.name)[table],
            )
            assert stream is not None
            iceberg = catalog.load_table(declared.identifier)
            points = consistent_point(world.settings, world.source.name, [declared])
            with points as point, begin_cycle(session, states, stream.epoch) as cycle:
                register(states, session, cycle, [iceberg])
                written = stage_repair(session, cycle, declared, iceberg, position.facts, point, key_range)
                appends = (append_of(session, cycle, written),)
                publish(world.settings, catalog, lease, Publication(cycle.id, world.source.name, stream.epoch, appends))
            return written.operations
        finally:
            leases.release(states, lease)
            catalog.close()


def spoil(world: World, table: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rewrites the raw rows as `change` has them."""
    catalog = open_catalog(world.settings)
    try:
        iceberg = catalog.load_table((f"raw_{world.source.name}", table))
        rows = change(iceberg.scan().to_arrow().to_pylist())
        iceberg.overwrite(pa.Table.from_pylist(rows, schema=iceberg.schema().as_arrow()))
    finally:
        catalog.close()


def compared(world: World, spark: Any, table: str, **options: Any) -> TableComparison:
    wanted = [f"{world.source.name}.{table}"]
    (result,) = reconcile_raw(world.settings, world.declarations, wanted, spark=spark, **options)
    return result
