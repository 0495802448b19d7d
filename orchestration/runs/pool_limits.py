"""The limit of a pool that has none of its own: `default_limit` of `dagster.yaml`.

Dagster inserts the pool's row, and updates it where there is one, in the same transaction. Postgres refuses the update
in a transaction with a failed insert: whoever comes to a pool beside the first one would die, and after a change of
`default_limit` so would every claim of a pool, and the daemon's look at its queue.
"""

from typing import Any

from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from sqlalchemy import text

TAKE = """INSERT INTO concurrency_limits (concurrency_key, "limit", using_default_limit) VALUES (:pool, :default, true)
 ON CONFLICT (concurrency_key) DO UPDATE SET "limit" = excluded."limit" WHERE concurrency_limits.using_default_limit"""
LIMIT = 'SELECT "limit" FROM concurrency_limits WHERE concurrency_key = :pool'
_by_dagster = SqlEventLogStorage.initialize_concurrency_limit_to_default


def follow_default_limit() -> None:
    """Has this process give pools the default limit in a way that Postgres takes; it is what `default_limit` was when
    the process began."""
    storage: Any = SqlEventLogStorage
    storage.initialize_concurrency_limit_to_default = _take_default


def _take_default(storage: SqlEventLogStorage, concurrency_key: str) -> bool:
    default = storage._instance.global_op_concurrency_default_limit if storage.has_instance else None
    if default is None or not storage.has_default_pool_limit_col:
        return _by_dagster(storage, concurrency_key)
    with storage.index_transaction() as connection:
        connection.execute(text(TAKE), {"pool": concurrency_key, "default": default})
        limit: int = connection.execute(text(LIMIT), {"pool": concurrency_key}).scalar_one()
        added = storage._allocate_concurrency_slots(connection, concurrency_key, limit)
    if added:
        storage.assign_pending_steps(added)  # else they wait until a slot is freed
    return True
