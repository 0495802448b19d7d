"""The run that was to make each table last. Dagster itself answers with the whole last materialization of each."""

from collections.abc import Iterable
from typing import Any

import dagster as dg


def last_runs(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> dict[dg.AssetKey, str]:
    """The id of the run that was to make each of these tables last, of those that have one."""
    from sqlalchemy import column, select, table

    asked = {key.to_string(): key for key in keys}
    rows = table("asset_keys", column("asset_key"), column("last_run_id")).c  # as the pinned release has it
    query = select(rows.asset_key, rows.last_run_id).where(rows.asset_key.in_(asked), rows.last_run_id > "")
    storage: Any = instance.event_log_storage
    with storage.index_connection() as connection:
        return {asked[key]: run_id for key, run_id in connection.execute(query).all()} if asked else {}
