"""Pins: snapshots that are kept from expiry for a consumer (a report, a training run, an audit).

A pin is an Iceberg tag `pin_<consumer>`: every engine respects it and can read it (`FOR VERSION AS OF 'pin_x'`);
ingestion respects it when it limits its metadata. A pinned cut is that tag on each of the cut's tables, and may be
named by a property beside it. A pin with an end has Iceberg's `max-ref-age`, counted from the snapshot's commit, and
expiry drops it after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.next_names import is_next
from lakehouse.catalog.pins import CUT, TAG, Pinned, properties_of
from lakehouse.catalog.writing.commit import until_committed
from lakehouse.declarations.policies import check_pin_name
from lakehouse.errors import LakehouseError
from maintenance.inventory.cuts import newest_cut
from maintenance.inventory.in_use import all_tables
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate


@dataclass(frozen=True)
class Pin:
    """A pinned snapshot, its commit time, the pin's end, None if it has none, and its cut, if it was told of one."""

    consumer: str
    table: TableName
    snapshot_id: int
    committed_at: datetime
    until: datetime | None
    cut: str | None = None

    def ends_at(self, until: datetime) -> bool:
        """Whether that is its end, to the millisecond that Iceberg keeps."""
        return self.until is not None and abs(self.until - until) < timedelta(milliseconds=1)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "consumer": self.consumer,
            "table": str(self.table),
            "snapshot_id": str(self.snapshot_id),
            "committed_at": self.committed_at.isoformat(),
            "until": self.until.isoformat() if self.until else None,
            "cut": self.cut,
        }


def pin_cut(session: Session, consumer: str, source: str, until: datetime | None = None) -> list[Pin]:
    """Pins all tables of a source's newest cut at the cut's snapshots; all or none."""
    cut = newest_cut(session.catalog, source)
    if not cut:
        raise LakehouseError(f"source {source!r} has no cut yet: ingest it first (`lakehouse ingest --once {source}`)")
    return _pin(session, consumer, Pinned(cut, ""), until)


def pin_table(
    session: Session, consumer: str, table: TableName, snapshot_id: int | None = None, until: datetime | None = None
) -> list[Pin]:
    """Pins one table at its newest or the given snapshot."""
    loaded = session.load(table)
    if loaded is None or (snapshot_id is None and loaded.metadata.current_snapshot_id is None):
        raise LakehouseError(
            f"{table} is not in the lake, or has no rows yet: nothing to pin; `lakehouse show` lists the tables"
        )
    wanted = loaded.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    assert wanted is not None
    return _pin(session, consumer, Pinned({table: wanted}, ""), until)


def pin_states(session: Session, consumer: str, kept: Pinned, until: datetime | None = None) -> list[Pin]:
    """Pins tables at their snapshots of a cut; all or none."""
    return _pin(session, consumer, kept, until)


def complete_states(session: Session, consumer: str, kept: Pinned, until: datetime | None = None) -> list[Pin]:
    """Pins of such tables those that the pin lacks, whose process was killed while it made it; they are returned.

    Raises LakehouseError if the pin is one of another cut.
    """
    there = [pin for pin in pins(session) if pin.consumer == consumer]
    if others := sorted({pin.cut or "single tables" for pin in there} - {kept.cut}):
        raise LakehouseError(f"{consumer!r} pins {', '.join(others)} already, and not {kept.cut}: unpin it first")
    known = {pin.table for pin in there}
    lacking = {table: snapshot for table, snapshot in kept.snapshots.items() if table not in known}
    return _put_on_all(session, consumer, kept._replace(snapshots=lacking), until)


def cut_of(session: Session, consumer: str, until: datetime) -> str | None:
    """The cut of which a pin with that end has tables, all of them or some; None if there is no such pin."""
    return next((pin.cut for pin in pins(session) if pin.consumer == consumer and pin.ends_at(until) and pin.cut), None)


def unpin(session: Session, consumer: str) -> list[Pin]:
    """Removes a consumer's pins from all tables; raises LakehouseError if it has none."""
    taken = [pin for pin in pins(session) if pin.consumer == consumer]
    if not taken:
        raise LakehouseError(f"{consumer!r} has no pins: `lakehouse maintain pins` lists all")
    for pin in taken:
        _take_off(session, pin.table, consumer)
    return taken


def pins(session: Session) -> list[Pin]:
    """All pins, by consumer and table."""
    found = [
        _pin_of(name, table, tag)
        for name, table in all_tables(session.catalog).items()
        if not is_next(name.namespace)  # a copy has its table's tags
        for tag in table.metadata.refs
        if tag.startswith(TAG)
    ]
    return sorted(found, key=lambda pin: (pin.consumer, pin.table))


