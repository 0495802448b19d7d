"""Who has read personal data is written down, outside Trino and past its restart."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.access.rules import OWN, RULES, Relation, rules
from lakehouse.files.private_files import write_shared
from lakehouse.servers.reads import not_for_readers
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_stack.control.start_stop import running, up
from lakehouse_stack.servers.reads import log_file
from tests.slots import until
from tests.test_access import ADDRESS, eventually

pytestmark = pytest.mark.stack

SCHEMA = f"read_{uuid.uuid4().hex[:8]}"  # a home that is kept has the log of earlier sessions
RELATIONS = (
    Relation(SCHEMA, "people", "reader", frozenset({"email"})),
    Relation(SCHEMA, "shown", "reader", frozenset({"email"})),
    Relation(SCHEMA, "sat_pii", "privacy"),
)


@pytest.fixture(scope="module")
def people(settings: Settings) -> Iterator[Settings]:
    """A table with a personal column, a view of it, a personal satellite."""
    assert settings.trino.access is not None
    file = settings.trino.access / RULES
    before = file.read_text()
    query(settings, f"CREATE SCHEMA {SCHEMA}")
    query(settings, f"CREATE TABLE {SCHEMA}.people AS SELECT 1 AS id, '{ADDRESS}' AS email, 'Brno' AS city")
    query(settings, f"CREATE TABLE {SCHEMA}.sat_pii AS SELECT id, email FROM {SCHEMA}.people")
    query(settings, f"CREATE VIEW {SCHEMA}.shown SECURITY DEFINER AS SELECT * FROM {SCHEMA}.people")
    write_shared(file, json.dumps(rules(RELATIONS)))
    try:
        eventually(lambda: query(settings, f"SELECT id FROM {SCHEMA}.people", role="reader"))
        yield settings
    finally:
        write_shared(file, before)
        query(settings, f"DROP SCHEMA {SCHEMA} CASCADE")


def lines(settings: Settings, user: str) -> list[dict[str, Any]]:
    text = log_file(settings.home).read_text()
    return [line for line in map(json.loads, text.splitlines()) if line.get("user") == user]


def logged(settings: Settings, user: str, table: str) -> list[dict[str, Any]]:
    return [
        {**entry, "user": line["user"], "at": line["at"]}
        for line in lines(settings, user)
        for entry in line["tables"]
        if entry["table"] == table
    ]


def test_who_reads_personal_data_is_logged_with_table_and_columns(people: Settings) -> None:
    """Only the text of the last fifty queries was to be had, until Trino stopped."""
    query(people, f"SELECT count(*) FROM {SCHEMA}.people WHERE email LIKE 'a%'", role="privacy")
    query(people, f"SELECT * FROM {SCHEMA}.shown", role="privacy")
    query(people, f"SELECT * FROM {SCHEMA}.sat_pii", role="privacy")
    query(people, f"SELECT id, city FROM {SCHEMA}.people", role="reader")
    until(lambda: logged(people, "privacy", f"{SCHEMA}.sat_pii"), 30)
    (pii,) = logged(people, "privacy", f"{SCHEMA}.sat_pii")
    assert pii["columns"] == ["email", "id"] and pii["hidden"] == ["*"] and pii["at"]
    first, second = logged(people, "privacy", f"{SCHEMA}.people")
    assert first["columns"] == ["email"] and first["hidden"] == ["email"]
    assert second["columns"] == ["city", "email", "id"], "through a view"
    assert not logged(people, "reader", f"{SCHEMA}.people"), "what everybody may read is no news"
    text = log_file(people.home).read_text()
    assert ADDRESS not in text and "LIKE" not in text
    assert Path(log_file(people.home)).stat().st_mode & 0o077 == 0


def test_a_query_that_its_reader_cancels_is_logged(people: Settings) -> None:
    from lakehouse.servers.trino import connect

    before = len(logged(people, "privacy", f"{SCHEMA}.sat_pii"))
    cursor = connect(people, "privacy").cursor()
    cursor.execute(
        f"SELECT s.email FROM {SCHEMA}.sat_pii s, UNNEST(sequence(1, 10000)) a(n), UNNEST(sequence(1, 10000)) b(m)"
    )
    assert cursor.fetchone() == [ADDRESS]
    cursor.cancel()
    until(lambda: len(logged(people, "privacy", f"{SCHEMA}.sat_pii")) > before, 30)


def test_the_rules_say_what_readers_may_not_see() -> None:
    made = rules((*OWN, *RELATIONS))
    assert not_for_readers(made, "lake", SCHEMA, "people", ["id", "email"]) == ["email"]
    assert not_for_readers(made, "lake", SCHEMA, "people", ["id"]) == []
    assert not_for_readers(made, "lake", SCHEMA, "sat_pii", ["id"]) == ["*"]
    assert not_for_readers(made, "lake", "raw_shop", "orders", ["id"]) == ["*"]
    assert not_for_readers(made, "lake", "meta", "cuts", ["source"]) == []


@pytest.mark.slow
def test_a_restart_of_trino_is_in_the_log(people: Settings) -> None:
    """Its queries are gone with it, and the log says where they may be missing."""
    known = running(people, "trino")
    assert known is not None
    query(people, f"SELECT email FROM {SCHEMA}.people", role="privacy")
    until(lambda: logged(people, "privacy", f"{SCHEMA}.people"), 30)
    before = len(lines(people, "privacy"))
    known.kill()
    up(people)
    query(people, f"SELECT email FROM {SCHEMA}.people", role="privacy")
    until(lambda: len(lines(people, "privacy")) > before, 60)
    assert '"event": "Trino was started anew' in log_file(people.home).read_text()
