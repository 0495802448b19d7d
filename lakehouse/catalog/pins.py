"""The tag and the properties that a pin puts on each of its tables (see `maintenance.inventory.pins`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.catalog.next_names import is_next
from lakehouse.catalog.relations import TableName, list_relations
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

TAG = "pin_"
CUT = "lakehouse.pin."  # with the pin's name: the cut that it keeps, such as retail=1:0/3C87757
OTHERS = ".others"  # behind that: the cuts of then of sources that were not declared any more


class Pinned(NamedTuple):
    """What a pin keeps: a snapshot of each of its tables; `cut` is empty where it keeps single tables.

    `others` are the cuts of then of other sources, as a warehouse names them; None if nobody has written them down.
    """

    snapshots: Mapping[TableName, int]
    cut: str
    others: str | None = None


def properties_of(pin: str) -> tuple[str, str]:
    """The names of the properties of a pin that keeps a cut."""
    return CUT + pin, CUT + pin + OTHERS


def pinned(catalog: LakeCatalog, pin: str) -> Pinned:
    """The tables of a pin. Raises LakehouseError if there is no such pin."""
    relations = (relation for relation in list_relations(catalog) if relation.kind == "table")
    names = [relation.name for relation in relations if not is_next(relation.name.namespace)]
    tables = {TableName(*name): table for name, table in catalog.load_tables(names).items()}
    kept = {name: table for name, table in tables.items() if TAG + pin in table.metadata.refs}
    if not kept:
        raise LakehouseError(f"there is no pin {pin!r}: `lakehouse maintain pins` lists all")
    named, of_others = properties_of(pin)
    cuts = {table.properties.get(named, "") for table in kept.values()}
    others = {table.properties.get(of_others) for table in kept.values()}
    snapshots = {name: table.metadata.refs[TAG + pin].snapshot_id for name, table in kept.items()}
    return Pinned(snapshots, max(cuts), others.pop() if len(others) == 1 else None)


def lacking(
    catalog: LakeCatalog,
    pin: str,
    moment: datetime,
    mirrors: Mapping[tuple[str, str], tuple[str, str]],
    marts: Collection[tuple[str, str]],
) -> list[str]:
    """Mirrors of raw tables that the pin of a moment keeps, by raw table, and marts of then, which it does not keep.
    None that was never made: without a follower there may be no mirrors."""
    kept = pinned(catalog, pin).snapshots.keys()
    there = {(*relation.name,) for relation in list_relations(catalog) if relation.kind == "table"}
    wanted = [mirror for raw, mirror in mirrors.items() if raw in kept and mirror in there and mirror not in kept]
    tables = catalog.load_tables([mart for mart in marts if mart in there and mart not in kept])
    wanted += [(*name,) for name, table in tables.items() if not _was_made_since(table, moment)]
    return sorted(".".join(name) for name in wanted)


def _was_made_since(table: Table, moment: datetime) -> bool:
    oldest = min(table.metadata.snapshots, key=lambda s: s.timestamp_ms, default=None)
    return oldest is None or (oldest.parent_snapshot_id is None and oldest.timestamp_ms > moment.timestamp() * 1000)


def refuse_pinned(what: str, tables: Iterable[Table]) -> None:
    """Raises LakehouseError, with the commands that end them, if pins keep snapshots of these tables of `what`."""
    named = {name for table in tables for name in table.metadata.refs if name.startswith(TAG)}
    if pins := sorted(name.removeprefix(TAG) for name in named):
        remedy = " and ".join(f"`lakehouse maintain unpin {pin}`" for pin in pins)
        raise LakehouseError(f"{what}: pin {', '.join(pins)} keeps old snapshots: run {remedy} first")
