"""One table that cannot be read into parsed fails alone, by the command a user types."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.marks import slow
from tests.readers import BIN, Declared, Project, declared_as_is, project_of
from tests.world import make_world

pytestmark = pytest.mark.stack

TABLES = ("good", "known", "too_small", "other_type", "lacking", "named")
DDL = ";".join(f"CREATE TABLE {name} (id int PRIMARY KEY, v numeric(12,2), since time)" for name in TABLES)
RESERVED = """CREATE TABLE reserved ("group" int PRIMARY KEY, "order" text, "end" time, "odd "" name" text);
INSERT INTO reserved VALUES (1, 'o', '01:02:03', 'n')"""


def run(project: Project) -> subprocess.CompletedProcess[str]:
    """`lakehouse run load_<source>`."""
    prefix = f"LAKEHOUSE_SOURCES__{project.name.upper()}__"
    source = project.settings.sources[project.name]
    environment = {
        **os.environ,
        "LAKEHOUSE_PROJECT_DIR": str(project.settings.project_dir),
        f"{prefix}URL": source.url.get_secret_value(),
        f"{prefix}OWNER_URL": project.world.owner_url,
    }
    command = [str(BIN / "lakehouse"), "run", f"load_{project.name}"]
    return subprocess.run(
        command, env=environment, cwd=project.settings.project_dir, capture_output=True, text=True, timeout=540
    )


def build(project: Project) -> subprocess.CompletedProcess[str]:
    """`dbt build`."""
    return project.dbt("build")


@pytest.mark.parametrize("load", [slow(build), slow(run)])
def test_a_table_that_fails_keeps_no_other_from_its_views_and_the_run_says_which(
    settings: Settings, spark: Any, tmp_path: Path, load: Callable[[Project], subprocess.CompletedProcess[str]]
) -> None:
    """A value that does not fit, a type that would change values, a column that is not there, a name that is taken."""
    policies = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in TABLES}
    policies["reserved"] = RawPolicy(relation="public.reserved", key=("group",))
    world = make_world(settings, f"{DDL};{RESERVED}", policies)
    world.sql(
        "ALTER TABLE named ADD _valid_from text", *(f"INSERT INTO {t} VALUES (1, 12345.67, '24:00')" for t in TABLES)
    )
    declared = {name: declared_as_is(world, name) for name in TABLES}
    for name, columns in (
        ("too_small", {"id": "integer", "v": "numeric(4,2)"}),
        ("other_type", {"id": "integer", "v": "text", "since": "interval"}),
        ("lacking", {"id": "integer", "gone": "text"}),
    ):
        declared[name] = Declared(columns, declared[name].raw)
    hub = f"{world.source.name}_reserved"
    details = {f"{hub}_details": ["order", "end", 'odd " name']}
    as_is = declared_as_is(world, "reserved")
    declared["reserved"] = Declared(as_is.columns, as_is.raw, {"hub": hub, "satellites": details})
    with project_of(world, tmp_path) as project:
        project.declare(declared)
        world.ingest(spark)
        ran = load(project)
        assert ran.returncode != 0
        said = ran.stdout + ran.stderr
        for name in ("good", "known"):
            rows = project.rows(f"SELECT id, v, cast(since AS varchar) FROM {project.view(name)}")
            assert [[row[0], str(row[1]), row[2]] for row in rows] == [[1, "12345.67", "00:00:00.000000"]], said
        assert project.rows(
            f'SELECT hub."group", "order", "end", "odd "" name" FROM vault.sat_{hub}_details_v1'
            f" JOIN vault.hub_{hub} AS hub USING (hk_{hub})"
        ) == [[1, "o", 3_723_000_000, "n"]]
        named = {name for name in TABLES if f"{project.name}__{name}" in said or f".{name} " in said}
        assert {"too_small", "other_type", "lacking", "named"} <= named, said
