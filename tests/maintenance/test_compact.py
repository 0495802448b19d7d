"""Compaction against the real stack: files become fewer, and nothing that a reader can see changes."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from maintenance.actions.compact import compact
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from tests.maintained import COMPACT, DAYS, SCHEMA, append, rows

pytestmark = pytest.mark.stack


def test_compaction_keeps_every_row_and_leaves_one_file(session: Session, table: TableName) -> None:
    before = rows(session, table)
    outcome = compact(session, table, COMPACT)
    assert outcome.status == "done", outcome
    assert (outcome.before.files, outcome.after.files) == (8, 1)
    assert (outcome.before.manifests, outcome.after.manifests) == (8, 1)
    assert rows(session, table) == before
    assert compact(session, table, COMPACT).status == "skipped"


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


@pytest.mark.slow
def test_a_table_that_spark_refuses_to_read_is_compacted_in_the_partitions_that_need_it(
    session: Session, schema: str
) -> None:
    """Parsed tables have a column `_deleted`, a name that Iceberg's Spark keeps to itself: none was ever compacted."""
    name = TableName(schema, "parsed")
    session.trino(
        f"CREATE TABLE {schema}.parsed (id bigint, _deleted boolean, _valid_from timestamp(6) with time zone)"
        " WITH (partitioning = ARRAY['month(_valid_from)'])"
    )
    for number in range(6):
        for month in (1, 2) if number < 2 else (1,):
            at = f"TIMESTAMP '2024-{month:02}-03 00:00:00 UTC'"
            session.trino(f"INSERT INTO {schema}.parsed VALUES ({number}, false, {at})")
    before = session.trino(f"SELECT * FROM {schema}.parsed ORDER BY 1, 3")
    dry = Session(session.settings, dry_run=True)
    assert compact(dry, name, COMPACT).reason == "rewrites 6 files in 1 partition, 8 manifests"
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "done", outcome
    assert (outcome.before.files, outcome.after.files) == (8, 3), "the partition of two files is left alone"
    assert session.trino(f"SELECT * FROM {schema}.parsed ORDER BY 1, 3") == before
    assert compact(session, name, COMPACT).status == "skipped"
    for number in range(5):
        session.trino(f"DELETE FROM {schema}.parsed WHERE id = {number} AND month(_valid_from) = 1")
    outcome = compact(session, name, COMPACT)
    assert outcome.status == "done" and outcome.after.delete_files == 0, outcome
    assert [row[0] for row in session.trino(f"SELECT id FROM {schema}.parsed ORDER BY 1")] == [0, 1, 5]
