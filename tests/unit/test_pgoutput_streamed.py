"""Transactions that come in blocks before they end, against what version 1 sends of the same WAL."""

import random
from collections.abc import Collection, Iterator
from typing import LiteralString

import psycopg
import pyarrow as pa
import pytest
from pgoutput_record import SLOT, peek, scratch_database
from pgoutput_support import XID_REFERENCE, by_oid, by_table, named, rows_of
from throwaway_postgres import throwaway_postgres

from ingestion.sources.postgres.connection import aborted
from ingestion.sources.postgres.pgoutput import Decoder, streamed, whole_transactions

pytestmark = pytest.mark.stack

SESSIONS = 3


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with throwaway_postgres() as url, scratch_database(url) as database:
        yield database


@pytest.mark.parametrize("seed", range(4))
def test_blocks_become_what_version_1_sends(seed: int, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "HELD_BYTES", 2000)
    chance = random.Random(seed)
    with psycopg.connect(database, autocommit=True) as connection:
        _make_tables(connection)
        _work(database, chance)
        expected = peek(connection, ", 'messages', 'true'")
        in_blocks = _peek_in_blocks(connection)
    assert sum(message[:1] == b"S" for message in in_blocks) > 200
    assert {b"c", b"A"} <= {message[:1] for message in in_blocks}
    got = [
        message.as_py() for piece in whole_transactions(_pieces(in_blocks, chance), _all_announced) for message in piece
    ]
    assert _undescribed(got) == _undescribed(expected)
    assert _decoded(got) == _decoded(expected)


def test_a_transaction_that_has_not_ended_is_left_out(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as other:
        _make_tables(connection)
        other.execute("INSERT INTO s.a SELECT i, 'open' FROM generate_series(1, 50) i")
        connection.execute("INSERT INTO s.b VALUES (1, 'done')")
        in_blocks = _peek_in_blocks(connection)
        got = [
            message.as_py()
            for piece in whole_transactions(_pieces(in_blocks, random.Random(1)), _all_announced)
            for message in piece
        ]
        assert sum(message[:1] == b"I" for message in in_blocks) == 51
        assert [message[:1] for message in _undescribed(got)] == [b"B", b"I", b"C"]


def test_a_subtransaction_whose_end_is_not_announced_is_left_out(database: str) -> None:
    """It was spilled with its larger parent, halfway through a value; what is sent after that is not noted as sent."""
    with psycopg.connect(database, autocommit=True) as connection:
        _make_tables(connection)
        connection.execute("ALTER TABLE s.b ALTER small SET STORAGE EXTERNAL")
        with connection.transaction():
            _insert_many(connection, 0, 3, 9000)
            _insert_many(connection, 10, 4400, 1500)
            connection.execute("SAVEPOINT a")
            _insert_many(connection, 10_000, 3000, 4000)
            connection.execute("ROLLBACK TO a")
            _insert_many(connection, 20_000, 1, 1)
        expected = peek(connection)
        connection.execute("SET logical_decoding_work_mem = '12MB'")
        in_blocks = _peek_in_blocks(connection, "buffered")
        assert len([message for message in in_blocks if message[:1] == b"I"]) > 5000
        assert {message[:1] for message in in_blocks} == {b"S", b"R", b"I", b"E", b"c"}
        blocks = [pa.array(in_blocks, pa.binary())]
        whole = whole_transactions(blocks, lambda xids: aborted(connection, sorted(xids)))
        got = [message.as_py() for piece in whole for message in piece]
    assert _undescribed(got) == _undescribed(expected)


def _insert_many(connection: psycopg.Connection, first: int, count: int, length: int) -> None:
    connection.execute(
        "INSERT INTO s.b SELECT %s::int + i, repeat('x', %s) FROM generate_series(1, %s::int) i", [first, length, count]
    )


def _make_tables(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    connection.execute("DROP PUBLICATION IF EXISTS p; DROP SCHEMA IF EXISTS s CASCADE; CREATE SCHEMA s")
    connection.execute("CREATE TABLE s.a (id int, small text); CREATE TABLE s.b (id int PRIMARY KEY, small text)")
    connection.execute("CREATE TYPE s.mood AS ENUM ('well'); CREATE TABLE s.c (id int, feels s.mood)")
    connection.execute("ALTER TABLE s.a REPLICA IDENTITY FULL; ALTER TABLE s.c REPLICA IDENTITY FULL")
    connection.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])


