"""The decoder on a real Postgres 18: every scenario anew, and a random workload read in small batches."""

import random

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
from pgoutput_record import SLOT, peek, record, scratch_database
from pgoutput_reference import ReferenceDecoder
from pgoutput_scenarios import SCENARIOS
from pgoutput_support import XID_REFERENCE, Keys, assert_agrees, by_oid, by_table, named, rows_of
from test_pgoutput_facts import replay

from ingestion.schema.changes import Batch
from ingestion.sources.postgres.pgoutput import Decoder

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_decodes_like_the_reference(name: str, cluster: str) -> None:
    recorded = record(cluster, SCENARIOS[name])
    assert assert_agrees([bytes.fromhex(message) for message in recorded["messages"]], SCENARIOS[name].keys)


TABLES = {
    "plain": "CREATE TABLE s.plain (id int PRIMARY KEY, small text, big text)",
    "full": "CREATE TABLE s.full (id int PRIMARY KEY, small text, big text)",
}
KEYS = {("s", name): ("id",) for name in TABLES}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_workload_replays_to_the_tables_state(seed: int, cluster: str) -> None:
    with scratch_database(cluster) as database, psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA s")
        for name, statement in TABLES.items():
            connection.execute(statement)
            connection.execute(f"ALTER TABLE s.{name} ALTER big SET STORAGE EXTERNAL")
        connection.execute("ALTER TABLE s.full REPLICA IDENTITY FULL")
        connection.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        _work(connection, random.Random(seed))
        messages = peek(connection)
        batches = _decode_in_small_batches(database, by_oid(messages, KEYS))
        expected = ReferenceDecoder(XID_REFERENCE, by_oid(messages, KEYS)).feed(messages)
        assert by_table(rows_of(batches)) == by_table(expected)
        for name in TABLES:
            rows = [row for row in rows_of(batches) if row["table"] == ("s", name)]
            held = [tuple(row.values()) for row in replay(rows, ("id",))]
            assert sorted(held) == sorted(connection.execute(f"SELECT id::text, small, big FROM s.{name}").fetchall())


def _work(connection: psycopg.Connection, chance: random.Random) -> None:
    for _ in range(150):
        with connection.transaction():
            for _ in range(chance.randint(1, 6)):
                connection.execute(_statement(chance))


def _statement(chance: random.Random) -> str:
    table, key = chance.choice(list(TABLES)), chance.randint(1, 30)
    big = chance.choice(["''", "'short'", f"repeat('{key}-', 1500)"])
    return chance.choice(
        [
            f"INSERT INTO s.{table} VALUES ({key}, 'new', {big}) ON CONFLICT (id) DO UPDATE SET small = 'met'",
            f"UPDATE s.{table} SET small = small || 'é' WHERE id BETWEEN {key} AND {key + 5}",
            f"UPDATE s.{table} SET id = {key + 40} WHERE id = {key} AND NOT EXISTS"
            f" (SELECT FROM s.{table} WHERE id = {key + 40})",
            f"UPDATE s.{table} SET big = {big} WHERE id = {key}",
            f"DELETE FROM s.{table} WHERE id = {key}",
            f"TRUNCATE s.{table}" if key == 1 else f"DELETE FROM s.{table} WHERE id = {key + 40}",
        ]
    )


def _decode_in_small_batches(database: str, keys: Keys) -> list[Batch]:
    arguments = f"'{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', 'p'"
    decoder, batches = Decoder(XID_REFERENCE, named(keys)), []
    with adbc.connect(database) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": "10000"})
        cursor.execute(f"SELECT data FROM pg_logical_slot_peek_binary_changes({arguments})")
        reader = cursor.fetch_record_batch()
        pieces = 0
        for piece in reader:
            batches += decoder.feed(piece.column(0))
            pieces += 1
    assert pieces > 10
    assert not decoder.in_transaction
    return batches
