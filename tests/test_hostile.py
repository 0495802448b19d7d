"""A database in which everything tries to be more than text goes the whole way: the lake is what the source is, and no
output of any command does more than being read."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from ingestion.verify import reconcile_raw
from ingestion.verify.compare import TableComparison
from lakehouse.declarations.policies import RawPolicy, split_relation
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings
from lakehouse.text.sql import columns, ident, literal, relation, spark_ident, spark_literal
from tests.hostile import effects, names
from tests.hostile_database import Hostile, create, tables
from tests.orchestrated import BIN, copy_project
from tests.repairing import spoil
from tests.unit.test_scaffold_hostile import rendered
from tests.world import World, declared_source, make_world, set_up

pytestmark = pytest.mark.stack
KEPT = {"kept": RawPolicy(relation="public.kept", key=("id",))}


def hostile_world(settings: Settings, made: list[Hostile]) -> World:
    """Its database, prepared, with each column under its own name in the lake."""
    world = make_world(settings, "CREATE TABLE kept (id int PRIMARY KEY)", KEPT)
    with psycopg.connect(world.owner_url, autocommit=True) as owner:
        create(owner, made)
    world = replace(world, source=declared_source(world.source.name, {t.lake: t.raw() for t in made} | KEPT))
    set_up(world)
    return world


def rows_of(world: World, table: Hostile) -> list[tuple[Any, ...]]:
    """The oracle: the source's rows as text."""
    listed = ", ".join(f"{ident(name)}::text" for name, _ in table.columns)
    return sorted(world.rows(f"SELECT {listed} FROM {relation(table.schema, table.name)}"), key=str)  # type: ignore[arg-type]


def landed(world: World, table: Hostile) -> list[tuple[Any, ...]]:
    """What the raw layer says is there now."""
    state = world.current(table.lake).values()
    return sorted((tuple(row[name] for name, _ in table.columns) for row in state), key=str)


def compared(world: World, spark: Any, table: Hostile, **how: Any) -> TableComparison:
    wanted = f"{world.source.name}.{table.lake}"
    [found] = reconcile_raw(world.settings, world.declarations, [wanted], spark=spark, **how)
    return found


def changed(world: World, table: Hostile, pool: list[str]) -> Hostile:
    """After updates, a key change, inserts, a delete, a label and a column under other names."""
    place, (first, second, *_) = relation(table.schema, table.name), (name for name, _ in table.columns)
    last, kind = table.columns[-1]
    other = next(name for name in pool if name.casefold() not in {n.casefold() for n, _ in table.columns})
    enum = f"{ident(table.schema)}.{ident(table.labels[0])}"
    where = f"{ident(first)} = {literal(table.rows[0][0] or '')}"
    with psycopg.connect(world.owner_url, autocommit=True) as owner:
        for statement in (
            f"UPDATE {place} SET {ident(second)} = {literal(pool[0])} WHERE {where}",
            f"UPDATE {place} SET {ident(first)} = {literal(pool[1] + 'x')} WHERE {where}",
            f"DELETE FROM {place} WHERE {ident(first)} = {literal(table.rows[1][0] or '')}",
            f"ALTER TABLE {place} RENAME COLUMN {ident(last)} TO {ident(other)}",
            f"ALTER TYPE {enum} ADD VALUE {literal(pool[2])}",
            f"UPDATE {place} SET {ident(second)} = {literal(pool[3])}",
        ):
            owner.execute(statement.encode())
        added = [pool[4 + n] if k != "enum" else pool[2] for n, (_, k) in enumerate(table.columns)]
        owner.execute(table.insert(tuple(added)).encode())
    return replace(table, columns=(*table.columns[:-1], (other, kind)))


def test_spark_reads_names_and_values_as_they_are(settings: Settings, spark: Any) -> None:
    """It put values of the environment and of its settings in the place of `${env:…}`, within quotes too."""
    pool = names(3, 400)
    columns = [f"{spark_literal(value)} AS {spark_ident(name)}" for name, value in zip(pool, pool[::-1], strict=True)]
    [row] = spark.sql(f"SELECT {', '.join(columns)}").collect()
    assert list(row) == pool[::-1] and row.__fields__ == pool
    spark.conf.set("spark.sql.variable.substitute", "true")
    try:
        [row] = spark.sql("SELECT '${spark.app.name}'").collect()
        assert row[0] != "${spark.app.name}", "this is what it does by itself"
    finally:
        spark.conf.set("spark.sql.variable.substitute", "false")
    [row] = spark.sql("SELECT '${spark.app.name}'").collect()
    assert row[0] == "${spark.app.name}"


def test_trino_reads_names_and_values_as_they_are(settings: Settings) -> None:
    pool = names(3, 400)
    asked = ", ".join(f"{literal(value)} AS {ident(name)}" for name, value in zip(pool, pool[::-1], strict=True))
    cursor = connect(settings).cursor()
    cursor.execute(f"SELECT {asked}")
    assert cursor.fetchall() == [pool[::-1]]
    assert [column[0] for column in cursor.description or []] == pool


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(31, 35))
def test_hostile_tables_land_and_are_compared_and_repaired(
    settings: Settings, spark: Any, large: None, seed: int
) -> None:
    goes_the_way(settings, spark, seed, 2)


