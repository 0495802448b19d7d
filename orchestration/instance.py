"""Dagster's own storage: a newer Dagster may want it migrated, as `dagster instance migrate` does."""

import os
from collections.abc import Callable

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from sqlalchemy import create_engine, inspect

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings


def outdated(settings: Settings) -> str | None:
    """What there is to migrate, from which revision to which; None where nothing is, or no instance has been used yet.

    Changes nothing: opening an instance without tables would make them.
    """
    if not _is_there(settings):
        return None
    with _instance(settings) as instance:
        storages = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
        versions = {storage.alembic_version() for storage in storages if storage is not None}
    behind = sorted(f"{at} → {head}" for at, head in filter(None, versions) if at != head)
    return ", ".join(behind) or None


def migrate(settings: Settings, say: Callable[[str], None]) -> None:
    """Migrates the instance of the home; nothing else may use it meanwhile."""
    with _instance(settings) as instance:
        instance.upgrade(lambda text: say(f"dagster: {text.strip()}"))


def _instance(settings: Settings) -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(str(settings.dagster_home))


def _is_there(settings: Settings) -> bool:
    if not (settings.dagster_home / "dagster.yaml").exists():
        return False
    storage = InstanceRef.from_dir(str(settings.dagster_home)).storage_data
    given = storage.config_dict["postgres_url"] if storage else None
    url = os.environ.get(given["env"]) if isinstance(given, dict) else given
    if not url:
        raise LakehouseError(f"{settings.dagster_home / 'dagster.yaml'} names no database: set the variable it names")
    engine = create_engine(url)
    try:
        return inspect(engine).has_table("alembic_version")
    finally:
        engine.dispose()
