"""The run tags that hold all state of the sensors.

A sensor's cursor advances with the run request, even if the run then fails. Tags belong to the run, survive a restart
of the daemon, and are copied to re-executions. The UI shows those for people, and hides those with Dagster's prefix.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

HIDDEN, FORMER = ".dagster/lakehouse_", "lakehouse/"
"""The prefix of tags that the UI hides, and the one that they had in release 0.1."""

SNAPSHOTS = f"{HIDDEN}snapshots"
"""JSON: table → id of the newest data snapshot the run reads; written by its first step."""

TRIGGER = f"{HIDDEN}trigger"
"""Hash of the facts that made a sensor launch the run; with the failure before it, the run key."""

CODE = f"{HIDDEN}code"
"""Hash of models and Python code that the launching sensor saw; failures of other code delay nothing."""

WHY = "lakehouse/why"
"""The reason for the launch, for people."""

HELD = f"{HIDDEN}held"
"""The load state: tables that the run excluded or failed to build. Until the run ends, the state it started from."""

BEGUN = f"{HIDDEN}begun"
"""The run's id, as tags are copied to re-executions, and when it began to load parsed and vault."""

LEFT_BEHIND = "lakehouse/left_behind"
"""The names of these tables, for people."""

MODE = "lakehouse/mode"
"""`incremental`: the run completes the days of its partition. Without the tag the run is a backfill of them."""

INCREMENTAL = "incremental"

LOADS = f"{HIDDEN}loads"
"""What a run loads, a source or the marts: one run of each at a time, the others wait in the queue (dagster.yaml)."""

BACKGROUND = {f"{HIDDEN}background": "yes", "dagster/priority": "-1"}
"""Of jobs that can wait: one of them runs at a time (dagster.yaml), and queued loads are launched first."""

PROMPT = {"dagster/priority": "1"}
"""Of jobs that cannot wait: they are launched before queued loads."""

MAINTENANCE_GROUP = "lakehouse/maintenance_group"
"""The schedule group that a run of `maintain` is for."""

MOMENT = "lakehouse/moment"
"""The time whose cut a run of `pin_…` keeps."""

EVERY = "lakehouse/every"
"""The cron expression and time zone of the schedule that has launched it: what was missed is by these alone."""


def tag(run: dg.DagsterRun, name: str) -> str | None:
    """The value of a tag, also of a run of release 0.1."""
    return run.tags.get(name, run.tags.get(name.replace(HIDDEN, FORMER)))


def pack_snapshots(newest: Mapping[str, "SnapshotFact"]) -> str:
    """The value of the SNAPSHOTS tag. Ids are text: JavaScript rounds 64-bit integers."""
    ids = {table: str(fact.snapshot_id) for table, fact in sorted(newest.items())}
    return json.dumps(ids, separators=(",", ":"))


def unpack_snapshots(value: str | None) -> dict[str, int]:
    """Parses the SNAPSHOTS tag; a missing or malformed value yields an empty mapping."""
    try:
        return {str(table): int(snapshot) for table, snapshot in json.loads(value or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def pack_begun(run_id: str, at: datetime) -> str:
    """The value of the BEGUN tag."""
    return f"{run_id} {at.isoformat()}"


def unpack_begun(run: dg.DagsterRun) -> datetime | None:
    """When the run itself began to load parsed and vault; None if it did not come to it."""
    by, _, at = (tag(run, BEGUN) or "").partition(" ")
    return datetime.fromisoformat(at) if by == run.run_id else None


def record_snapshots(context: dg.AssetExecutionContext, newest: Mapping[str, "SnapshotFact"]) -> None:
    """Tags the run with the snapshots it reads; the sensor compares the lake with those of the last load."""
    context.instance.add_run_tags(context.run.run_id, {SNAPSHOTS: pack_snapshots(newest)})
