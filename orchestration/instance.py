"""Migrates Dagster's storage after an upgrade of Dagster, as `dagster instance migrate` does."""

import os
from collections.abc import Callable

import dagster as dg
import yaml
from sqlalchemy import create_engine, inspect

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings


def outdated(settings: Settings) -> str | None:
    """The pending migrations as `revision → revision`; None if there are none or the instance was never used.

    Read-only: an instance without tables is not opened, as that would create them.
    """
    if not _has_tables(settings):
        return None
    with _instance(settings) as instance:
        storages = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
        versions = {storage.alembic_version() for storage in storages if storage is not None}
    behind = sorted(f"{at} → {head}" for at, head in filter(None, versions) if at != head)
    return ", ".join(behind) or None


def migrate(settings: Settings, say: Callable[[str], None]) -> None:
    """Migrates the home's instance. Nothing else may use it at the same time."""
    with _instance(settings) as instance:
        instance.upgrade(lambda text: say(f"dagster: {text.strip()}"))


def _instance(settings: Settings) -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(str(settings.dagster_home))


def _has_tables(settings: Settings) -> bool:
    file = settings.dagster_home / "dagster.yaml"
    if not file.exists():
        return False
    storage = (yaml.safe_load(file.read_text()) or {}).get("storage") or {}
    configured = storage.get("postgres", {}).get("postgres_url")
    variable = configured["env"] if isinstance(configured, dict) else None
    url = os.environ.get(variable) if variable else configured
    if not url:
        missing = f"{variable} is not set here. In docker/, run this in `worker`; in Kubernetes, in the pod of Dagster"
        raise LakehouseError(f"{file} names no database" + (f": {missing}" if variable else ""))
    engine = create_engine(url)
    try:
        return inspect(engine).has_table("alembic_version")
    finally:
        engine.dispose()
