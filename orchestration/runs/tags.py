"""The run tags through which runs and sensors talk; everything a sensor remembers is in them.

A sensor's cursor would move on request, whether or not the run succeeded. Tags belong to a run, survive a restart
of the daemon, are copied to a re-execution, and show in the UI.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

SNAPSHOTS = "lakehouse/snapshots"
"""JSON of table → id of the newest data snapshot that the run read (written by its first step)."""

TRIGGER = "lakehouse/trigger"
"""What a sensor had seen, as a short hash: failed runs of one trigger are counted and not repeated for ever."""

WHY = "lakehouse/why"
"""The same for people."""

HELD = "lakehouse/held"
"""Which tables a run left out or failed to build, and since when; until its end, what the run before it had left."""

MODE = "lakehouse/mode"
"""`incremental`: the run's partition says which days it completes; without the tag it says what to derive again."""

INCREMENTAL = "incremental"

MAINTENANCE_GROUP = "lakehouse/maintenance_group"
"""The schedule group that a run of `maintain` is for."""


def pack_snapshots(newest: Mapping[str, "SnapshotFact"]) -> str:
    """The value of the SNAPSHOTS tag. Ids are text: JavaScript rounds 64-bit integers."""
    ids = {table: str(fact.snapshot_id) for table, fact in sorted(newest.items())}
    return json.dumps(ids, separators=(",", ":"))


def unpack_snapshots(value: str | None) -> dict[str, int]:
    """The opposite; a missing or foreign value reads as nothing recorded."""
    try:
        return {str(table): int(snapshot) for table, snapshot in json.loads(value or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def record_snapshots(context: dg.AssetExecutionContext, newest: Mapping[str, "SnapshotFact"]) -> None:
    """Writes on the run what it reads; the sensor compares the lake with the record of the last successful run."""
    context.instance.add_run_tags(context.run.run_id, {SNAPSHOTS: pack_snapshots(newest)})
