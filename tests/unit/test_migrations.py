"""Stored state of earlier releases: every installation gets every step, once, or stays whole as it was."""

import re
import threading
from typing import Any

import psycopg
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.migrations import Step, ensure_state, known_steps, migrate, newest_version, stamp

ADDS = Step(newest_version() + 1, "added", b"ALTER TABLE lakehouse.streams ADD COLUMN added text NOT NULL DEFAULT 'x'")
BREAKS = Step(newest_version() + 2, "broken", b"CREATE TABLE lakehouse.half (id int); SELECT 1 / 0")
SHAPE = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
    " WHERE table_schema = 'lakehouse' AND table_name <> 'schema_version' ORDER BY 1, 2"
)
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'lakehouse' AND tablename <> 'schema_version' ORDER BY 1"


@pytest.fixture
def url(cluster: str, request: pytest.FixtureRequest) -> str:
    """An empty database of the test's own."""
    name = re.sub(r"\W", "", request.node.name)[-60:]
    with psycopg.connect(cluster, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    return cluster.rsplit("/", 1)[0] + f"/{name}"


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def as_0_1_0_left_it(url: str) -> None:
    """Tables of that release, without a stamp; a part of them only, as a lake has that never erased anything."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA lakehouse")
        connection.execute(known_steps()[0].sql)
        connection.execute("DROP TABLE lakehouse.erasures, lakehouse.condemned")
        connection.execute(
            "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid)"
            " VALUES ('shop', 1, 42, 'lakehouse_shop', '7', 1, 2)"
        )


def test_a_column_that_a_release_adds_reaches_state_that_is_there_already(url: str) -> None:
    """All DDL was skipped once one table was there."""
    as_0_1_0_left_it(url)
    with psycopg.connect(url, autocommit=True) as connection:
        assert [step.number for step in migrate(connection, (*known_steps(), ADDS))] == list(range(1, ADDS.number + 1))
        assert connection.execute("SELECT source, lsn, added FROM lakehouse.streams").fetchall() == [("shop", 42, "x")]


def test_state_of_0_1_0_is_adopted_and_has_the_same_shape_as_new_state(url: str) -> None:
    as_0_1_0_left_it(url)
    with psycopg.connect(url, autocommit=True) as connection:
        ensure_state(connection)
        assert stamp(connection)[0] == newest_version()
    adopted = rows(url, SHAPE), rows(url, INDEXES)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA lakehouse CASCADE")
        ensure_state(connection)
    assert (rows(url, SHAPE), rows(url, INDEXES)) == adopted


def test_a_second_upgrade_does_nothing(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        assert migrate(connection, known_steps()) == known_steps()
        before = connection.execute("SELECT * FROM lakehouse.schema_version").fetchall()
        assert migrate(connection, known_steps()) == ()
        assert connection.execute("SELECT * FROM lakehouse.schema_version").fetchall() == before


def test_state_that_is_newer_than_the_code_is_refused_in_one_line_and_left_as_it_is(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, (*known_steps(), ADDS))
        connection.execute("UPDATE lakehouse.schema_version SET release = '0.9.0' WHERE version = %s", (ADDS.number,))
        before = rows(url, SHAPE)
        with pytest.raises(
            LakehouseError, match=rf"of version {ADDS.number}, made by release 0\.9\.0.*install 0\.9\.0"
        ) as refused:
            ensure_state(connection)
    assert "\n" not in str(refused.value) and rows(url, SHAPE) == before


def test_a_step_that_fails_leaves_the_former_version_whole(url: str) -> None:
    as_0_1_0_left_it(url)
    before = rows(url, SHAPE)
    with (
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.DivisionByZero),
    ):
        migrate(connection, (*known_steps(), ADDS, BREAKS))
    assert rows(url, SHAPE) == before
    with psycopg.connect(url, autocommit=True) as connection:
        assert stamp(connection) == (0, "")


def test_a_process_that_dies_between_two_steps_leaves_the_former_version_whole(url: str) -> None:
    """The server ends the session: no client has a say in what becomes of the transaction."""
    as_0_1_0_left_it(url)
    before = rows(url, SHAPE)
    dies = Step(ADDS.number + 1, "dies", b"SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, (*known_steps(), ADDS, dies))
    assert rows(url, SHAPE) == before
    with psycopg.connect(url, autocommit=True) as connection:
        assert len(migrate(connection, (*known_steps(), ADDS))) == ADDS.number


def test_processes_that_start_at_once_migrate_once(url: str) -> None:
    """A step that may not run twice fails in the second: here a table without IF NOT EXISTS, slowly."""
    slow = Step(ADDS.number + 1, "slow", b"CREATE TABLE lakehouse.slow (id int); SELECT pg_sleep(0.3)")
    together, taken, failed = threading.Barrier(4), [], []

    def start() -> None:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                together.wait()
                taken.append(migrate(connection, (*known_steps(), ADDS, slow)))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and sorted(map(len, taken)) == [0, 0, 0, len(known_steps()) + 2]


def test_steps_are_numbered_without_a_gap_and_only_add() -> None:
    """A process of the release before goes on beside them: what it reads and writes stays."""
    assert [step.number for step in known_steps()] == list(range(1, len(known_steps()) + 1))
    for step in known_steps():
        assert not re.search(r"\b(DROP|RENAME|TRUNCATE|DELETE|ALTER COLUMN)\b", step.sql.decode(), re.IGNORECASE), (
            step.name
        )
        for column in re.findall(r"ADD COLUMN[^;]*", step.sql.decode(), re.IGNORECASE):
            assert "NOT NULL" not in column.upper() or "DEFAULT" in column.upper(), column
