"""Copies of retail under other names, which stay idle: a project with many models, loaded as far as the worker sees.

Raw tables are ingested. What the copies' models would make is entered in the catalog with the files of the originals,
and Dagster is told that it was loaded and tested: to load and test a thousand models would take an hour, and nothing
reads or writes the copies.
"""

import re
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import yaml

from benchmarks.processes import lakehouse
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from lakehouse_samples.loading import SAMPLES
from orchestration.worker.dbt.warm_dbt import NodeResult
from orchestration.worker.loop import open_worker
from orchestration.worker.reports.events import report_tables, report_tests

SOURCE, DAYS = "retail", "control_snap"
OTHERS = ("dim_user", "dim_account")  # marts of other sources
ENTER = (
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
    " SELECT catalog_name, table_namespace, copy, metadata_location, iceberg_type FROM iceberg_tables"
    " JOIN unnest(%s::text[], %s::text[]) AS names (original, copy) ON table_name = original"
)


def add_copies(settings: Settings, copies: int) -> None:
    """Adds so many copies of retail to the project of these settings, its database and the lake."""
    models = settings.dbt_project_dir / "models"
    originals = _originals(models)
    names = [file.stem for file in originals]
    for number in range(1, copies + 1):
        _write(models, originals, number)
    _declare(models / "sources" / f"{SOURCE}.yml", copies)
    _create(settings, copies)
    for command in (("prepare", SOURCE), ("ingest", "--once", SOURCE)):
        lakehouse(*command)
    with closing(connect_catalog(settings)) as catalog:
        for number in range(1, copies + 1):
            catalog.execute(ENTER, (names, [_named(name, number) for name in names]))
    _tell(settings)


def _originals(models: Path) -> list[Path]:
    """The models of retail, without those that are built anew each day, and what is made of them."""
    found = [*models.glob(f"*/{SOURCE}/*.sql"), *models.glob("marts/*.sql")]
    without = {DAYS, *OTHERS, *(file.stem for file in found if "cdc_vault.pit(" in file.read_text())}
    while more := {file.stem for file in found if without & set(re.findall(r"\w+", file.read_text()))} - without:
        without |= more
    return [file for file in found if file.stem not in without]


def _named(name: str, number: int) -> str:
    """The name of a copy; macros add `_v1` to a satellite's."""
    satellite = name.removesuffix("_v1")
    return f"{satellite}_{number}{name.removeprefix(satellite)}"


def _write(models: Path, originals: list[Path], number: int) -> None:
    """One copy: its models, with their tests."""
    names = re.compile(rf"\b({'|'.join(file.stem for file in originals)})\b")
    for file in (version for sql in originals for version in (sql, sql.with_suffix(".yml")) if version.exists()):
        text = names.sub(lambda found: _named(found[0], number), file.read_text())
        text = re.sub(rf"('{SOURCE}', '\w+)'", rf"\1_{number}'", text)
        text = re.sub(r"(table_name: \w+)", rf"\1_{number}", text)
        folder = models / file.relative_to(models).parent / f"copy_{number}"
        folder.mkdir(exist_ok=True)
        (folder / f"{_named(file.stem, number)}{file.suffix}").write_text(text)


def _declare(declaration: Path, copies: int) -> None:
    """Their raw tables, which need no vault of their own: their models are there."""
    declared = yaml.safe_load(declaration.read_text())
    tables: list[dict[str, Any]] = declared["sources"][0]["tables"]
    for table in [table for table in tables if table["name"] in SAMPLES[SOURCE]]:
        meta = {key: value for key, value in table["config"]["meta"].items() if key != "vault"}
        for number in range(1, copies + 1):
            raw = {**meta["raw"], "relation": f"{meta['raw']['relation']}_{number}"}
            tables.append({**table, "name": f"{table['name']}_{number}", "config": {"meta": {**meta, "raw": raw}}})
    declaration.write_text(yaml.safe_dump(declared, sort_keys=False))


def _create(settings: Settings, copies: int) -> None:
    """Their tables in the source."""
    owner = settings.source(SOURCE).owner_url
    assert owner is not None
    with psycopg.connect(owner.get_secret_value(), autocommit=True) as source:
        for table in SAMPLES[SOURCE]:
            (key,) = source.execute(
                "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]"
                " WHERE indrelid = %s::regclass AND indisprimary",
                (table,),
            ).fetchone() or ("",)
            for number in range(1, copies + 1):
                copy = ident(f"{table}_{number}")
                source.execute(f"CREATE TABLE {copy} AS TABLE {ident(table)}".encode())
                source.execute(f"ALTER TABLE {copy} ADD PRIMARY KEY ({ident(key)})".encode())


def _tell(settings: Settings) -> None:
    """Tells Dagster that all is loaded as it is now, and that each test has passed."""
    with open_worker(settings, Event()) as (worker, _, _):
        worker.read_project()
        project = worker._project
        for task in project.tasks:
            tables = project.graph.tables_of(task)
            newest = worker._lake.newest(sorted({*tables, *task.watched}))
            facts = {table: newest[".".join(table)] for table in tables if ".".join(table) in newest}
            loaded = {name: newest[name].snapshot_id for name in map(".".join, task.watched) if name in newest}
            by_day = () if task.marts else facts.keys() - set(task.tables)
            report_tables(worker._instance, task.job, facts, {}, loaded, by_day)
        passed = [NodeResult(test, "pass", 0.0, 0, "") for test in project.checks]
        report_tests(worker._instance, project.checks, passed)
