"""Keys that Postgres calls equal and prints differently: exact in raw and parsed, one key in the vault."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.clusters import cluster, world_in
from tests.marks import slow
from tests.readers import Declared, Project, columns_in_source, project_of
from tests.repairing import compared
from tests.world import World, make_world

pytestmark = pytest.mark.stack

# name → type of the key, type of the reference, a value, and another that is equal
EQUAL = {
    "amount": ("numeric", "numeric(10,3)", "1.50", "1.5"),
    "scaled": ("numeric(10,2)", "numeric", "1.50", "1.5"),
    "level": ("double precision", "double precision", "'0'", "'-0'"),
    "code": ("character(5)", "character(8)", "'ab'", "'ab'"),
    "day": ("timestamp", "date", "'2026-01-02'", "'2026-01-02'"),
    "share": ("double precision", "numeric", "'0.1'", "0.10"),
    "label": ("character(5)", "text", "'ab'", "'ab '"),
}
# Types that are no key of the vault, or of a library; in raw and parsed they are exact like any other.
MORE = {
    "span": ("interval", "'1 day'", "'24 hours'"), "doc": ("jsonb", "'1.0'", "'1.00'"),
    "list": ("numeric[]", "'{1.0}'", "'{1.00}'"), "pair": ("s.pair", "'(1.0,a)'", "'(1.00,a)'"),
    "dear": ("s.dear", "1.0", "1.00"), "loose": ("bpchar", "'a'", "'a '"), "half": ("real", "'0'", "'-0'"),
    "part": ("numrange", "'[1.0,2)'", "'[1.00,2)'"),
}  # fmt: skip
OF_15 = {"word": ('text COLLATE s."any case"', "'a'", "'A'"), "folded": ("citext", "'Ab'", "'aB'")}
SETUP = ("CREATE SCHEMA s", "CREATE TYPE s.pair AS (n numeric, t text)", "CREATE DOMAIN s.dear AS numeric")
SETUP_15 = (
    "CREATE EXTENSION citext",
    "CREATE COLLATION s.\"any case\" (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)


@pytest.mark.parametrize("version", ["18", slow("15")])
def test_an_update_to_an_equal_key_is_a_delete_and_an_insert(settings: Settings, spark: Any, version: str) -> None:
    """Postgres compares old and new key by their bytes; the lake would keep both rows if it did not say so."""
    keys = {name: (EQUAL[name][0], *EQUAL[name][2:]) for name in ("amount", "scaled", "level")} | MORE
    keys |= OF_15 if version == "15" else {}
    ddl = [*SETUP, *(SETUP_15 if version == "15" else ())]
    ddl += [f"CREATE TABLE {name} (k {kind} PRIMARY KEY, v int)" for name, (kind, _, _) in keys.items()]
    policies = {name: RawPolicy(relation=f"public.{name}", key=("k",)) for name in keys}
    with cluster(version) as made:
        world = world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", ";".join(ddl), policies)
        for name, (_, one, _) in keys.items():
            world.sql(f"INSERT INTO {name} VALUES ({one}, 1)")
        world.ingest(spark)
        for name, (kind, _, other) in keys.items():
            assert world.rows(f"SELECT k = {other}::{kind} FROM {name}") == [(True,)], f"{name}: Postgres says so"
            world.sql(f"UPDATE {name} SET k = {other}", f"UPDATE {name} SET v = 2")
        world.ingest(spark)
        for name in keys:
            found = compared(world, spark, name)
            assert found.equal and found.lake_rows == 1, f"{name}: {found.examples}"
            events = sorted(world.raw(name), key=lambda row: (row["_commit_lsn"], row["_seq"]))
            expected = ["r", "u", "u"] if name == "scaled" else ["r", "d", "c", "u"]
            assert [event["_op"] for event in events] == expected, name


@pytest.mark.slow
def test_equal_keys_are_one_key_of_the_vault_and_references_find_them(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """Each spelling had a hash key of its own: two rows in a hub, and references that led nowhere."""
    ddl = []
    for name, (kind, reference, _, _) in EQUAL.items():
        ddl.append(f"CREATE TABLE {name} (k {kind} PRIMARY KEY, v int)")
        ddl.append(f"CREATE TABLE of_{name} (id int PRIMARY KEY, k {reference} REFERENCES {name})")
    tables = [table for name in EQUAL for table in (name, f"of_{name}")]
    key = {table: "id" if table.startswith("of_") else "k" for table in tables}
    policies = {table: RawPolicy(relation=f"public.{table}", key=(key[table],)) for table in tables}
    world = make_world(settings, "; ".join(ddl), policies)
    for name, (_, _, one, other) in EQUAL.items():
        world.sql(f"INSERT INTO {name} VALUES ({one}, 1)", f"INSERT INTO of_{name} VALUES (1, {other})")
    world.ingest(spark)
    with project_of(world, tmp_path) as project:
        project.declare({table: declared(world, table) for table in tables})
        project.load("build")
        for name, (_, _, _, other) in EQUAL.items():
            world.sql(f"UPDATE {name} SET k = {other}, v = 2")
        world.ingest(spark)
        project.load("build")
        for name in EQUAL:
            assert_one_key(project, name)


def declared(world: World, table: str) -> Declared:
    """A thing, or something that refers to it."""
    name = table.removeprefix("of_")
    vault: dict[str, Any] = {"hub": {"name": name}, "satellites": {f"{name}_says": ["v"]}}
    if table != name:
        vault = {"hub": {"name": table}, "references": {name: "k"}, "links": {f"{table}_it": {"to": [name]}}}
    raw = {"relation": f"public.{table}", "key": list(world.source.table(table).key)}
    return Declared(columns_in_source(world, table), raw, vault)


def assert_one_key(project: Project, name: str) -> None:
    assert project.rows(f"SELECT count(*) FROM vault.hub_{name}") == [[1]], name
    assert project.rows(f"SELECT v, is_deleted FROM vault.sat_{name}_says_v1 WHERE is_current") == [[2, False]], name
    joined = f"FROM vault.hub_{name} JOIN vault.link_of_{name}_it USING (hk_{name})"
    assert project.rows(f"SELECT count(*) {joined}") == [[1]], f"{name}: the reference finds its key"
    assert project.rows(f"SELECT v FROM {project.view(name)}") == [[2]], name
