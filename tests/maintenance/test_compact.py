"""Compaction against the real stack: files become fewer, and nothing that a reader can see changes."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lakehouse.catalog import row_groups
from maintenance.actions.compact import compact
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import COMPACT, DAYS, SCHEMA, append, make_table, rows

pytestmark = pytest.mark.stack


def test_compaction_keeps_every_row_and_leaves_one_file(session: Session, table: TableName) -> None:
    before = rows(session, table)
    outcome = compact(session, table, COMPACT)
    assert outcome.status == "done", outcome
    assert (outcome.before.files, outcome.after.files) == (8, 1)
    assert (outcome.before.manifests, outcome.after.manifests) == (8, 1)
    assert rows(session, table) == before
    assert compact(session, table, COMPACT).status == "skipped"


def test_files_of_many_narrow_rows_get_small_row_groups(
    session: Session, table: TableName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROWS", 10)
    session.catalog.create_namespace_if_not_exists("marts")
    mart = make_table(session, "marts", appends=8)
    before, found = rows(session, mart), {}
    for name in (mart, table):
        assert compact(session, name, COMPACT).status == "done"
        loaded = session.load(name)
        assert loaded is not None
        found[name] = loaded.properties.get(row_groups.PROPERTY)
    assert rows(session, mart) == before
    assert found == {mart: str(row_groups.LEAST_BYTES), table: None}, "raw tables have another writer"
    session.catalog.drop_table(mart)


def test_a_table_with_few_files_is_skipped_without_starting_spark(session: Session, schema: str) -> None:
    name = TableName(schema, "few")
    session.catalog.create_table(name, SCHEMA)
    append(session, name, times=2)
    outcome = compact(session, name, COMPACT)
    assert (outcome.status, outcome.reason) == ("skipped", "2 files, below min_input_files 5")
    assert "spark" not in session._shared


def test_compaction_removes_the_delete_files_that_trino_wrote(session: Session, table: TableName) -> None:
    for number in range(5):
        session.trino(f"DELETE FROM {table.namespace}.{table.name} WHERE id = {number} AND day = DATE '2024-01-01'")
    before = rows(session, table)
    outcome = compact(session, table, COMPACT)
    assert outcome.status == "done", outcome
    assert outcome.before.delete_files == 5
    assert outcome.after.delete_files == 0
    assert rows(session, table) == before


def test_delete_files_of_few_rows_are_merged_and_their_data_is_left_where_it_is(session: Session, schema: str) -> None:
    name = TableName(schema, "few_deleted")
    many = [{"id": number, "day": DAYS[0], "note": "kept"} for number in range(2000)]
    session.catalog.create_table(name, SCHEMA).append(pa.Table.from_pylist(many, SCHEMA))
    for number in range(5):
        session.trino(f"DELETE FROM {schema}.few_deleted WHERE id = {number}")
    data = {task.file.file_path for task in session.catalog.load_table(name).scan().plan_files()}
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "done", outcome
    assert (outcome.before.delete_files, outcome.after.delete_files) == (5, 1)
    assert {task.file.file_path for task in session.catalog.load_table(name).scan().plan_files()} == data
    assert session.trino(f"SELECT count(*), min(id) FROM {schema}.few_deleted") == [[1995, 5]]


def test_a_compaction_that_meets_an_append_keeps_the_rows_of_both(session: Session, table: TableName) -> None:
    before = len(rows(session, table))
    with ThreadPoolExecutor(2) as pool:
        compaction = pool.submit(compact, session, table, COMPACT)
        for _ in range(10):
            append(session, table)
        outcome = compaction.result()
    assert outcome.status == "done", outcome
    assert len(rows(session, table)) == before + 20


def test_two_compactions_at_once_end_with_the_same_rows(session: Session, table: TableName) -> None:
    before = rows(session, table)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: compact(session, table, COMPACT), range(2)))
    assert "done" in {outcome.status for outcome in outcomes}
    assert all("\n" not in (outcome.error or "") for outcome in outcomes)
    assert rows(session, table) == before


def test_a_table_with_a_name_that_iceberg_reserves_is_left_alone_until_it_is_renamed(
    session: Session, schema: str
) -> None:
    """Spark refuses to read it. Its manifests are merged all the same: nobody reads a row for that."""
    name = TableName(schema, "reserved")
    session.trino(
        f"CREATE TABLE {schema}.reserved (id bigint, _deleted boolean, _valid_from timestamp(6) with time zone)"
        " WITH (partitioning = ARRAY['month(_valid_from)'])"
    )
    for number in range(6):
        session.trino(f"INSERT INTO {schema}.reserved VALUES ({number}, false, TIMESTAMP '2024-01-03 00:00:00 UTC')")
    before = session.trino(f"SELECT * FROM {schema}.reserved ORDER BY 1")
    why = "not compacted: column '_deleted' has a name that Iceberg reserves, so Spark cannot read the table: "
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "done" and f"rewrites 6 manifests; {why}" in outcome.reason, outcome
    assert (outcome.after.files, outcome.after.manifests) == (6, 1)
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "skipped" and outcome.reason.startswith(why)
    with session.catalog.load_table(name).update_schema() as update:
        update.rename_column("_deleted", "_is_deleted")
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "done" and outcome.after.files == 1, outcome
    assert session.trino(f"SELECT * FROM {schema}.reserved ORDER BY 1") == before
