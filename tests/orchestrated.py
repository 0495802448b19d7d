"""A source of a test's own, in a project of its own, loaded by the commands a user types."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehouse.catalog.open import newest_data_snapshot, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from tests.fourth_source import MAINTENANCE, Table, declare, make_tables
from tests.world import World, make_world

BIN = Path(sys.executable).parent
SAMPLES = ("retail", "bank", "payroll")


@dataclass(frozen=True)
class Orchestrated:
    """The source, its tables, and the environment in which commands see it."""

    world: World
    tables: tuple[Table, ...]
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """The source's name."""
        return self.world.source.name

    @property
    def settings(self) -> Settings:
        """Settings of the stack."""
        return self.world.settings

    def command(self, *arguments: str, timeout: float = 600) -> str:
        """Runs a command of the environment; what it printed, or an AssertionError with it."""
        done = subprocess.run(
            [str(BIN / arguments[0]), *arguments[1:]],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment,
            cwd=self.environment["LAKEHOUSE_PROJECT_DIR"],
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def source_rows(self, table: Table) -> list[tuple[Any, ...]]:
        """The oracle: the table in Postgres."""
        columns = ", ".join(f"{ident(name)}{'::text' * (kind == 'uuid')}" for name, kind in table.columns)
        return self.world.rows(f"SELECT {columns} FROM {ident(table.name)} ORDER BY {ident(table.key)}")

    def lake_rows(self, table: Table) -> list[tuple[Any, ...]]:
        """The table as the parsed layer has it."""
        columns = ", ".join(ident(name) for name, _ in table.columns)
        view = f"parsed.{ident(f'current_{self.name}__{table.name}')}"
        return [tuple(row) for row in query(self.settings, f"SELECT {columns} FROM {view} ORDER BY {ident(table.key)}")]

    def count(self, schema: str, table: str) -> int:
        """Rows of a table of the lake."""
        return int(query(self.settings, f"SELECT count(*) FROM {schema}.{ident(table)}")[0][0])

    def counts(self) -> dict[str, int]:
        """Rows of all tables that a load fills."""
        found = {f"raw.{t.name}": self.count(f"raw_{self.name}", t.name) for t in self.tables}
        for t in self.tables:
            for schema, table in self._models(t):
                found[table] = self.count(schema, table)
        return found

    def snapshots(self) -> dict[str, int | None]:
        """Newest data snapshot of every table that dbt fills."""
        with closing(open_catalog(self.settings)) as catalog:
            facts = {m: newest_data_snapshot(catalog, *m) for t in self.tables for m in self._models(t)}
        return {".".join(model): fact.snapshot_id if fact else None for model, fact in facts.items()}

    def _models(self, table: Table) -> tuple[tuple[str, str], ...]:
        hub = f"{self.name}_{table.name}"
        return (
            ("parsed", f"parsed_{self.name}__{table.name}"),
            ("vault", f"hub_{hub}"),
            ("vault", f"sat_{hub}"),
        )


def make_orchestrated(
    settings: Settings, project: Path, seed: int, count: int = 2, maintenance: str = MAINTENANCE
) -> Orchestrated:
    """A database with tables of 500 rows, declared in a copy of the project that knows no other source."""
    tables = make_tables(seed, count)
    ddl = ";".join(f"{t.ddl()};{t.insert(1, 500)}" for t in tables)
    policies = {t.name: RawPolicy(relation=f"public.{t.name}", key=(t.key,)) for t in tables}
    world = make_world(settings, ddl, policies)
    copy_project(settings, project)
    declare(project / "dbt_project", world.source.name, tables, maintenance)
    source = world.settings.sources[world.source.name]
    prefix = f"LAKEHOUSE_SOURCES__{world.source.name.upper()}__"
    environment = {
        **os.environ,
        "LAKEHOUSE_PROJECT_DIR": str(project),
        "DAGSTER_HOME": str(settings.dagster_home),
        f"{prefix}URL": source.url.get_secret_value(),
        f"{prefix}OWNER_URL": world.owner_url,
    }
    return Orchestrated(world, tables, environment)


def copy_project(settings: Settings, project: Path) -> None:
    """The dbt project without the samples."""
    shutil.copytree(settings.dbt_project_dir, project / "dbt_project")
    shutil.copy(settings.project_dir / "workspace.yaml", project)
    models = project / "dbt_project" / "models"
    for sample in SAMPLES:
        (models / "sources" / f"{sample}.yml").unlink()
        for folder in models.glob(f"*/{sample}"):
            shutil.rmtree(folder)
    shutil.rmtree(models / "marts")
    shutil.rmtree(models / "business")
