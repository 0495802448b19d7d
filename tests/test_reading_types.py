"""Every type, as a value and as a key, under names of every kind: each cell of the current view is the source's."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from scaffold.types import reader_type
from tests.readers import Project, columns_in_source, declared_as_is, prepared, project_of
from tests.type_values import SETUP, VALUES, exact
from tests.world import World, make_world

pytestmark = pytest.mark.stack

NAMES = (
    "plain", "two words", " lead and trail ", "UPPER", "Žluť", "e\u0301", "日本", "🐎", "İ", "do.t", 'dou"ble',
    '"', "sin'gle", "back\\slash", "`tick`", "per%cent", "%s", "%(x)s", "{{ brace }}", "{% tag %}",
    "{# hash #}", "{", "}}", "[x]", "$dollar", "1digit", "@at", "a;b", "a,b", "a--b", "/*c*/", ":colon",
    "# hash", "new\nline", "tab\t", "\u00a0", "?", "-", "null", "select", "order", "user", "table", "position",
    "kind", "born", "nth", "known", "landed", "arrived", "life", "dead",
)  # fmt: skip
"""Characters that some language on the way reads, words that SQL reserves, and names that the models' SQL has."""
# What a cell is, in terms that both print alike: by type in the view, SQL for Postgres and SQL for Trino.
ORACLE = {
    "boolean": ("{}", "{}"), "integer": ("{}", "{}"), "bigint": ("{}::text::bigint", "{}"),
    "real": ("{}::float8", "cast({} as double)"), "double": ("{}", "{}"), "decimal": ("nullif({}, 'NaN')", "{}"),
    "date": ("to_char({}, 'YYYY-MM-DD')", "cast({} as varchar)"),
    "timestamp(6)": ("to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')", "cast({} as varchar)"),
    "timestamp(6) with time zone": (
        "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US UTC')", "cast(at_timezone({}, 'UTC') as varchar)"
    ),
    "time(6)": ("to_char(CASE WHEN {0} = '24:00' THEN '00:00' ELSE {0} END, 'HH24:MI:SS.US')", "cast({} as varchar)"),
    "varbinary": ("encode({}, 'hex')", "lower(to_hex({}))"),
    "varchar": ("CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END", "{}"),
}  # fmt: skip
NO_KEYS = {
    "xid", "cid", "json", "jsonpath", "point", "lseg", "path", "box", "polygon", "line", "circle", "txid_snapshot",
    "pg_snapshot",
}  # fmt: skip
"""Types without an order, which Postgres lets into no key."""
KEYS = {kind: [v.replace("1000000", "1000") for v in values] for kind, values in VALUES.items() if kind not in NO_KEYS}
ROWS = max(map(len, VALUES.values()))
PER_KEY = 30  # Postgres has 32
LONG = "repeat(md5({}::text), 200)"