def _work(database: str, chance: random.Random) -> None:
    """Transactions of several sessions at once, with subtransactions that are rolled back, and DDL in them."""
    sessions = [psycopg.connect(database) for _ in range(SESSIONS)]
    altered: psycopg.Connection | None = None  # who holds table a for itself
    try:
        for step in range(400):
            session = chance.choice(sessions)
            action = chance.random()
            if action < 0.08:
                session.commit() if chance.random() < 0.7 else session.rollback()
                altered = None if session is altered else altered
            elif action < 0.2:
                session.execute(f"SAVEPOINT p{chance.randint(1, 3)}")
            elif action < 0.3:
                _roll_back(session, f"p{chance.randint(1, 3)}")
            elif action < 0.32 and altered is None:
                for other in sessions:
                    other.commit()
                session.execute(f"ALTER TABLE s.a ADD COLUMN IF NOT EXISTS more{step} int DEFAULT 1")
                altered = session
            elif action < 0.36:
                first = session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE  # never rolled back apart
                session.execute("SELECT pg_logical_emit_message(%s, 'test', 'told')", [first])
            elif altered in (None, session):
                session.execute(_statement(chance, step, sessions.index(session)))
        for session in sessions:
            session.commit()
    finally:
        for session in sessions:
            session.close()


def _roll_back(session: psycopg.Connection, point: str) -> None:
    if session.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
        return
    session.execute("SAVEPOINT before")
    try:
        session.execute(f"ROLLBACK TO {point}")
    except psycopg.errors.InvalidSavepointSpecification:
        session.execute("ROLLBACK TO before")


def _statement(chance: random.Random, step: int, number: int) -> str:
    """Of rows of the session's own: nobody waits for anybody."""
    mine = f"id % {SESSIONS} = {number}"
    return chance.choice(
        [
            f"INSERT INTO s.a SELECT {number} + {SESSIONS} * i, 'n' FROM generate_series(1, {chance.randint(1, 9)}) i",
            f"INSERT INTO s.b VALUES ({number} + {SESSIONS} * {step}, 'new')",
            f"INSERT INTO s.c VALUES ({number}, 'well')",
            f"UPDATE s.a SET small = small || 'é' WHERE {mine} AND id < {chance.randint(1, 40)}",
            f"UPDATE s.b SET small = 'seen' WHERE {mine}",
            f"DELETE FROM s.a WHERE {mine} AND id > {chance.randint(1, 60)}",
        ]
    )


def _peek_in_blocks(connection: psycopg.Connection, when: LiteralString = "immediate") -> list[bytes]:
    connection.execute(f"SET debug_logical_replication_streaming = {when}")
    arguments = (
        f"'{SLOT}', NULL, NULL, 'proto_version', '2', 'streaming', 'on', 'messages', 'true', 'publication_names', 'p'"
    )
    query = f"SELECT data FROM pg_logical_slot_peek_binary_changes({arguments})"
    return [row[0] for row in connection.execute(query, binary=True)]


def _all_announced(xids: Collection[int]) -> Collection[int]:
    """The server has said of each subtransaction that was rolled back that it was."""
    return ()


def _pieces(messages: list[bytes], chance: random.Random) -> Iterator[pa.Array]:
    at = 0
    while at < len(messages):
        until = at + chance.randint(1, 60)
        yield pa.array(messages[at:until], pa.binary())
        at = until


def _undescribed(messages: list[bytes]) -> list[bytes]:
    """Without descriptions of relations and types, which come again in each streamed transaction, and empty ones."""
    kept: list[bytes] = []
    for message in messages:
        if message[:1] == b"C" and kept and kept[-1][:1] == b"B":
            kept.pop()
        elif message[:1] not in (b"R", b"Y"):
            kept.append(message)
    return kept


def _decoded(messages: list[bytes]) -> object:
    decoder = Decoder(XID_REFERENCE, named(by_oid(messages, {("s", "a"): ("id",)})))
    return by_table(rows_of(decoder.feed(pa.array(messages, pa.binary()))))