def _pin(session: Session, consumer: str, kept: Pinned, until: datetime | None) -> list[Pin]:
    if taken := [str(pin.table) for pin in pins(session) if pin.consumer == consumer]:
        raise LakehouseError(f"{consumer!r} already pins {', '.join(taken)}: unpin it first, or take another name")
    return _put_on_all(session, consumer, kept, until)


def _put_on_all(session: Session, consumer: str, kept: Pinned, until: datetime | None) -> list[Pin]:
    tag, made = _tag(consumer), list[TableName]()
    said = zip(properties_of(consumer), (kept.cut or None, kept.others), strict=True)
    told = {name: value for name, value in said if value is not None}
    if until is not None and until <= datetime.now(UTC):
        raise LakehouseError(f"a pin until {until.isoformat()} would be over already")
    try:
        for table, snapshot_id in kept.snapshots.items():
            if _put_on(session, table, snapshot_id, consumer, until, told):
                made.append(table)
    except BaseException:
        for table in made:
            _take_off(session, table, consumer)
        raise
    return [_pin_there(session, table, tag) for table in kept.snapshots]


def _put_on(
    session: Session,
    table: TableName,
    snapshot_id: int,
    consumer: str,
    until: datetime | None,
    told: Mapping[str, str],
) -> bool:
    """Whether it was put on; not where somebody who makes the same pin has done so."""
    from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate

    def tagged(loaded: Table) -> tuple[TableUpdate, ...]:
        snapshot = loaded.snapshot_by_id(snapshot_id)
        there = loaded.metadata.refs.get(TAG + consumer)
        if snapshot is None:
            raise LakehouseError(f"{table}: snapshot {snapshot_id} no longer exists; pin a newer state")
        age = None if until is None else int(until.timestamp() * 1000) - snapshot.timestamp_ms
        if there is not None:  # somebody makes the same pin
            found = there.snapshot_id, there.max_ref_age_ms, loaded.properties.get(CUT + consumer)
            if found == (snapshot_id, age, told.get(CUT + consumer)):
                return ()
            raise LakehouseError(
                f"{consumer!r} was pinned by somebody else meanwhile, at another state of {table} or until another time"
            )
        tag = SetSnapshotRefUpdate.model_validate(
            {"ref-name": TAG + consumer, "type": "tag", "snapshot-id": snapshot_id, "max-ref-age-ms": age}
        )
        return (tag, SetPropertiesUpdate(updates=dict(told))) if told else (tag,)

    # On the inspected state: a snapshot that expires meanwhile is a conflict.
    return until_committed(session.catalog, table, tagged)


def _take_off(session: Session, table: TableName, consumer: str) -> None:
    from pyiceberg.table.update import RemovePropertiesUpdate, RemoveSnapshotRefUpdate

    def untagged(loaded: Table) -> tuple[TableUpdate, ...]:
        tag = (RemoveSnapshotRefUpdate(ref_name=TAG + consumer),) if TAG + consumer in loaded.metadata.refs else ()
        told = [name for name in properties_of(consumer) if name in loaded.properties]
        return (*tag, RemovePropertiesUpdate(removals=told)) if told else tag

    until_committed(session.catalog, table, untagged)


def _tag(consumer: str) -> str:
    try:
        return TAG + check_pin_name(consumer)
    except ValueError as error:
        raise LakehouseError(str(error)) from None


def _pin_there(session: Session, name: TableName, tag: str) -> Pin:
    """The pin on a table; somebody who made the same one, and failed, may have taken off what he had put on."""
    table = session.catalog.load_table(name)
    if tag not in table.metadata.refs:
        consumer = tag.removeprefix(TAG)
        raise LakehouseError(
            f"{consumer!r} was taken off {name} by somebody else meanwhile: unpin it, and pin it again"
        )
    return _pin_of(name, table, tag)


def _pin_of(name: TableName, table: Table, tag: str) -> Pin:
    reference, consumer = table.metadata.refs[tag], tag.removeprefix(TAG)
    snapshot = table.snapshot_by_id(reference.snapshot_id)
    assert snapshot is not None, "a reference names an existing snapshot"
    committed = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC)
    age = reference.max_ref_age_ms
    until = None if age is None else committed + timedelta(milliseconds=age)
    return Pin(consumer, name, reference.snapshot_id, committed, until, table.properties.get(CUT + consumer))
