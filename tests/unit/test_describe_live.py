"""What the source's catalog says of types that a user made, and of replica identities, asked of a real Postgres 18."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from pgoutput_record import scratch_database
from pydantic import SecretStr

from ingestion.pipeline.survey import declared_fingerprint
from ingestion.schema.evolve import name_columns, resync_reason
from ingestion.schema.problem import TableProblem
from ingestion.sources.kinds import source_of
from ingestion.sources.postgres import connection as source_connection
from ingestion.sources.postgres.catalog.describe import describe, fingerprints, read_facts
from ingestion.sources.postgres.catalog.enforced import check_key_is_one
from ingestion.sources.postgres.connection import create_slot, peek
from ingestion.sources.postgres.pgoutput.relations import parse_relation
from ingestion.sources.postgres.points import Patience
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings, load_settings
from scaffold.propose import read_tables

pytestmark = pytest.mark.stack
TABLE = RawTable(
    source="shop", name="items", description="", columns=(), raw=RawPolicy(relation="public.items", key=("id",)),
    load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b mood);
CREATE TYPE span AS RANGE (subtype = mood);
CREATE DOMAIN moods AS mood[];
CREATE DOMAIN price AS numeric(8,2);
CREATE DOMAIN dear AS price CHECK (VALUE > 1);
CREATE DOMAIN image AS bytea;
CREATE TABLE items (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE items
"""


@pytest.fixture
def connection(cluster: str) -> Iterator[psycopg.Connection[Any]]:
    with scratch_database(cluster) as database, psycopg.connect(database, autocommit=True) as connection:
        for statement in SETUP.split(";\n"):
            connection.execute(statement)
        yield connection


