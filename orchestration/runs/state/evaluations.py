"""The newest evaluation of each asset check.

Dagster itself answers with the check that was planned last. A run that waits, or that was killed before it came to the
check, would hide that the check fails; and one that was planned before another evaluation was made has its result in a
row before that one's. So the event tells which is newer, by the number that the database has given it: a clock that was
ahead for a while, of whoever evaluates, would have the last word until its time has come.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg


@dataclass(frozen=True)
class Evaluation:
    """When a check was evaluated last, and whether it failed, and was no warning."""

    at: datetime
    has_failed: bool


def newest_evaluations(
    instance: dg.DagsterInstance, checks: Collection[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, Evaluation]:
    """The newest evaluation of each of these checks that has one."""
    if not checks:
        return {}
    keys = {(check.asset_key.to_string(), check.name): check for check in checks}
    storage: Any = instance.event_log_storage
    with storage.index_connection() as connection:
        rows: list[Any] = list(connection.execute(_query(keys)).all())
    return {
        keys[asset, name]: Evaluation(at.replace(tzinfo=UTC), status == "FAILED" and _is_error(event))
        for asset, name, at, status, event in rows
        if (asset, name) in keys
    }


def _query(keys: Collection[tuple[str, str]]) -> Any:
    """Selects from Dagster's own table, as the pinned release has it."""
    from sqlalchemy import DateTime, and_, case, column, func, select, table

    names = ("asset_key", "check_name", "execution_status", "evaluation_event", "evaluation_event_storage_id")
    rows = table("asset_check_executions", *map(column, names), column("evaluation_event_timestamp", DateTime)).c
    at, event = rows.evaluation_event_timestamp, rows.evaluation_event_storage_id
    is_asked = and_(
        rows.asset_key.in_({asset for asset, _ in keys}),
        rows.check_name.in_({name for _, name in keys}),
        rows.execution_status != "PLANNED",
    )
    newest = (
        select(rows.asset_key, rows.check_name, func.max(event).label("event"))
        .where(is_asked)
        .group_by(rows.asset_key, rows.check_name)
        .subquery()
    )
    is_newest = and_(
        rows.asset_key == newest.c.asset_key,
        rows.check_name == newest.c.check_name,
        event == newest.c.event,
    )
    why = case((rows.execution_status == "FAILED", rows.evaluation_event))  # of a thousand that passed, nobody asks
    return (
        select(rows.asset_key, rows.check_name, at, rows.execution_status, why).join(newest, is_newest).where(is_asked)
    )


def _is_error(event: str | None) -> bool:
    entry = dg.deserialize_value(event, dg.EventLogEntry) if event else None
    found = entry.dagster_event if entry else None
    return found is not None and found.asset_check_evaluation_data.severity is dg.AssetCheckSeverity.ERROR
