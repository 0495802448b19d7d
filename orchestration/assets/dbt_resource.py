"""dbt as Dagster runs it: against the lake's Trino, in the home rather than in the checkout, and without detours."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from dagster_dbt import DbtCliResource
from packaging.version import Version

from lakehouse.declarations.manifest import dbt_environment, manifest_path
from lakehouse.settings import Settings
from orchestration.runs.partitions import DayRange
from orchestration.runs.workers import RUN_VARIABLE

KEPT_FAILURES = 20


class Dbt(DbtCliResource):
    """The dbt command line.

    Two steps of the base class are left out, each costing seconds per run: `dbt --version` asks the network for the
    newest release, and the adapter handle serves counts that Iceberg's snapshot summaries give for nothing.
    """

    @cached_property
    def _cli_version(self) -> Version:
        return Version(installed_version("dbt-core"))

    def _initialize_dbt_core_adapter(self, args: Any) -> Any:
        return None


def dbt_resource(settings: Settings) -> Dbt:
    """dbt of this environment, whatever PATH says."""
    return Dbt(
        project_dir=str(settings.dbt_project_dir),
        profiles_dir=str(settings.dbt_project_dir),
        dbt_executable=str(Path(sys.executable).with_name("dbt")),
    )


def run_environment(settings: Settings, days: DayRange | None, run_id: str) -> dict[str, str]:
    """What profiles.yml and the on-run-start hook read; never `--vars`, which would parse the project again."""
    return {
        **dbt_environment(settings),
        RUN_VARIABLE: run_id,  # a dbt that has outlived its worker is found by it
        "LAKEHOUSE_DAY_FROM": days.first.isoformat() if days else "",
        "LAKEHOUSE_DAY_TO": days.last.isoformat() if days else "",
        "DBT_TARGET_PATH": str(manifest_path(settings).with_name("target")),
        "DBT_INDIRECT_SELECTION": "buildable",  # a load leaves out the tests of marts that look at its satellites too
    }


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables while dbt is started, which copies the process's environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def clean_up(target: Path) -> None:
    """dbt leaves megabytes per run: of this one, which has succeeded, nothing is kept, of failures the newest."""
    shutil.rmtree(target, ignore_errors=True)
    runs = sorted(target.parent.glob("*-*-*/dbt.log"), key=lambda log: log.stat().st_mtime, reverse=True)
    for log in runs[KEPT_FAILURES:]:
        shutil.rmtree(log.parent, ignore_errors=True)
