"""What dbt left, against the real stack: it goes once it is old, and what is in use stays."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakehouse.catalog.objects import list_objects
from maintenance.actions.clean_dbt_temporary import clean_dbt_temporary, strays
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import look_again, plant, policy, rows
from tests.marks import slow

pytestmark = pytest.mark.stack

TEMPORARY_NOW = policy(clean_dbt_temporary={"older_than_hours": 0})


@pytest.mark.parametrize("objects", [10, *(slow(n) for n in (1100, 2500))])
def test_temporary_relations_and_leftover_objects_of_a_model_go(session: Session, schema: str, objects: int) -> None:
    model = TableName(schema, "orders")
    session.trino(f"CREATE TABLE {schema}.orders__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"CREATE TABLE {schema}.orders__dbt_backup AS SELECT 1 AS x")
    session.trino(f"CREATE VIEW {schema}.orders__dbt_tmp_view AS SELECT 1 AS x")
    prefix = f"{session.settings.warehouse.rstrip('/')}/{schema}/orders__dbt_tmp-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: plant(session, f"{prefix}/data/{number}"), range(objects)))
    young = clean_dbt_temporary(session, model, policy(clean_dbt_temporary={"older_than_hours": 1}))
    assert young.status == "skipped" and "kept" in young.reason
    outcome = clean_dbt_temporary(look_again(session), model, TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("done", f"removed 3 relations, {objects} objects")
    assert session.trino(f"SHOW TABLES FROM {schema} LIKE 'orders%'") == []
    assert list_objects(session.io, prefix) == []
    assert clean_dbt_temporary(look_again(session), model, TEMPORARY_NOW).reason == "nothing temporary"


def test_a_living_table_below_a_temporary_prefix_is_kept(session: Session, schema: str) -> None:
    """dbt replaces a table by renaming `<model>__dbt_tmp`; the files stay where they are."""
    session.trino(f"CREATE TABLE {schema}.renamed__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"ALTER TABLE {schema}.renamed__dbt_tmp RENAME TO {schema}.renamed")
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "renamed"), TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("skipped", "nothing temporary")
    assert session.trino(f"SELECT x FROM {schema}.renamed") == [[1]]


def test_a_file_that_a_table_elsewhere_refers_to_is_kept(session: Session, table: TableName, schema: str) -> None:
    prefix = f"{session.settings.warehouse.rstrip('/')}/{schema}/moved__dbt_tmp-{uuid.uuid4().hex}"
    loaded = session.catalog.load_table(table)
    old = next(iter(loaded.scan().plan_files())).file.file_path
    moved = plant(session, f"{prefix}/data/moved.parquet")
    with session.io.new_input(old).open() as source, session.io.new_output(moved).create(overwrite=True) as target:
        target.write(source.read())
    loaded.add_files([moved])
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "moved"), TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("skipped", f"{prefix}/ kept: a table refers to it")
    assert len(rows(session, table)) == 18


def test_a_temporary_relation_that_a_view_names_is_kept(session: Session, schema: str) -> None:
    session.trino(f"CREATE TABLE {schema}.seen__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"CREATE VIEW {schema}.window AS SELECT x FROM {schema}.seen__dbt_tmp")
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "seen"), TEMPORARY_NOW)
    assert outcome.reason == f"{schema}.seen__dbt_tmp kept: view {schema}.window refers to it"
    session.trino(f"DROP VIEW {schema}.window")


def test_what_an_undeclared_model_left_follows_the_most_patient_policy_of_its_schema(
    session: Session, schema: str
) -> None:
    session.trino(f"CREATE TABLE {schema}.gone__dbt_tmp AS SELECT 1 AS x")
    patient = policy(clean_dbt_temporary={"older_than_hours": 48})
    declared = (
        MaintainedTable(TableName(schema, "a"), TEMPORARY_NOW),
        MaintainedTable(TableName(schema, "b"), patient),
    )
    found = {table.name: table.policy for table in strays(look_again(session), declared, None)}
    assert found[TableName(schema, "gone")] == patient
