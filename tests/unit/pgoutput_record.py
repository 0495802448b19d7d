"""Record the scenarios from a real Postgres.

`python tests/unit/pgoutput_record.py <superuser URL>` writes the fixtures anew (wal_level = logical, Postgres 18).
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from pgoutput_scenarios import SCENARIOS, Scenario
from pgoutput_support import FIXTURES
from psycopg import sql

DATABASE = "record_pgoutput"
SLOT = "record_pgoutput"
PINNED = "-c datestyle=ISO -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1 -c client_encoding=UTF8"


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """An empty database, dropped afterwards."""
    with psycopg.connect(url, autocommit=True) as server:
        _drop(server)
        server.execute(f"CREATE DATABASE {DATABASE}")
        try:
            yield psycopg.conninfo.make_conninfo(url, dbname=DATABASE, options=PINNED)
        finally:
            _drop(server)


def _drop(server: psycopg.Connection) -> None:
    """Drops the database with its slot, once the process that has read a slot has ended."""
    deadline = time.monotonic() + 30
    while True:
        try:
            slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
            server.execute(slots, [SLOT])
            server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def record(url: str, scenario: Scenario) -> dict[str, Any]:
    """Run a scenario in a fresh database: its messages, keys and final state as the fixture file holds them."""
    with scratch_database(url) as database, psycopg.connect(database, autocommit=True) as first:
        first.execute("CREATE SCHEMA s")
        for statement in scenario.setup:
            first.execute(statement)
        first.execute(f"CREATE PUBLICATION p FOR {scenario.published}")
        first.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        _run(database, first, scenario.steps)
        return {
            "keys": {"|".join(table): key for table, key in scenario.keys.items()},
            "state": _state(first),
            "messages": [message.hex() for message in peek(first, scenario.options)],
        }


def peek(connection: psycopg.Connection, options: str = "") -> list[bytes]:
    """Everything in the slot."""
    arguments = f"'{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', 'p'{options}"
    query = f"SELECT data FROM pg_logical_slot_peek_binary_changes({arguments})"
    return [row[0] for row in connection.execute(query, binary=True)]


def _run(database: str, first: psycopg.Connection, steps: tuple[str, ...]) -> None:
    with psycopg.connect(database, autocommit=True) as second:
        for step in steps:
            if step.startswith("COPY"):
                statement, data = step.split("\n", 1)
                with first.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.write(data)
            elif step.startswith("2:"):
                second.execute(step[2:])
            else:
                first.execute(step)


def _state(connection: psycopg.Connection) -> dict[str, list[dict[str, str | None]]]:
    tables = connection.execute("SELECT DISTINCT schemaname, tablename FROM pg_publication_tables ORDER BY 1, 2")
    return {f"{schema}|{name}": _rows(connection, schema, name) for schema, name in tables.fetchall()}


def _rows(connection: psycopg.Connection, schema: str, name: str) -> list[dict[str, str | None]]:
    table = sql.Identifier(schema, name)
    described = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table)).description or ()
    if not described:
        return []
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY (SELECT * FROM {}) TO STDOUT").format(table)) as copy:
        return [{c.name: _text(v) for c, v in zip(described, row, strict=True)} for row in copy.rows()]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def main() -> None:
    """Write all fixtures."""
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for name, scenario in SCENARIOS.items():
        path = FIXTURES / f"{name}.json"
        path.write_text(json.dumps(record(sys.argv[1], scenario), indent=1, ensure_ascii=False) + "\n")
        print(path)


if __name__ == "__main__":
    main()
