"""Rows that share a key within a transaction, from the source to the views: the lake shows what the source has."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ingestion import resume
from ingestion.state import store
from ingestion.tasks.shared_keys import hold
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.clusters import Cluster, cluster, world_in
from tests.marks import slow
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.test_parking import meta
from tests.world import World, make_world
from tests.zoo import Zoo, empty_project

pytestmark = pytest.mark.stack

DDL = """
CREATE TABLE k (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, pay text, big text);
ALTER TABLE k REPLICA IDENTITY FULL;
CREATE TABLE bare (id int, pay text);
ALTER TABLE bare REPLICA IDENTITY FULL;
INSERT INTO k VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (10, 'same'), (11, 'same');
INSERT INTO bare VALUES (1, 'a'), (2, 'b')
"""
TABLES = {
    "k": RawPolicy(relation="public.k", key=("id",)),
    "bare": RawPolicy(relation="public.bare", key=("id",)),
}
SWAP = "UPDATE {} SET id = CASE id WHEN 1 THEN 2 ELSE 1 END WHERE id IN (1, 2)"
HISTORY: tuple[tuple[str, ...], ...] = (
    (SWAP.format("k"), SWAP.format("bare")),
    ("UPDATE k SET id = CASE id WHEN 10 THEN 11 ELSE 10 END WHERE id IN (10, 11)",),
    ("UPDATE k SET id = 1 + id % 3 WHERE id <= 3",),
    ("UPDATE k SET id = id + 1 WHERE id <= 4", "INSERT INTO k VALUES (1, 'new', repeat('x', 9000))"),
    ("UPDATE k SET id = id - 1 WHERE id <= 5", "DELETE FROM k WHERE id = 0"),
    ("INSERT INTO k VALUES (2, 'instead')", "DELETE FROM k WHERE id = 2 AND pay <> 'instead'"),
    ("INSERT INTO k VALUES (2, 'passing')", "DELETE FROM k WHERE id = 2 AND pay = 'passing'"),
    ("INSERT INTO k VALUES (99, 'passing')", "DELETE FROM k WHERE id = 99"),
    (
        "INSERT INTO k VALUES (3, 'third')",
        "UPDATE k SET big = 'both' WHERE id = 3",
        "DELETE FROM k WHERE id = 3 AND pay <> 'third'",
    ),
    ("UPDATE k SET id = -1 WHERE id = 1", "UPDATE k SET id = 1 WHERE id = 4", "UPDATE k SET id = 4 WHERE id = -1"),
    ("SAVEPOINT s", "UPDATE k SET id = id + 1 WHERE id <= 3", "ROLLBACK TO SAVEPOINT s", SWAP.format("k")),
    ("INSERT INTO bare VALUES (3, 'c')", "DELETE FROM bare WHERE id = 2", "INSERT INTO bare VALUES (2, 'z')"),
)  # fmt: skip


def run(world: World, *statements: str) -> None:
    """One transaction."""
    with psycopg.connect(world.owner_url) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]


def position_of(world: World, table: str) -> store.TablePosition:
    with store.connect_catalog(world.settings) as connection:
        return store.read_positions(connection, world.source.name)[table]


def assert_right(world: World, *tables: str) -> None:
    for table in tables or TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)
        assert position_of(world, table).state == "streaming"


@pytest.fixture(scope="module", params=[slow("15"), "16"])
def version(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param, client_connection_check_interval="1s") as made:
        yield made


def test_keys_that_rows_exchange_are_right_after_each_commit_on_this_version(
    version: Cluster, settings: Settings, spark: Any
) -> None:
    world = world_in(version, settings, f"t{uuid.uuid4().hex[:10]}", DDL, TABLES, lease_seconds=2)
    world.ingest(spark)
    for transaction in HISTORY[:4]:
        run(world, *transaction)
        world.ingest(spark)
        assert_right(world)
    for transaction in HISTORY[4:]:
        run(world, *transaction)
    world.ingest(spark)
    assert_right(world)
    landed = world.raw("k")
    run(world, SWAP.format("k"))
    run(world, "TRUNCATE k", "INSERT INTO k VALUES (1, 'a'), (2, 'b')", SWAP.format("k"))
    world.ingest(spark)
    assert_right(world)
    assert world.raw("k")[: len(landed)] == landed


def project_of(world: World, folder: Path) -> Zoo:
    """The dbt project with the table `k` of this world alone: parsed, the current view, a hub, a satellite."""
    name = world.source.name
    models = {
        f"parsed/{name}/parsed_{name}__k": f"{{{{ cdc_vault.parsed_table('{name}', 'k') }}}}",
        f"current/{name}/current_{name}__k": f"{{{{ cdc_vault.current_table('{name}', 'k') }}}}",
        f"stage/{name}/stg_{name}__k": f"""{{{{ cdc_vault.stage(source_model='parsed_{name}__k', hashed_columns={{
            'hk_k': ['id'], 'hd_k': {{'is_hashdiff': true, 'columns': ['pay', 'big']}}}}) }}}}""",
        f"vault/{name}/hub_{name}": f"""{{{{ cdc_vault.hub(
            src_pk='hk_k', src_nk='id', source_model='stg_{name}__k') }}}}""",
        f"vault/{name}/sat_{name}": f"""{{{{ cdc_vault.sat(
            src_pk='hk_k', src_hashdiff='hd_k', src_payload=['pay', 'big'], source_model='stg_{name}__k') }}}}""",
        f"timelines/{name}/sat_{name}_v1": f"""{{{{ cdc_vault.timeline(source_model='sat_{name}', src_pk='hk_k',
            src_hashdiff='hd_k', src_payload=['pay', 'big']) }}}}""",
    }
    project = empty_project(world.settings, folder)
    (project / f"models/sources/{name}.yml").write_text(
        f"""
