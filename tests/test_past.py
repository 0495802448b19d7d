"""The past as the documentation tells to ask for it, against copies of the table; and views, which have none."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_cli.lake.sql import sql
from tests.pages import Value, block
from tests.readers import Project, declared_as_is, project_of
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = """CREATE TABLE stores (store_id int PRIMARY KEY, store_name text, city text);
ALTER TABLE stores ALTER city SET STORAGE EXTERNAL"""
LONG = "repeat(md5('{}'), 100)"
# Each is one transaction; values that an update does not carry, keys that change, come back and go.
CHANGES = (
    f"INSERT INTO stores SELECT n, 'store ' || n, {LONG.format('a')} FROM generate_series(1, 6) n",
    "UPDATE stores SET store_name = 'renamed' WHERE store_id = 1",
    "DELETE FROM stores WHERE store_id = 2",
    "UPDATE stores SET store_id = 7 WHERE store_id = 3",
    "INSERT INTO stores VALUES (2, 'again', 'Brno'), (3, 'other', NULL)",
    "UPDATE stores SET store_name = NULL; DELETE FROM stores WHERE store_id = 7",
    "TRUNCATE stores",
    "INSERT INTO stores VALUES (1, 'new', 'Praha')",
    "UPDATE stores SET store_id = store_id + 10",
)


def documented(project: Project, heading: str, *values: Value) -> str:
    """The query below that heading, of this project's table, with other literals."""
    return block("past.md", "sql", ("retail__", f"{project.name}__"), *values, below=heading)


def copy_of(world: World) -> list[Any]:
    return [list(row) for row in world.rows("SELECT store_id, store_name, city FROM stores ORDER BY store_id")]


@pytest.mark.slow
def test_the_documented_queries_answer_as_the_source_was_and_views_refuse(
    settings: Settings, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(settings, DDL, {"stores": RawPolicy(relation="public.stores", key=("store_id",))})
    copies = []
    for number, change in enumerate(CHANGES):
        world.sql(change)
        time.sleep(0.01)
        [(moment, lsn)] = world.rows(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US UTC'),"
            " pg_current_wal_lsn() - '0/0'"
        )
        copies.append((moment, lsn, copy_of(world)))
        time.sleep(0.01)
        if number in (0, 4):
            world.ingest(spark)
    world.ingest(spark)
    with project_of(world, tmp_path) as project:
        project.declare({"stores": declared_as_is(world, "stores")})
        project.load()
        for moment, lsn, copy in copies[1:]:
            by_moment = documented(project, "The table as of a moment", ("2026-05-04 12:00:00 UTC", moment))
            by_commit = documented(project, "The table as of a commit", ("<= 23592976", f"<= {lsn}"))
            assert sorted(project.rows(by_moment)) == copy, moment
            assert sorted(project.rows(by_commit)) == copy, lsn
        assert_views_have_no_past(project, capsys)


def assert_views_have_no_past(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    view, clause = f"parsed.current_{project.name}__stores", "FOR TIMESTAMP AS OF TIMESTAMP '2001-01-01 00:00:00 UTC'"
    comments = (
        "SELECT comment FROM system.metadata.table_comments WHERE catalog_name = 'lake' AND schema_name = 'parsed'"
    )
    [[comment]] = project.rows(f"{comments} AND table_name = '{view.removeprefix('parsed.')}'")
    assert "Trino ignores FOR TIMESTAMP AS OF and FOR VERSION AS OF" in comment.splitlines()[1]
    assert comment in project.rows(f"SHOW CREATE VIEW {view}")[0][0]

    assert project.rows(f"SELECT count(*) FROM {view} {clause}") == [[1]], "Trino itself still ignores the clause"
    project.rows(f"CREATE OR REPLACE VIEW parsed.over_{project.name} AS SELECT * FROM {view}")
    for name in (view, f"lake.{view}", f"parsed.over_{project.name}", f'parsed."CURRENT_{project.name}__stores"'):
        with pytest.raises(LakehouseError, match=r"is a view, on which Trino ignores FOR TIMESTAMP AS OF"):
            sql(f"SELECT * FROM {name} {clause}", role="writer")
    table = f"parsed.parsed_{project.name}__stores"
    snapshot = project.rows(f'SELECT snapshot_id FROM parsed."parsed_{project.name}__stores$snapshots"')[-1][0]
    sql(f"SELECT count(*) FROM {table} FOR VERSION AS OF {snapshot}", json=True, role="writer")
    assert re.fullmatch(r'\{"_col0": \d+\}\n', capsys.readouterr().out)
    with pytest.raises(LakehouseError, match=r"query: .*nocatalog"):
        sql(f"SELECT * FROM nocatalog.{table} {clause}")
