"""The limits that tables declare, from the manifest as it was parsed last: the watch never runs dbt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations, RawTable, declarations_from
from lakehouse.declarations.built_by_key import built_by_key
from lakehouse.declarations.manifest import manifest_path
from lakehouse.declarations.models import APPENDED
from lakehouse.declarations.policies import LagPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_watch.probes.still_there import Declared, declared_in


@dataclass(frozen=True)
class Loaded:
    """A parsed table and the raw table that it is loaded from; `declared` is within how many seconds, if anything is.

    Of one without `by_sensor`, a schedule says when it is loaded.
    """

    source: str
    raw: tuple[str, str]
    parsed: tuple[str, str]
    by_sensor: bool
    declared: float | None


Limits = Mapping[str, Mapping[str, LagPolicy]]
"""By source and table."""


@dataclass(frozen=True)
class Project:
    """What is declared, as it was parsed last."""

    limits: Limits = field(default_factory=dict)
    loads: tuple[Loaded, ...] = ()
    there: Declared | None = None
    wrong: tuple[tuple[str, str], ...] = ()
    tables: Mapping[tuple[str, str], RawTable] | None = None


def declared_limits(settings: Settings, source: str) -> Mapping[str, LagPolicy]:
    """The limits of the source's tables that declare some, by table."""
    return _parsed_last(settings).limits.get(source, {})


def declared_loads(settings: Settings) -> tuple[Loaded, ...]:
    """The parsed tables of the project; none while it cannot be read."""
    return _parsed_last(settings).loads


def declared_still(settings: Settings) -> Declared | None:
    """What Dagster may remember and the project still has; None while it cannot be read."""
    return _parsed_last(settings).there


def declared_tables(settings: Settings) -> Mapping[tuple[str, str], RawTable] | None:
    """The raw tables by source and name; None while the project cannot be read."""
    return _parsed_last(settings).tables


def declared_wrongly(settings: Settings) -> tuple[tuple[str, str], ...]:
    """The marts whose `built_by` is wrong, with file, line and why; none while the project cannot be read."""
    return _parsed_last(settings).wrong


def _parsed_last(settings: Settings) -> Project:
    path = manifest_path(settings)
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        return Project()
    return _read(path, written, settings.dbt_project_dir, frozenset(settings.sources))


@lru_cache(maxsize=1)
def _read(path: Path, written: int, project_dir: Path, connected: frozenset[str]) -> Project:
    try:
        manifest = json.loads(path.read_text())
        declared = declarations_from(manifest, project_dir)
        there = declared_in(manifest, declared.among(connected), project_dir)
        _, wrong = built_by_key(manifest, project_dir)
    except (OSError, ValueError, LakehouseError):  # it is being changed: the commands that need it say what is wrong
        return Project()
    limits = {s.name: {table.name: table.lag for table in s.tables if table.lag is not None} for s in declared.sources}
    named = tuple((manifest["nodes"][unique_id]["name"], line) for unique_id, line in wrong.items())
    tables = {(table.source, table.name): table for table in declared.tables}
    return Project(limits, tuple(_loads(manifest, declared)), there, named, tables)


def _loads(manifest: Mapping[str, Any], declared: Declarations) -> Iterator[Loaded]:
    tables = {(table.source, table.name): table for source in declared.sources for table in source.tables}
    for node in manifest["nodes"].values():
        read = [manifest["sources"].get(key) for key in node.get("depends_on", {}).get("nodes", ())]
        appended = node["resource_type"] == "model" and node["config"]["materialized"] == APPENDED
        if appended and len(read) == 1 and read[0]:
            table = tables.get((read[0]["source_name"], read[0]["name"]))
            if table is not None:
                minutes = table.raw.freshness_minutes
                yield Loaded(
                    table.source, table.identifier, (node["schema"], node["alias"]),
                    table.load.trigger == "sensor", minutes * 60.0 if minutes else None,
                )  # fmt: skip