def goes_the_way(settings: Settings, spark: Any, seed: int, count: int) -> None:
    """Snapshot, changes, comparison, examples of what differs, repair."""
    made, pool = tables(seed, count), names(seed + 1, 400)[100:]
    world = hostile_world(settings, made)
    world.ingest(spark)
    for table in made:
        assert landed(world, table) == rows_of(world, table), table
    made = [changed(world, table, pool[20 * n :]) for n, table in enumerate(made)]
    world.ingest(spark)
    for table in made:
        assert landed(world, table) == rows_of(world, table), table
        assert compared(world, spark, table).equal
        spoil(world, table.lake, partial(with_another, table.columns[2][0]))
        found = compared(world, spark, table)
        assert found.differing and found.examples
        assert compared(world, spark, table, repair=True).repaired and compared(world, spark, table).equal
        assert landed(world, table) == rows_of(world, table), table
    assert world.rows("SELECT count(*) FROM kept") == [(0,)]


def with_another(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with other values in a column."""
    return [row | {column: f"{row[column]}\x1b[2J{{{{"} for row in rows]


@dataclass(frozen=True)
class Commands:
    """The commands a user types, in a project of the test's own; whatever they print is looked at."""

    environment: dict[str, str]
    project: Path

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """What a command printed as its result."""
        done = subprocess.run(
            [str(BIN / "lakehouse"), *arguments], capture_output=True, text=True, timeout=600, env=self.environment,
            cwd=self.project,
        )  # fmt: skip
        assert done.returncode == status, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert not list(effects(done.stdout + done.stderr)), arguments
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_output_of_any_command_is_more_than_text(settings: Settings, tmp_path: Path) -> None:
    """Scaffold, prepare, ingest, dbt, status, show, sql, reconcile, erase, maintain and backup of hostile tables."""
    world = make_world(settings, "CREATE TABLE kept (id int PRIMARY KEY)", KEPT)
    made, name = tables(61, 2), world.source.name
    with psycopg.connect(world.owner_url, autocommit=True) as owner:
        owner.execute("DROP PUBLICATION lakehouse")
        create(owner, made)
    run = commands_of(world, tmp_path)
    schemas = [f"--schema={table.schema}" for table in made]
    assert run("scaffold", "--propose", name, *schemas).startswith("# Proposed")
    run("scaffold", name, *schemas)
    declared = tmp_path / "dbt_project" / "models" / "sources" / f"{name}.yml"
    called = lake_names(declared)
    declared.write_text(edited(declared.read_text()))
    run("scaffold", name)
    run("scaffold", name, "--check")
    run("prepare", name, "--check", status=1)  # it is still to do
    run("prepare", name)
    run("ingest", "--once", name)
    for command in (("status",), ("status", "--json"), ("show",), ("show", "--json")):
        run(*command)
    run("run", f"load_{name}")
    aliases = {table: entry["config"]["meta"]["raw"].get("alias", {}) for table, entry in entries(declared).items()}
    for table in made:
        lake = called[table.schema, table.name]
        listed = [aliases[lake].get(column, column) for column, _ in table.columns]
        asked = f"SELECT {columns(listed)} FROM parsed.{ident(f'current_{name}__{lake}')}"
        answer = run("sql", "--role", "privacy", "--json", asked).splitlines()  # all but the key is personal
        assert sorted((tuple(json.loads(line).values()) for line in answer), key=str) == rows_of(world, table)
        run("sql", "--role", "privacy", asked)
    run("reconcile", name)
    run("reconcile", "--views", name)
    first = made[0]
    subject = [f"{column}={value}" for column, value in zip(first.key, first.rows[0], strict=False)]
    run("erase", "--dry-run", "--", f"{name}.{called[first.schema, first.name]}", *subject)
    run("maintain", "status")
    run("backup", str(tmp_path / "backup"))
    spoil(world, called[first.schema, first.name], lambda rows: rows[1:])
    run("reconcile", name, "--json", status=1)
    run("sql", f"SELECT {literal(first.rows[0][0] or '')} AS {ident(first.name)}, nothing", status=1)
    with psycopg.connect(world.owner_url, autocommit=True) as owner:
        for table in made:
            place, column = relation(table.schema, table.name), ident(table.columns[-1][0])
            owner.execute(f"ALTER TABLE {place} DROP COLUMN {column}".encode())
            owner.execute(f"DELETE FROM {place}".encode())
    run("ingest", "--once", name, status=1)
    run("status")
    assert world.rows("SELECT count(*) FROM kept") == [(0,)]


def commands_of(world: World, project: Path) -> Commands:
    """The commands, on the world's source alone."""
    copy_project(world.settings, project)
    prefix = f"LAKEHOUSE_SOURCES__{world.source.name.upper()}__"
    url = world.settings.sources[world.source.name].url.get_secret_value()
    environment = {
        **os.environ,
        "LAKEHOUSE_PROJECT_DIR": str(project),
        "DAGSTER_HOME": str(world.settings.dagster_home),
        f"{prefix}URL": url,
        f"{prefix}OWNER_URL": world.owner_url,
    }
    return Commands(environment, project)


def entries(declared: Path) -> dict[str, Any]:
    """The tables of a declaration."""
    return {table["name"]: table for table in yaml.safe_load(declared.read_text())["sources"][0]["tables"]}


def lake_names(declared: Path) -> dict[tuple[str, str], str]:
    """What the scaffold has called each relation."""
    relations = {
        name: rendered(entry["config"]["meta"]["raw"]["relation"]) for name, entry in entries(declared).items()
    }
    return {split_relation(relation): name for name, relation in relations.items()}


def edited(text: str) -> str:
    """The columns of half the tables land under their own names; all but the key is personal."""
    lines = text.splitlines(keepends=True)
    raw = [number for number, line in enumerate(lines) if line.strip().startswith("raw: {relation")]
    for number in raw[::2]:
        lines[number] = re.sub(r", alias: \{.*\}(?=\}\n)", "", lines[number])
    return re.sub(r"_details: (\[.*\])\n", r"_details: {columns: \1, personal: true}\n", "".join(lines))