sources:
  - name: {name}
    schema: raw_{name}
    description: Rows that share keys.
    tables:
      - name: k
        description: Rows.
        config: {{meta: {{raw: {{relation: public.k, key: [id]}}}}}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns:
          - {{name: id, data_type: integer, description: Key.}}
          - {{name: pay, data_type: text, description: Value.}}
          - {{name: big, data_type: text, description: Large value.}}
"""
    )
    for model, sql in models.items():
        path = project / "models" / f"{model}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sql)
    (project / f"models/vault/{name}/tests.yml").write_text(
        f"models: [{{name: parsed_{name}__k, data_tests: [{{cdc_vault.parsed_matches_raw:"
        f" {{arguments: {{source_name: {name}, table_name: k}}}}}}]}}]"
    )
    return Zoo(world.settings, project, source=name, models=tuple(models))


@pytest.mark.slow
def test_parsed_and_vault_show_the_rows_of_exchanged_keys(settings: Settings, spark: Any, tmp_path: Path) -> None:
    world = make_world(settings, DDL, TABLES)
    name, project = world.source.name, project_of(world, tmp_path)
    world.ingest(spark)
    for transaction in HISTORY:
        run(world, *transaction)
    world.ingest(spark)
    assert_right(world)
    project.dbt("build")
    expected = sorted(map(list, world.rows("SELECT id, pay, big FROM k")))
    assert sorted(project.rows(f"SELECT id, pay, big FROM parsed.current_{name}__k")) == expected
    in_vault = project.rows(
        f"SELECT h.id, s.pay, s.big FROM vault.hub_{name} h JOIN vault.sat_{name}_v1 s ON s.hk_k = h.hk_k"
        " WHERE s.is_current AND NOT s.is_deleted"
    )
    assert sorted(in_vault) == expected


def test_a_transaction_too_large_to_be_put_in_order_is_repaired(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(settings, DDL, TABLES, batch_bytes=10_000)
    world.ingest(spark)
    monkeypatch.setattr(hold, "HELD_BYTES", 10_000)
    run(world, "INSERT INTO k SELECT i, 'many' FROM generate_series(100, 2000) i", "UPDATE k SET id = id + 1")
    world.ingest(spark)
    assert_right(world)


@pytest.mark.slow
def test_a_declared_key_of_several_rows_is_refused_by_name(settings: Settings, spark: Any) -> None:
    """At the snapshot, and when a transaction leaves them behind; the other table goes on."""
    world = make_world(settings, DDL + "; INSERT INTO bare VALUES (2, 'twice')", TABLES)
    report = world.ingest(spark)
    (aside,) = report.aside
    assert "several rows of public.bare have one declared key (id), and" in str(aside)
    assert_right(world, "k")
    world.sql("DELETE FROM bare WHERE pay = 'twice'")
    resume(world.settings, world.declarations, world.source.name, ["bare"], spark)
    world.ingest(spark)
    assert_right(world)
    run(world, "INSERT INTO bare VALUES (7, 'one'), (7, 'two')")
    report = world.ingest(spark)
    assert "(id) (7)" in str(report.aside[0])
    run(world, "DELETE FROM bare WHERE pay = 'two'")
    resume(world.settings, world.declarations, world.source.name, ["bare"], spark)
    world.ingest(spark)
    assert_right(world)


def test_a_parked_table_lands_exchanged_keys_from_the_spool(settings: Settings, spark: Any) -> None:
    world = make_world(settings, DDL, TABLES)
    world.ingest(spark)
    world.sql("REVOKE SELECT ON k FROM lakehouse_ingest")
    for transaction in HISTORY:
        run(world, *transaction)
        if transaction is HISTORY[3]:
            world.ingest(spark)
    world.ingest(spark)
    assert len(meta(world, "spool")) > 10
    world.sql("GRANT SELECT ON k TO lakehouse_ingest")
    resume(world.settings, world.declarations, world.source.name, ["k"], spark)
    world.ingest(spark)
    assert_right(world)
