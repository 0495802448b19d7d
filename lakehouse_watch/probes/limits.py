"""The limits that tables declare, from the manifest as it was parsed last: the watch never runs dbt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import manifest_path
from lakehouse.declarations.policies import LagPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings


def declared_limits(settings: Settings, source: str) -> Mapping[str, LagPolicy]:
    """The limits of the source's tables that declare some, by table."""
    path = manifest_path(settings)
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        return {}
    return _limits(path, written, settings.dbt_project_dir).get(source, {})


@lru_cache(maxsize=1)
def _limits(path: Path, written: int, project_dir: Path) -> Mapping[str, Mapping[str, LagPolicy]]:
    try:
        declared = declarations_from(json.loads(path.read_text()), project_dir)
    except (OSError, ValueError, LakehouseError):  # it is being changed: the commands that need it say what is wrong
        return {}
    return {s.name: {table.name: table.lag for table in s.tables if table.lag is not None} for s in declared.sources}
