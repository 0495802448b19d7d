"""Where the WAL of an idle source ends: whoever waits for all of it must not wait for what is never written."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from ingestion.sources.postgres.connection import committed_lsn
from tests.unit.throwaway_postgres import throwaway_postgres

PAGE = 8192
INSERT, FLUSHED = "pg_current_wal_insert_lsn()", "pg_current_wal_flush_lsn()"


@pytest.fixture(scope="module")
def source() -> Iterator[psycopg.Connection]:
    with throwaway_postgres() as url, psycopg.connect(url, autocommit=True) as connection:
        yield connection


def at(source: psycopg.Connection, lsn: str) -> int:
    row = source.execute(f"SELECT ({lsn} - '0/0'::pg_lsn)::bigint").fetchone()
    assert row is not None
    return int(row[0])


def write(source: psycopg.Connection, size: int) -> None:
    source.execute("SELECT pg_logical_emit_message(false, '', repeat('x', %s))", (size,))


def end_with_page(source: psycopg.Connection) -> None:
    """Writes until the WAL ends with a page; the record of a message has 54 bytes more than the message."""
    for _ in range(100):
        rest = -at(source, INSERT) % PAGE
        write(source, rest - 54 if rest > 300 else 300)
        if at(source, INSERT) % PAGE == 24:
            return
    raise AssertionError("it never ended with a page")


def end_with_segment(source: psycopg.Connection) -> None:
    write(source, 1)
    source.execute("SELECT pg_switch_wal()")


@pytest.mark.parametrize("write_up_to", [end_with_page, end_with_segment])
def test_an_idle_source_is_reached_where_its_wal_ends_with_a_page(
    source: psycopg.Connection, write_up_to: Callable[[psycopg.Connection], None]
) -> None:
    """A reconcile beside a follower waited for five minutes, and failed: until then nothing was written."""
    write_up_to(source)
    assert at(source, INSERT) > committed_lsn(source) >= at(source, FLUSHED)
    assert committed_lsn(source) % PAGE == 0


def test_elsewhere_it_is_where_the_next_record_will_be(source: psycopg.Connection) -> None:
    for size in range(1, 200):
        write(source, size)
        if at(source, INSERT) % PAGE not in (24, 40):
            assert committed_lsn(source) == at(source, INSERT)