def named(kinds: Iterable[str]) -> dict[str, str]:
    """Type → the name of its column; each name is in use where there are as many types."""
    times = itertools.count()
    return {kind: NAMES[n % len(NAMES)] + "_" * (n // len(NAMES)) for kind, n in zip(kinds, times, strict=False)}


def groups() -> dict[str, dict[str, str]]:
    """Table → type → name of the column, for the tables of keys."""
    kinds = sorted(KEYS, key=lambda kind: (len(kind), kind))
    parts = [kinds[first : first + PER_KEY] for first in range(0, len(kinds), PER_KEY)]
    return {f"key_{n}": named(part) for n, part in enumerate(parts)}


def value_of(values: Mapping[str, list[str]], kind: str, n: int) -> str:
    return f"({values[kind][n % len(values[kind])]})::{kind}"


def made_world(settings: Settings) -> World:
    """A table with a column of each type, and tables whose keys are of all types that a key can be of."""
    tables = {"known": RawPolicy(relation="public.known", key=("n",), on_unrepresentable="null")}
    world = make_world(settings, ";".join([*SETUP, "CREATE TABLE known (n int PRIMARY KEY)"]), tables)
    for name, columns in groups().items():
        listed_columns = ", ".join(f"{ident(column)} {kind}" for kind, column in columns.items())
        keys = ", ".join(map(ident, columns.values()))
        world.sql(
            f"CREATE TABLE {name} (n int, {listed_columns}, long text, PRIMARY KEY (n, {keys}))",
            f"ALTER TABLE {name} ALTER long SET STORAGE EXTERNAL",
        )
        tables[name] = RawPolicy(relation=f"public.{name}", key=("n", *columns.values()), on_unrepresentable="null")
    world.sql("ALTER TABLE known " + ", ".join(f"ADD {ident(c)} {kind}" for kind, c in named(VALUES).items()))
    return prepared(world, tables)


def fill(world: World, first: int) -> None:
    """Rows of all tables; row n has the n-th value of each type."""
    for n in range(first, first + ROWS):
        cells = ", ".join(value_of(VALUES, kind, n) if n % ROWS < len(VALUES[kind]) else "NULL" for kind in VALUES)
        world.sql(f"INSERT INTO known VALUES ({n}, {cells})")
        for name, columns in groups().items():
            cells = ", ".join(value_of(KEYS, kind, n) for kind in columns)
            world.sql(f"INSERT INTO {name} VALUES ({n}, {cells}, {LONG.format(n)})")


def change(world: World, first: int, by: int) -> None:
    """Each row gets the values of the one `by` after it, in a key without its long column being touched."""
    for n in range(first, first + ROWS, 2):
        cells = ", ".join(f"{ident(c)} = {value_of(VALUES, kind, n + by)}" for kind, c in named(VALUES).items())
        world.sql(f"UPDATE known SET {cells} WHERE n = {n}", f"UPDATE known SET n = {n + 5000} WHERE n = {n + 1}")
        for name, columns in groups().items():
            cells = ", ".join(f"{ident(c)} = {value_of(KEYS, kind, n + by)}" for kind, c in columns.items())
            world.sql(f"UPDATE {name} SET {cells} WHERE n = {n}")


def assert_as_in_the_source(project: Project, table: str) -> None:
    """Every cell of the current view, in the order of `n`."""
    columns = columns_in_source(project.world, table)
    pairs = [oracle(kind) for kind in columns.values()]
    here = ", ".join(pair[0].format(ident(name)) for name, pair in zip(columns, pairs, strict=True))
    there = ", ".join(pair[1].format(ident(name.lower())) for name, pair in zip(columns, pairs, strict=True))
    source = project.world.rows(f"SELECT {here} FROM {ident(table)} ORDER BY n")
    lake = project.rows(f"SELECT {there} FROM {project.view(table)} ORDER BY n")
    assert len(lake) == len(source) > 0
    wrong = {}
    for index, (name, kind) in enumerate(columns.items()):
        pairs_of_cells = [
            (exact(found[index]), exact(wanted[index])) for found, wanted in zip(lake, source, strict=True)
        ]
        if differing := [pair for pair in pairs_of_cells if pair[0] != pair[1]]:
            wrong[name, kind] = differing[0]
    assert not wrong, f"{table}: {wrong}"


def oracle(kind: str) -> tuple[str, str]:
    shown = reader_type(kind)
    return ORACLE["decimal" if shown.startswith("decimal") else shown]


@pytest.mark.slow
def test_every_type_as_value_and_as_key_under_every_kind_of_name_reads_as_the_source_has_it(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """By the snapshot, by inserts, by updates of values and by updates of keys, in the same load and in a later one."""
    world = made_world(settings)
    fill(world, 0)
    world.ingest(spark)
    fill(world, 1000)
    change(world, 1000, by=1)
    change(world, 1000, by=2)
    world.ingest(spark)
    with project_of(world, tmp_path) as project:
        project.declare({name: declared_as_is(world, name) for name in ("known", *groups())})
        project.load()
        for table in ("known", *groups()):
            assert_as_in_the_source(project, table)
        change(world, 0, by=1)
        world.ingest(spark)
        project.load()
        for table in ("known", *groups()):
            assert_as_in_the_source(project, table)
