"""A source of a test's own with its models, loaded by dbt alone: what a reader of the lake sees."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from ingestion.sources.postgres.setup import prepare
from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from scaffold import apply, models_of, plan
from scaffold.propose.database import COLUMNS
from scaffold.text import flow
from tests.orchestrated import copy_project
from tests.world import World, declared_source

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Declared:
    """A table as its declaration has it: columns with their types in Postgres, and `config.meta.raw`."""

    columns: Mapping[str, str]
    raw: Mapping[str, Any]
    vault: Mapping[str, Any] | None = None

    def text(self, name: str) -> str:
        """Its entry below `tables:`, as the scaffold would write it: a test of how dbt reads that."""
        return f"      - {flow({'name': name, 'config': {'meta': self.meta}, 'columns': self._listed()})}\n"

    def node(self, source: str, name: str) -> dict[str, Any]:
        """What dbt's manifest should have of it."""
        return {
            "source_name": source, "name": name, "schema": f"raw_{source}", "config": {"meta": self.meta},
            "original_file_path": f"models/sources/{source}.yml", "columns": {c["name"]: c for c in self._listed()},
        }  # fmt: skip

    @property
    def meta(self) -> dict[str, Any]:
        """Its `config.meta`."""
        return {"raw": self.raw, **({"vault": self.vault} if self.vault else {})}

    def _listed(self) -> list[dict[str, str]]:
        return [{"name": column, "data_type": kind} for column, kind in self.columns.items()]


@dataclass(frozen=True)
class Project:
    """The dbt project of one source."""

    world: World
    settings: Settings

    @property
    def name(self) -> str:
        """The source."""
        return self.world.source.name

    def declare(self, tables: Mapping[str, Declared]) -> None:
        """Writes the declaration and the models that the scaffold makes of it."""
        head = f"sources:\n  - name: {self.name}\n    schema: raw_{self.name}\n    tables:\n"
        text = head + "".join(table.text(name) for name, table in tables.items())
        (self.settings.dbt_project_dir / f"models/sources/{self.name}.yml").write_text(text)
        nodes = {name: table.node(self.name, name) for name, table in tables.items()}
        declared = declarations_from({"sources": nodes}, self.settings.dbt_project_dir)
        apply(plan(self.settings.dbt_project_dir, self.name, models_of(declared, self.name)))

    def dbt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs dbt on the source's models."""
        server, project = dbt_environment(self.settings), self.settings.dbt_project_dir
        place = {"DBT_TARGET_PATH": str(project / "target"), "DBT_LOG_PATH": str(project / "logs")}
        select = ["--no-use-colors", "--select", f"path:models/*/{self.name}"]
        return subprocess.run(
            [str(BIN / "dbt"), *arguments, *select],
            cwd=project, env=os.environ | place | server, capture_output=True, text=True,
        )  # fmt: skip

    def load(self, *arguments: str) -> None:
        """`dbt run`, or an AssertionError with what it said."""
        done = self.dbt(*(arguments or ("run",)))
        assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-80:])

    def rows(self, sql: str) -> list[list[Any]]:
        """The lake's answer."""
        return query(self.settings, sql)

    def view(self, table: str) -> str:
        """The current view of a table."""
        return f"parsed.{ident(f'current_{self.name}__{table}')}"

    def drop(self) -> None:
        """Drops what dbt made of the source."""
        found = self.rows(
            "select distinct table_schema, table_name, table_type from lake.information_schema.tables"
            f" where table_schema in ('parsed', 'vault') and table_name like '%{self.name}%'"
        )
        for schema, name, kind in found:
            self.rows(f"drop {'view' if kind == 'VIEW' else 'table'} if exists {schema}.{ident(name)}")


@contextmanager
def project_of(world: World, place: Path) -> Iterator[Project]:
    """A copy of the project without the samples; what it makes in the lake goes with it."""
    copy_project(world.settings, place)
    project = Project(world, world.settings.model_copy(update={"project_dir": place}))
    try:
        yield project
    finally:
        project.drop()


def prepared(world: World, tables: Mapping[str, RawPolicy]) -> World:
    """The world with these tables declared, which were made after it."""
    source = declared_source(world.source.name, dict(tables))
    prepare(world.settings, source)
    return replace(world, source=source)


def columns_in_source(world: World, table: str) -> dict[str, str]:
    """Name and type of each column as `lakehouse scaffold` proposes them: a domain as its base type."""
    with psycopg.connect(world.owner_url) as connection:
        oid = f"'public.{ident(table)}'::regclass::oid::int"
        return {name: kind for name, kind, _ in connection.execute(COLUMNS.replace("%s", oid)).fetchall()}


def declared_as_is(world: World, table: str) -> Declared:
    """The declaration of a table of the world, without aliases."""
    policy = world.source.table(table).raw
    return Declared(columns_in_source(world, table), policy.model_dump(exclude_defaults=True))
