"""Unreferenced objects: one rule for health, which counts them, and for orphan removal."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

from lakehouse.catalog.objects import StoredObject
from maintenance.inventory.lake import Lake
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import without_reference


def unreferenced(lake: Lake, name: TableName, before: datetime, removed: Container[str]) -> list[StoredObject]:
    """Objects below a table's location, written before a time, that no snapshot of the table refers to.

    Objects that an unpublished cycle may have written are excluded, and those already recorded as `removed`: to search
    for references to them would read the table's whole history.
    """
    old = {
        stored.path: stored
        for stored in lake.objects_of(name)
        if stored.modified < before and stored.path not in removed and not lake.is_staged(stored.path)
    }
    written = {path: int(stored.modified.timestamp() * 1000) for path, stored in old.items()}
    return [old[path] for path in sorted(without_reference(lake.tables[name], written))] if old else []
