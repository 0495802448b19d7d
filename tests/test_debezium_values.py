"""Values that Debezium, or the converter, does not say as the database has them."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ingestion import replay as ingest_replay
from ingestion.sources.debezium.behind import check_behind
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium
from tests.test_kafka import kept
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]
Tables = dict[str, tuple[tuple[str, ...], dict[str, str]]]
DDL = """
CREATE TABLE urls (url text PRIMARY KEY, n int, pad text);
CREATE TABLE whole (url text PRIMARY KEY, n int, pad text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE dull (id int PRIMARY KEY, t text DEFAULT 'x', n int DEFAULT 5, p numeric(10,2) DEFAULT 1.5,
  b boolean DEFAULT true, m int NOT NULL DEFAULT 7, plain text)
"""
OF_ARRAYS = """
CREATE TABLE vectors (id int PRIMARY KEY, k int, v real[], u uuid[]);
ALTER TABLE vectors REPLICA IDENTITY FULL, ALTER v SET STORAGE EXTERNAL, ALTER u SET STORAGE EXTERNAL;
CREATE TABLE lost (LIKE vectors INCLUDING ALL)
"""
ARRAYS: Tables = {
    name: (("id",), {"id": "integer", "k": "integer", "v": "jsonb", "u": "jsonb"}) for name in ("vectors", "lost")
}
URL = {"url": "text", "n": "integer", "pad": "text"}
TABLES: Tables = {
    "urls": (("url",), URL), "whole": (("url",), URL),
    "dull": (("id",), {"id": "integer", "t": "text", "n": "integer", "p": "numeric(10,2)", "b": "boolean",
                       "m": "integer", "plain": "text"}),
}  # fmt: skip

KEPT = {"value.converter.replace.null.with.default": "false"}
INSERTED = "INSERT INTO dull VALUES ({0}, NULL, NULL, NULL, NULL, 7, NULL)", "INSERT INTO dull (id) VALUES (1{0})"


@pytest.fixture
def made(settings: Settings, broker: Broker, connect: Connect) -> Iterator[Callable[..., tuple[World, Topics]]]:
    """A database with the tables, rows in one of them, and the source of the topics of a connector with options."""
    with ExitStack() as stack:

        def make(ddl: str = DDL, tables: Tables = TABLES, **options: str) -> tuple[World, Topics]:
            policies = {name: RawPolicy(relation=f"public.{name}", key=key) for name, (key, _) in tables.items()}
            world = make_world(settings, ddl, policies)
            world.sql(*(statement.format(2) for statement in INSERTED if "dull" in tables))
            prefix, url = world.source.name, world.settings.source(world.source.name).url
            given = connector(url.get_secret_value(), prefix, "public.*", schemas=True)
            fixed = {"publication.name": "lakehouse", "publication.autocreate.mode": "disabled"}
            connect.run(prefix, given | fixed | options)
            stack.callback(connect.asked, "DELETE", f"/connectors/{prefix}")
            slots = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{prefix}' AND active"
            connect.until(lambda: bool(world.rows(slots)))
            topics = make_debezium(world, broker, tables, url=url)
            stack.callback(drop_lake_of, topics)
            return world, topics

        yield make


def until_equal(world: World, topics: Topics, spark: Any) -> None:
    topics.until_there(TABLES)
    deadline = time.monotonic() + 90
    while True:
        topics.ingest(spark)
        found, wanted = {}, {}
        for name, (_, columns) in TABLES.items():
            found[name] = {tuple(row[c] for c in columns) for row in topics.current(name).values()}
            wanted[name] = {*world.rows(f"SELECT {', '.join(columns)} FROM {name}")}
        if found == wanted or time.monotonic() > deadline:
            assert found == wanted
            return
        time.sleep(0.3)


def test_a_null_in_a_column_with_a_default_is_null_where_the_converter_says_so(
    made: Callable[..., tuple[World, Topics]], spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And a key that is stored apart (a text of 2 kB), which Debezium fills in where an update does not carry it."""
    world, topics = made(**KEPT)
    for table in ("urls", "whole"):
        one, other = secrets.token_hex(1300), secrets.token_hex(1300)
        world.sql(
            f"INSERT INTO {table} VALUES ('{one}', 1, repeat('p', 500)), ('{other}', 1, 'q')",
            f"UPDATE {table} SET n = 2", f"UPDATE {table} SET n = 3 WHERE url = '{one}'",
            f"DELETE FROM {table} WHERE url = '{other}'",
        )  # fmt: skip
    world.sql(*(statement.format(3) for statement in INSERTED), "UPDATE dull SET n = NULL WHERE id = 12")
    until_equal(world, topics, spark)
    assert "comes as the column's default" not in caplog.text


def test_what_the_database_tells_of_mistakes_is_told_by_the_check(
    made: Callable[..., tuple[World, Topics]], spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, topics = made()
    topics.until_there(["dull"])
    world.sql(*(statement.format(3) for statement in INSERTED))
    deadline = time.monotonic() + 60
    while len(topics.raw("dull")) < 4:
        assert time.monotonic() < deadline
        topics.ingest(spark)
    assert "a NULL in b, n, p, t comes as the column's default" in caplog.text
    [finding] = check_behind(topics.settings, topics.source)
    assert (finding.table, finding.about) == ("dull", "nulls") and "a NULL in b, n, p, t comes" in finding.says
    world.sql(
        "ALTER TABLE dull ALTER n TYPE bigint, ALTER p TYPE numeric(12,4)",
        "ALTER TABLE urls ADD k int NOT NULL UNIQUE",
        "ALTER TABLE urls REPLICA IDENTITY USING INDEX urls_k_key", "DROP TABLE whole",
    )  # fmt: skip
    found = {(f.table, f.about): f.says for f in check_behind(topics.settings, topics.source)}
    assert found.keys() == {("dull", "types"), ("dull", "nulls"), ("urls", "key"), ("whole", "relation")}
    assert found["dull", "types"] == (
        "n is bigint and declared as integer; p is numeric(12,4) and declared as numeric(10,2)"
    )
    assert "do not tell url, which the declared key has: the replica identity has k" in found["urls", "key"]


def test_a_large_array_that_an_update_did_not_carry_is_kept_or_told_of(
    made: Callable[..., tuple[World, Topics]], spark: Any
) -> None:
    """Debezium writes NULL for one of floats, unless the row before has it all, and a placeholder for one of UUIDs."""
    world, topics = made(OF_ARRAYS, ARRAYS, **KEPT)
    large = "array_fill(0.5::real, ARRAY[3000]), array_fill('6f9619ff-8b86-d011-b42d-00cf4fc964ff'::uuid, ARRAY[3000])"
    for name in ARRAYS:
        world.sql(
            f"INSERT INTO {name} VALUES (1, 1, {large}), (2, 1, '{{0.25}}', NULL)",
            f"UPDATE {name} SET k = 2 WHERE id = 2", f"UPDATE {name} SET k = 2 WHERE id = 1",
        )  # fmt: skip
    topics.until_there(ARRAYS)
    deadline = time.monotonic() + 60
    while len(topics.raw("vectors")) < 4 or not kept(topics, "quarantine"):
        assert time.monotonic() < deadline
        topics.ingest(spark)
    row = topics.current("vectors")[1,]
    assert (row["k"], json.loads(row["v"]), len(json.loads(row["u"]))) == (2, [0.5] * 3000, 3000)
    row = topics.current("lost")[1,]
    assert (row["k"], len(json.loads(row["v"])), len(json.loads(row["u"]))) == (1, 3000, 3000)
    assert topics.current("lost")[2,]["k"] == 2
    [poison] = kept(topics, "quarantine")
    assert "column v: it says NULL, as Debezium also does for a large array" in poison["reason"]
    narrow = tuple(
        t.model_copy(update={"columns": tuple(c for c in t.columns if c.name != "v")}) for t in topics.source.tables
    )
    less = replace(topics, source=topics.source.model_copy(update={"tables": narrow}))
    less.ingest(spark)  # which notices what is declared now
    ingest_replay(less.settings, less.declarations, less.source.name, ["lost"], spark)
    last = less.raw("lost")[-1]
    assert (last["k"], last["_unchanged"]) == (2, ["u"]) and kept(less, "quarantine") == []
