"""What Dagster remembers, and the project may have no more: nothing evaluates a check or runs a job that is gone.

A test that is mended under another name, such as one with another list of values, has failed last for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.declarations.checks.unread import unread_tables
from lakehouse.declarations.dbt.lineage import meta_of
from lakehouse.declarations.dbt.project import project_pins
from maintenance.inventory.declared import NOT_STORED, STORING

BUILD = "build_marts"
OF_PROJECT = ("load_", "mirror_", "reconcile_", "verify_erasures_", "pin_", BUILD)  # how its jobs begin
SCHEDULED = ("load_", "reconcile_", "verify_erasures_", "pin_", "maintain_")  # how its schedules begin
HEALTH_SCHEDULE = "measure_table_health_schedule"  # which each project has
MARTS = "marts"  # the tag or schema of what the last of these builds
IN_THE_CUT = "in_the_cut"  # the check that each raw table has


@dataclass(frozen=True)
class Declared:
    """Sources, the jobs that are made of declarations, checks by table and name, the sensors that start loads, the
    tables and views of models, and the schedules that run unless they are turned off."""

    sources: frozenset[str]
    jobs: frozenset[str]
    checks: frozenset[tuple[str, str]]
    sensors: frozenset[str] = frozenset()
    models: frozenset[tuple[str, str]] = frozenset()
    schedules: frozenset[str] = frozenset()

    def lands(self, source: str, table: str) -> bool:
        """Whether it is a raw table of the project."""
        return (f"raw_{source}.{table}", IN_THE_CUT) in self.checks

    def has_job(self, job: str) -> bool:
        """Whether it is no job of something that is gone; those of maintenance are in each project."""
        return job in self.jobs or not job.startswith(OF_PROJECT)

    def has_schedule(self, name: str) -> bool:
        """Whether it is no schedule of something that is gone."""
        return name in self.schedules or not name.startswith(SCHEDULED)


def declared_in(manifest: Mapping[str, Any], declared: Declarations, project_dir: Path) -> Declared:
    """What the project has. Raises LakehouseError where it does not go together."""
    unread = unread_tables(manifest, declared, project_dir)
    ours = {check for table in declared.tables for check in _checks(table, (table.source, table.name) in unread)}
    jobs = frozenset({*_jobs(declared.sources), *_of_all_sources(manifest, project_dir)})
    started = {_load(table) for table in declared.tables if table.load.trigger == "sensor"} | (jobs & {BUILD})
    return Declared(
        frozenset(source.name for source in declared.sources),
        jobs,
        frozenset(ours | set(_tests(manifest))),
        frozenset(f"new_data_{job.partition('_')[2]}" for job in started),
        frozenset((node["schema"], node["alias"]) for node in manifest["nodes"].values() if "alias" in node),
        frozenset({HEALTH_SCHEDULE, *_schedules(declared, jobs), *_maintained(manifest)}),
    )


def _schedules(declared: Declarations, jobs: Iterable[str]) -> Iterator[str]:
    yield from (f"{_load(table)}_schedule" for table in declared.tables if table.load.trigger != "sensor")
    yield from (f"{job}_schedule" for job in jobs if job.startswith(("reconcile_", "verify_erasures_")))
    yield from (job for job in jobs if job.startswith("pin_"))


def _maintained(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Those of the groups in use."""
    for node in (*manifest["sources"].values(), *manifest["nodes"].values()):
        stores = node["resource_type"] == "source" or (
            node["resource_type"] in STORING and node["config"].get("materialized") not in NOT_STORED
        )
        stated = meta_of(node).get("maintenance") if stores else None
        if isinstance(stated, dict) and "schedule_group" in stated:
            yield f"maintain_{stated['schedule_group']}"


def _checks(table: RawTable, is_unread: bool) -> Iterator[tuple[str, str]]:
    """The checks that are no tests of dbt; those of lag are judged by the watch itself."""
    raw, mirror = ".".join(table.identifier), ".".join(table.mirror_identifier)
    yield from ((raw, name) for name in (IN_THE_CUT, "columns_as_declared"))
    yield from [(raw, "read_by_a_model")] if is_unread else []
    yield from [(raw, "reconciles_with_source")] if table.is_compared else []
    yield from [(raw, "erasures_hold")] if table.has_personal else []
    yield from [(mirror, "at_the_newest_cut")] if table.is_mirrored else []


def _jobs(sources: Iterable[Source]) -> Iterator[str]:
    for table in (table for source in sources for table in source.tables):
        yield _load(table)
        yield from [f"mirror_{table.source}"] if table.is_mirrored else []
        yield from [f"reconcile_{table.source}"] if table.is_compared else []
        yield from [f"verify_erasures_{table.source}"] if table.has_personal else []


def _load(table: RawTable) -> str:
    return f"load_{table.source}" if table.load.job == "shared" else f"load_{table.source}_{table.name}"


def _of_all_sources(manifest: Mapping[str, Any], project_dir: Path) -> Iterator[str]:
    yield from (f"pin_{kind}" for kind in project_pins(project_dir))
    models = (node for node in manifest["nodes"].values() if node["resource_type"] == "model")
    yield from [BUILD] if any(map(is_mart, models)) else []


def is_mart(node: Mapping[str, Any]) -> bool:
    """Whether BUILD makes it."""
    return MARTS in (node["schema"], *node.get("tags", ()))


def _tests(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each test with each table that it reads: Dagster shows it on one of them."""
    nodes = {**manifest["sources"], **manifest["nodes"]}
    for test in manifest["nodes"].values():
        if test["resource_type"] == "test":
            for node in (nodes[key] for key in test["depends_on"]["nodes"] if key in nodes):
                name = node["identifier"] if node["resource_type"] == "source" else node["alias"]
                yield f"{node['schema']}.{name}", test["name"]
