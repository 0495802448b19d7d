"""`meta.maintenance`: the outcomes of actions, with figures before and after; one append per run.

Later plans learn from it how long an action takes. Skipped tables are not recorded, so a healthy lake adds nothing.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lakehouse.catalog.open import load_table
from lakehouse.catalog.writing.commit import retried
from lakehouse.catalog.writing.evolving import complete
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

HISTORY = TableName("meta", "maintenance")
REMEMBERED_DAYS = 30
FIGURES = tuple(field.name for field in fields(Figures))
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.delete-after-commit.enabled": "false",  # a backup of the catalog may point to one
    "comment": "What maintenance did to which table, with figures and probes before and after.",
}
_TIME, _PROBES = pa.timestamp("us", tz="UTC"), pa.map_(pa.string(), pa.float64())
SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("host", pa.string()),
        ("table", pa.string()),
        ("action", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("started_at", _TIME),
        ("seconds", pa.float64()),
        ("expected_seconds", pa.float64()),
        ("stated_seconds", pa.float64()),
        ("read_bytes", pa.int64()),
        ("written_bytes", pa.int64()),
        ("removed_files", pa.int64()),
        ("removed_bytes", pa.int64()),
        *((f"{figure}_{side}", pa.int64()) for figure in FIGURES for side in ("before", "after")),
        ("probes_before", _PROBES),
        ("probes_after", _PROBES),
    ]
)


class Planned(Protocol):
    """What the history keeps of a planned step: its expected seconds, and those by the stated rate alone."""

    @property
    def expected_seconds(self) -> float: ...
    @property
    def stated_seconds(self) -> float: ...


@dataclass(frozen=True)
class Act:
    """One action of an earlier run: the seconds it took, and those by the stated rate; None without a plan."""

    table: str
    action: str
    status: str
    started_at: datetime
    seconds: float
    stated_seconds: float | None


def record(
    session: Session,
    outcomes: Iterable[Outcome],
    planned: Mapping[tuple[TableName, str], Planned] = MappingProxyType({}),
) -> str | None:
    """Appends outcomes that are done or failed; returns the run's id, None if there are none.

    `planned` has the plan's expectations by table and action.
    """
    run_id, host, now = uuid.uuid4().hex, socket.gethostname(), datetime.now(UTC)
    rows = [
        _row(outcome, planned.get((outcome.table, outcome.action)), now) | {"run_id": run_id, "host": host}
        for outcome in outcomes
        if outcome.status in ("done", "failed")
    ]
    if not rows:
        return None
    _ensure(session.catalog)
    appended = pa.Table.from_pylist(rows, SCHEMA)
    retried(session.catalog, HISTORY, lambda table: table.append(appended))
    return run_id


def recent(session: Session) -> list[Act]:
    """The actions of the last thirty days, newest first."""
    from pyiceberg.expressions import GreaterThanOrEqual

    table = load_table(session.catalog, *HISTORY)
    if table is None:
        return []
    since = GreaterThanOrEqual(term="started_at", value=session.ago(REMEMBERED_DAYS * 24).isoformat())
    names = tuple(field.name for field in fields(Act))
    stored = {field.name for field in table.schema().fields}  # fewer if an earlier release made the table
    rows = table.scan(row_filter=since, selected_fields=tuple(stored & set(names))).to_arrow().to_pylist()
    acts = (Act(**dict.fromkeys(names) | row) for row in rows)
    return sorted(acts, key=lambda act: act.started_at, reverse=True)


def _row(outcome: Outcome, planned: Planned | None, now: datetime) -> dict[str, Any]:
    before, after = asdict(outcome.before), asdict(outcome.after)
    sides = {
        f"{name}_{side}": values[name] for side, values in (("before", before), ("after", after)) for name in FIGURES
    }
    common = {name: value for name, value in asdict(outcome).items() if name in SCHEMA.names}
    return common | sides | {
        "table": str(outcome.table),
        "started_at": outcome.started_at or now,  # the history is read by it
        "expected_seconds": planned and planned.expected_seconds,
        "stated_seconds": planned and planned.stated_seconds,
        "probes_before": list(outcome.probes_before.items()),
        "probes_after": list(outcome.probes_after.items()),
    }  # fmt: skip


def _ensure(catalog: SqlCatalog) -> Table:
    catalog.create_namespace_if_not_exists(HISTORY.namespace)
    return complete(catalog, catalog.create_table_if_not_exists(HISTORY, SCHEMA, properties=PROPERTIES), SCHEMA)
