"""Compaction against the real stack: files become fewer, and nothing that a reader can see changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from maintenance.compact import compact
from maintenance.outcome import TableName
from maintenance.session import Session
from tests.maintained import COMPACT, SCHEMA, append, rows

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