@pytest.mark.parametrize(
    ("kind", "alter", "needs_resync"),
    [
        *((kind, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", True)
          for kind in ("mood", "mood[]", "moods", "pair", "pair[]", "span", "span_multirange")),
        ("mood", "ALTER TYPE mood ADD VALUE 'calm' BEFORE 'happy'", False),
        ("pair", "ALTER TYPE pair ADD ATTRIBUTE c int", True),
        ("pair", "ALTER TYPE pair DROP ATTRIBUTE a", True),
        ("pair", "ALTER TYPE pair ADD ATTRIBUTE c int; ALTER TYPE pair DROP ATTRIBUTE c", True),
        ("moods", "ALTER TYPE mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE mood RENAME VALUE 'x' TO 'sad'", True),
        ("pair", "ALTER TYPE pair RENAME ATTRIBUTE a TO z", False),
        ("cidr", "ALTER TABLE items ALTER v TYPE inet", True),
        ("int", "ALTER TABLE items ALTER v TYPE oid", True),
        ("varchar(5)", "ALTER TABLE items ALTER v TYPE text", False),
        ("varchar(5)", "ALTER TABLE items ALTER v TYPE varchar(9)", False),
        ("dear", "ALTER DOMAIN dear ADD CHECK (VALUE < 100)", False),
    ],
)  # fmt: skip
def test_a_type_that_is_altered_without_a_rewrite_is_noticed(
    connection: psycopg.Connection[Any], kind: str, alter: str, needs_resync: bool
) -> None:
    connection.execute(f"ALTER TABLE items ADD v {kind}")
    before, digest = name_columns(TABLE, None, describe(connection, TABLE, "p")), fingerprints(connection, [TABLE], "p")
    assert fingerprints(connection, [TABLE], "p") == digest
    connection.execute(alter)
    now = name_columns(TABLE, before, describe(connection, TABLE, "p"))
    assert now.filenode == before.filenode, "nothing was rewritten"
    assert (resync_reason(before, now) is not None) == needs_resync
    assert (fingerprints(connection, [TABLE], "p") != digest) >= needs_resync


def test_a_label_that_came_later_is_known_too(connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE items ADD v mood")
    connection.execute("ALTER TYPE mood ADD VALUE 'calm'")
    before, digest = name_columns(TABLE, None, describe(connection, TABLE, "p")), fingerprints(connection, [TABLE], "p")
    connection.execute("ALTER TYPE mood RENAME VALUE 'calm' TO 'easy'")
    assert fingerprints(connection, [TABLE], "p") != digest
    assert resync_reason(before, name_columns(TABLE, before, describe(connection, TABLE, "p")))


ROOT = """
CREATE TABLE items (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (10);
CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE items_21 PARTITION OF items_2 FOR VALUES FROM (10) TO (20);
CREATE PUBLICATION p FOR TABLE items WITH (publish_via_partition_root)
"""
OWN = """
CREATE TABLE items (id int NOT NULL, day int NOT NULL, v int) PARTITION BY RANGE (day);
CREATE TABLE items_1 PARTITION OF items (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10);
CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (day);
CREATE TABLE items_21 PARTITION OF items_2 (PRIMARY KEY (id)) FOR VALUES FROM (10) TO (20);
ALTER TABLE items REPLICA IDENTITY FULL;
ALTER TABLE items_1 REPLICA IDENTITY FULL;
ALTER TABLE items_21 REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE items WITH (publish_via_partition_root)
"""
BY_DAY = "CREATE UNIQUE INDEX by_day ON items (id, day); ALTER TABLE items REPLICA IDENTITY USING INDEX by_day"
LATE = ROOT.replace("PRIMARY KEY (id)", "PRIMARY KEY (id) DEFERRABLE") + (
    ";\nALTER TABLE items_1 REPLICA IDENTITY FULL;\nALTER TABLE items_21 REPLICA IDENTITY FULL"
)
PART = """
CREATE TABLE above (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE items PARTITION OF above FOR VALUES FROM (0) TO (10);
CREATE PUBLICATION p FOR TABLE items WITH (publish_via_partition_root)
"""
KEYLESS = """
CREATE TABLE items (id int, v int, w int) PARTITION BY RANGE (id);
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE TABLE items_1 PARTITION OF items (PRIMARY KEY (v)) FOR VALUES FROM (0) TO (10);
CREATE PUBLICATION p FOR TABLE items WITH (publish_via_partition_root)
"""


@pytest.mark.parametrize(
    ("ddl", "alter", "problem"),
    [
        (ROOT, "ALTER TABLE items_21 SET UNLOGGED", "partition public.items_21 is UNLOGGED"),
        (ROOT, "CREATE UNLOGGED TABLE items_3 PARTITION OF items FOR VALUES FROM (20) TO (30)",
         "partition public.items_3 is UNLOGGED"),
        (KEYLESS, "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; ALTER TABLE items_1 REPLICA"
         " IDENTITY FULL; CREATE FOREIGN TABLE items_3 PARTITION OF items FOR VALUES FROM (20) TO (30) SERVER s",
         "partition public.items_3 is a foreign table"),
        (KEYLESS, "ALTER TABLE items_1 REPLICA IDENTITY DEFAULT", "partition public.items_1 has a replica identity"),
        (KEYLESS, "ALTER TABLE items_1 REPLICA IDENTITY FULL", None),
        (SETUP, "CREATE TABLE child () INHERITS (items)", "rows of child too"),
        (PART, "ALTER PUBLICATION p ADD TABLE above", "publication 'p' publishes its rows as those of public.above"),
        (PART, "CREATE PUBLICATION other FOR TABLE above WITH (publish_via_partition_root)", None),
        (PART, "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE items, above", None),
        (OWN, "ALTER TABLE items_21 REPLICA IDENTITY DEFAULT",
         "partition public.items_21 has a replica identity of its own (id), narrower than that of public.items (FULL), "
         "and no unique index keeps its rows from having one declared key (id) within a transaction: "
         "ALTER TABLE public.items_21 REPLICA IDENTITY FULL, then"),
        (OWN, f"{BY_DAY}; ALTER TABLE items_1 REPLICA IDENTITY DEFAULT", "narrower than that of public.items (id, day"),
        (OWN, f"{BY_DAY}; ALTER TABLE items_1 REPLICA IDENTITY USING INDEX items_1_id_day_idx", None),
        (OWN, "ALTER TABLE items REPLICA IDENTITY DEFAULT",
         "declared key (id) is not within the replica identity (none): declare that key, or set REPLICA IDENTITY FULL, "
         "also of each partition (public.items_1 and 1 more), which does not inherit it"),
        (OWN, "ALTER TABLE items_1 REPLICA IDENTITY NOTHING", "items_1 has a replica identity of its own (none)"),
        (OWN, "ALTER TABLE items_1 DROP CONSTRAINT items_1_pkey, ADD PRIMARY KEY (id) DEFERRABLE,"
         " REPLICA IDENTITY DEFAULT", "items_1 has a replica identity of its own (none)"),
        (ROOT, "ALTER TABLE items_1 REPLICA IDENTITY FULL; ALTER TABLE items REPLICA IDENTITY FULL", None),
        (LATE, "SELECT", "declared key (id) is not within the replica identity (none)"),
        (LATE, "ALTER TABLE items REPLICA IDENTITY FULL", None),
    ],
)  # fmt: skip
def test_a_table_whose_changes_do_not_all_come_is_refused_by_name(
    cluster: str, ddl: str, alter: str, problem: str | None
) -> None:
    with scratch_database(cluster) as database, psycopg.connect(database, autocommit=True) as connection:
        for statement in ddl.split(";\n"):
            connection.execute(statement)
        digest = fingerprints(connection, [TABLE], "p")
        if ddl not in (KEYLESS, LATE):
            assert describe(connection, TABLE, "p").key == (() if ddl is OWN else ("id",))
        connection.execute(alter)
        if problem is None:
            describe(connection, TABLE, "p")
            return
        with pytest.raises(TableProblem, match=re.escape(problem)):
            describe(connection, TABLE, "p")
        assert ddl in (KEYLESS, LATE) or fingerprints(connection, [TABLE], "p") != digest


@pytest.mark.parametrize(
    ("alter", "key"),
    [
        ("ADD PRIMARY KEY (id)", ("id",)),
        ("ADD PRIMARY KEY (v, id)", ("v", "id")),
        ("ADD PRIMARY KEY (id) INCLUDE (v)", ("id",)),
        ("ADD PRIMARY KEY (id) DEFERRABLE", ()),
        ("ADD PRIMARY KEY (id), REPLICA IDENTITY FULL", ()),
        ("ADD PRIMARY KEY (id), REPLICA IDENTITY NOTHING", ()),
        ("ADD UNIQUE (v) INCLUDE (id), REPLICA IDENTITY USING INDEX items_v_id_key", ("v",)),
    ],
)
def test_a_replica_identity_is_what_postgres_takes_for_one(
    connection: psycopg.Connection[Any], alter: str, key: tuple[str, ...]
) -> None:
    connection.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD v int NOT NULL")
    connection.execute(f"ALTER TABLE items {alter}")
    facts, _ = read_facts(connection, TABLE, "p")
    assert facts is not None and facts.key == key
    connection.execute("SELECT pg_create_logical_replication_slot('told', 'pgoutput')")
    connection.execute("INSERT INTO items VALUES (1, 1)")
    sent = connection.execute(f"SELECT data FROM {peek('told', 'p', (1 << 63) - 1)}", binary=True).fetchall()
    (streamed,) = [parse_relation(message, 0) for (message,) in sent if message[:1] == b"R"]
    assert facts.identity == streamed.identity
    connection.execute("SELECT pg_drop_replication_slot('told')")


def test_a_domain_is_proposed_as_its_base_type(connection: psycopg.Connection[Any]) -> None:
    connection.execute("ALTER TABLE items ADD a dear, ADD b image, ADD c moods, ADD d varchar(3), ADD e mood")
    connection.execute("COMMENT ON COLUMN items.a IS 'What it costs.'")
    (found,) = read_tables(connection, ["public"])
    assert found.columns == (
        ("id", "integer", ""), ("a", "numeric(8,2)", "What it costs."), ("b", "bytea", ""), ("c", "mood[]", ""),
        ("d", "character varying(3)", ""), ("e", "mood", ""),
    )  # fmt: skip


@pytest.mark.parametrize(
    "alter",
    [
        "ALTER TABLE items ADD CONSTRAINT later UNIQUE USING INDEX one DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE items ALTER a DROP NOT NULL, ADD CONSTRAINT given NOT NULL a NOT VALID",
    ],
    ids=["checked at the end of a transaction", "of which NULLs may be there"],
)
def test_an_index_that_keeps_keys_apart_no_more_is_noticed(connection: psycopg.Connection[Any], alter: str) -> None:
    """It stays the index that it was: a row that took the key of another one was lost with that one's delete."""
    by_a = TABLE.model_copy(update={"raw": RawPolicy(relation="public.items", key=("a",))})
    connection.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD a int NOT NULL, REPLICA IDENTITY FULL")
    connection.execute("CREATE UNIQUE INDEX one ON items (a)")
    facts, digest = describe(connection, by_a, "p"), fingerprints(connection, [by_a], "p")
    assert facts.enforced_by
    connection.execute(alter)
    assert fingerprints(connection, [by_a], "p") != digest
    assert not describe(connection, by_a, "p").enforced_by


def test_a_table_is_proposed_by_the_key_that_its_updates_carry(connection: psycopg.Connection[Any]) -> None:
    """By the primary key it was refused at once: with USING INDEX neither updates nor deletes carry it."""
    connection.execute("ALTER TABLE items ADD a int NOT NULL, ADD b int NOT NULL, ADD c int NOT NULL, ADD UNIQUE (c)")
    connection.execute("CREATE UNIQUE INDEX told ON items (b, a) INCLUDE (c)")
    assert [(t.key, t.unique) for t in read_tables(connection, ["public"])] == [(("id",), (("c",),))]
    connection.execute("ALTER TABLE items REPLICA IDENTITY USING INDEX told")
    assert [(t.key, t.unique) for t in read_tables(connection, ["public"])] == [(("b", "a"), (("id",), ("c",)))]
    connection.execute("DROP INDEX told")
    assert [t.key for t in read_tables(connection, ["public"])] == [("id",)], "which no update carries: it is unfit"


def test_waiting_for_a_slot_leaves_the_connection_its_lock_timeout(cluster: str) -> None:
    """The follower's own connection makes the slot; without the limit it would wait for an open DDL without an end."""
    settings = cast(Settings, SimpleNamespace(ingestion=SimpleNamespace(wait_seconds=60)))
    with psycopg.connect(f"{cluster}?options=-c%20lock_timeout%3D60000", autocommit=True) as connection:
        create_slot(connection, "made_in_a_test", Patience(settings, "shop", 60).execute)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("1min",)
        connection.execute("SELECT pg_drop_replication_slot('made_in_a_test')")


def test_a_key_of_several_rows_is_told_with_the_query_that_shows_it_and_no_value(
    connection: psycopg.Connection[Any],
) -> None:
    """The keys, such as addresses of mail, were in the reason of the park: in alerts, at `/ready` and in the UI."""
    connection.execute("""ALTER TABLE items DROP CONSTRAINT items_pkey, ADD "e%s" text, REPLICA IDENTITY FULL""")
    table = TABLE.model_copy(update={"raw": RawPolicy(relation="public.items", key=("id", "e%s"))})
    connection.execute("INSERT INTO items VALUES (1, 'ann@example.org'), (1, 'bob@example.org')")
    facts = describe(connection, table, "p")
    check_key_is_one(connection, table, facts)
    connection.execute("INSERT INTO items VALUES (1, 'ann@example.org')")
    with pytest.raises(TableProblem) as refused:
        check_key_is_one(connection, table, facts)
    assert "ann" not in str(refused.value) and "one declared key (id, e%s)" in str(refused.value)
    [query] = re.findall(r"`(SELECT .*?)` shows the keys", str(refused.value))
    assert connection.execute(query.encode()).fetchall() == [(1, "ann@example.org", 2)]


PARTITIONED = """
CREATE TABLE events (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1);
CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2) PARTITION BY LIST (id);
CREATE TABLE events_2_1 PARTITION OF events_2 FOR VALUES IN (1);
ALTER PUBLICATION p ADD TABLE events;
ALTER PUBLICATION p SET (publish_via_partition_root = true)
"""
EVENTS = TABLE.model_copy(
    update={"name": "events", "raw": RawPolicy(relation="public.events", key=("id", "day"), exclude=())}
)


@pytest.fixture
def partitioned(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    for statement in PARTITIONED.split(";\n"):
        connection.execute(statement)
    return connection


def test_the_partitions_of_a_table_are_those_that_postgres_names(partitioned: psycopg.Connection[Any]) -> None:
    facts = describe(partitioned, EVENTS, "p")
    assert [leaf.name for leaf in facts.leaves] == ["public.events_1", "public.events_2_1"]
    tree = "SELECT relid::oid::int FROM pg_partition_tree('events') WHERE parentrelid IS NOT NULL ORDER BY 1"
    assert [oid for oid, _ in facts.edges or ()] == [oid for (oid,) in partitioned.execute(tree)]
    digest = fingerprints(partitioned, [EVENTS], "p")
    partitioned.execute("ALTER TABLE events_2_1 REPLICA IDENTITY FULL")
    assert fingerprints(partitioned, [EVENTS], "p") != digest


def test_who_alters_a_partition_holds_up_no_survey_of_its_source(
    partitioned: psycopg.Connection[Any], cluster: str
) -> None:
    """Each waited a minute for the partition, then failed: no table of the source was read, and nobody was named."""
    digest = fingerprints(partitioned, [EVENTS, TABLE], "p")
    partitioned.execute("SET lock_timeout = '2s'")
    with psycopg.connect(partitioned.info.dsn) as other:
        other.execute("ALTER TABLE events_2_1 ADD CHECK (v <> 'x')")
        assert fingerprints(partitioned, [EVENTS, TABLE], "p") == digest
        assert [leaf.has_rows for leaf in describe(partitioned, EVENTS, "p").leaves] == [False, True]


def test_who_alters_a_table_that_a_description_waits_for_is_named(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a publication has is told by a function that locks each table of it: the error named nobody."""
    connection.execute("CREATE TABLE others (id int); ALTER PUBLICATION p ADD TABLE others")
    of = SourceSettings(url=SecretStr(connection.info.dsn), publication="p")
    settings = load_settings().model_copy(update={"sources": {"shop": of}})
    monkeypatch.setitem(cast(Any, source_connection.PINNED), "lock_timeout", "500")
    with psycopg.connect(connection.info.dsn) as other, source_of(settings, "shop").open() as opened:
        other.execute("ALTER TABLE others ADD v text")
        with pytest.raises(
            LakehouseError, match=rf"held up by process {other.info.backend_pid} .*pg_terminate_backend"
        ):
            opened.inspect(TABLE, None)
        other.rollback()
        assert opened.inspect(TABLE, None)[1] is None


def test_a_partition_under_row_level_security_may_have_rows_and_stops_no_other_table(
    partitioned: psycopg.Connection[Any],
) -> None:
    """Asking for its rows was refused, which no problem of the table told: every survey of the source failed."""
    for statement in (
        "ALTER TABLE events_2_1 ENABLE ROW LEVEL SECURITY", "DROP ROLE IF EXISTS only_reads", "CREATE ROLE only_reads",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO only_reads", "SET ROLE only_reads", "SET row_security = off",
    ):  # fmt: skip
        partitioned.execute(statement)
    facts, problem = read_facts(partitioned, EVENTS, "p")
    assert facts is not None and problem is None
    assert [(leaf.name, leaf.has_rows) for leaf in facts.leaves] == [
        ("public.events_1", False),
        ("public.events_2_1", True),
    ]
    for statement in ("RESET ROLE", "DROP OWNED BY only_reads", "DROP ROLE only_reads"):
        partitioned.execute(statement)


def test_updates_that_no_publication_carries_are_asked_for_once_they_are_declared(
    connection: psycopg.Connection[Any],
) -> None:
    """`changes: inserts` was withdrawn, and updates and deletes went on to be missing without a word."""
    connection.execute("ALTER PUBLICATION p SET (publish = 'insert, truncate')")
    inserts, whole = (
        TABLE.model_copy(update={"raw": TABLE.raw.model_copy(update={"changes": changes})})
        for changes in ("inserts", "all")
    )
    was, now = (declared_fingerprint(t, fingerprints(connection, [t], "p")["items"]) for t in (inserts, whole))
    assert was != now and read_facts(connection, inserts, "p")[1] is None
    assert "leaves out updates and deletes" in str(read_facts(connection, whole, "p")[1])
