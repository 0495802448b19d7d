"""The dbt resource: runs dbt on the lake's Trino and writes artifacts to the home, not to the checkout."""

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

from lakehouse.declarations.dbt.manifest import dbt_environment, manifest_path
from lakehouse.settings import Settings
from orchestration.runs.partitions import DayRange
from orchestration.runs.processes.workers import RUN_VARIABLE

KEPT_FAILURES = 20


class Dbt(DbtCliResource):
    """The dbt command line, without two steps of the base class that cost seconds per run.

    `dbt --version` asks the network for the newest release. The adapter is opened to count rows, which Iceberg's
    snapshot summaries already hold.
    """

    @cached_property
    def _cli_version(self) -> Version:
        return Version(installed_version("dbt-core"))

    def _initialize_dbt_core_adapter(self, args: Any) -> Any:
        return None


def dbt_resource(settings: Settings) -> Dbt:
    """The dbt of this Python environment, independent of PATH."""
    return Dbt(
        project_dir=str(settings.dbt_project_dir),
        profiles_dir=str(settings.dbt_project_dir),
        dbt_executable=str(Path(sys.executable).with_name("dbt")),
    )


def run_environment(settings: Settings, days: DayRange | None, run_id: str) -> dict[str, str]:
    """The variables that profiles.yml and the on-run-start hook read; `--vars` would force a full parse."""
    return {
        **dbt_environment(settings),
        RUN_VARIABLE: run_id,  # identifies a dbt process that outlives its worker
        "LAKEHOUSE_DAY_FROM": days.first.isoformat() if days else "",
        "LAKEHOUSE_DAY_TO": days.last.isoformat() if days else "",
        "DBT_TARGET_PATH": str(manifest_path(settings).with_name("target")),
        "DBT_INDIRECT_SELECTION": "buildable",  # a load skips tests that also read marts
    }


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables while dbt starts: the child copies the environment of this process."""
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
    """Deletes the artifacts of this successful run, and those of all but the newest failed runs."""
    shutil.rmtree(target, ignore_errors=True)
    runs = sorted(target.parent.glob("*-*-*/dbt.log"), key=lambda log: log.stat().st_mtime, reverse=True)
    for log in runs[KEPT_FAILURES:]:
        shutil.rmtree(log.parent, ignore_errors=True)
