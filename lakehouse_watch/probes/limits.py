"""What the project declares, from the manifest as it was parsed last: no look runs dbt (see `parsing.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations, RawTable, Source, declarations_from
from lakehouse.declarations.built_by_key import built_by_key
from lakehouse.declarations.dbt.manifest import manifest_path, why_unparsed
from lakehouse.declarations.dbt.models import APPENDED, is_view
from lakehouse.declarations.policies import LagPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, check_project
from lakehouse_watch.probes.still_there import BUILD, Declared, declared_in, is_mart

UNDECLARED_SECONDS = 26 * 3600.0  # of marts, which somebody may build once a day


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


@dataclass(frozen=True)
class Stored:
    """A model that stores rows: the tables below it, within how many seconds it is to have theirs, and of a mart the
    job that makes it; which one makes another is not declared, but known from the last time."""

    name: tuple[str, str]
    below: frozenset[str]
    seconds: float
    job: str | None


Limits = Mapping[str, Mapping[str, LagPolicy]]
"""By source and table."""


@dataclass(frozen=True)
class Project:
    """What is declared, as it was parsed last."""

    limits: Limits = field(default_factory=dict)
    loads: tuple[Loaded, ...] = ()
    there: Declared | None = None
    wrong: tuple[tuple[str, str], ...] = ()
    sources: tuple[Source, ...] | None = None
    tables: Mapping[tuple[str, str], RawTable] | None = None
    models: tuple[Stored, ...] = ()


class Misdeclared(LakehouseError):
    """The project cannot be read: it does not parse, or a declaration is wrong."""


class NotParsed(Misdeclared):
    """Nobody has parsed it in this home."""


def check_readable(settings: Settings) -> None:
    """Raises LakehouseError where the project is not there, and Misdeclared where it cannot be read as it is now."""
    check_project(settings.project_dir)
    if (why := why_unparsed(settings)) is not None:
        raise Misdeclared(in_one_line(why))
    _parsed_last(settings)


def declared_limits(settings: Settings, source: str) -> Mapping[str, LagPolicy]:
    """The limits of the source's tables that declare some, by table, as they could be read last; the usual ones hold
    until the project is parsed. Raises Misdeclared where they never could since the watch has begun.
    """
    with suppress(NotParsed):
        return _readable_last(settings).limits.get(source, {})
    return {}


def declared_loads(settings: Settings) -> tuple[Loaded, ...]:
    """The parsed tables of the project. Raises Misdeclared."""
    return _parsed_last(settings).loads


def declared_models(settings: Settings) -> tuple[Stored, ...]:
    """The models of which it is known how old they may be. Raises Misdeclared."""
    return _parsed_last(settings).models


def declared_still(settings: Settings) -> Declared | None:
    """What Dagster may remember and the project still has, as it could be read last; None where it never could."""
    with suppress(Misdeclared):
        return _readable_last(settings).there
    return None


def declared_tables(settings: Settings) -> Mapping[tuple[str, str], RawTable] | None:
    """The raw tables by source and name, as they could be read last; None where they never could."""
    sources = declared_sources(settings)
    return None if sources is None else {(table.source, table.name): table for s in sources for table in s.tables}


def declared_sources(settings: Settings) -> tuple[Source, ...] | None:
    """The sources, as they could be read last; None where they never could."""
    with suppress(Misdeclared):
        return _readable_last(settings).sources
    return None


def declared_wrongly(settings: Settings) -> tuple[tuple[str, str], ...]:
    """The marts whose `built_by` is wrong, with file, line and why. Raises Misdeclared."""
    return _parsed_last(settings).wrong


_readable: dict[Path, Project] = {}


def _readable_last(settings: Settings) -> Project:
    """What goes on while somebody corrects a mistake."""
    path = manifest_path(settings)
    try:
        _readable[path] = _parsed_last(settings)
    except Misdeclared:
        if path not in _readable:
            raise
    return _readable[path]


def _parsed_last(settings: Settings) -> Project:
    """Raises Misdeclared with file and line, and NotParsed."""
    path = manifest_path(settings)
    try:
        written = path.stat().st_mtime_ns
    except FileNotFoundError:
        raise NotParsed(f"nobody has parsed it in {settings.home} yet") from None
    except OSError as error:
        raise Misdeclared(f"{path}: {error.strerror}") from None
    project = _read(path, written, settings.dbt_project_dir, frozenset(settings.sources))
    if isinstance(project, str):
        raise Misdeclared(project)
    return project


@lru_cache(maxsize=1)
def _read(path: Path, written: int, project_dir: Path, connected: frozenset[str]) -> Project | str:
    """The project, or why it cannot be read."""
    try:
        manifest = json.loads(path.read_text())
        declared = declarations_from(manifest, project_dir)
        there = declared_in(manifest, declared.among(connected), project_dir)
        _, wrong = built_by_key(manifest, project_dir)
        models = tuple(stored_models(manifest))
    except LakehouseError as error:
        return in_one_line(str(error))
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    limits = {s.name: {table.name: table.lag for table in s.tables if table.lag is not None} for s in declared.sources}
    named = tuple((manifest["nodes"][unique_id]["name"], line) for unique_id, line in wrong.items())
    tables = {(table.source, table.name): table for table in declared.tables}
    return Project(limits, tuple(_loads(manifest, declared)), there, named, declared.sources, tables, models)


def in_one_line(lines: str) -> str:
    """The first of several mistakes, and how many more there are."""
    first, *others = lines.splitlines()
    return f"{first}; and {len(others)} more" if others else first


def stored_models(manifest: Mapping[str, Any]) -> Iterator[Stored]:
    """Each model with `freshness_minutes`, and each mart."""
    nodes = {**manifest["sources"], **manifest["nodes"]}
    for node in manifest["nodes"].values():
        if node["resource_type"] == "model" and not is_view(node):
            minutes = {**node.get("meta", {}), **node["config"].get("meta", {})}.get("freshness_minutes")
            if minutes or is_mart(node):
                seconds, job = float(minutes) * 60 if minutes else UNDECLARED_SECONDS, BUILD if is_mart(node) else None
                yield Stored((node["schema"], node["alias"]), frozenset(_below(node, nodes)), seconds, job)


def _below(node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Each table, `schema.name`, of which the node is made in the end, but for marts."""
    found, waiting, visited = set[str](), [node], set[str]()
    while waiting:
        for parent in waiting.pop().get("depends_on", {}).get("nodes", ()):
            if parent in nodes and parent not in visited:
                visited.add(parent)
                waiting.append(upstream := nodes[parent])
                if not is_view(upstream) and not is_mart(upstream):
                    found.add(f"{upstream['schema']}.{upstream.get('alias') or upstream['identifier']}")
    return found


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
