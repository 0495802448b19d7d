"""Tables and partitions with replica identities at random, on each version of Postgres: what ingestion accepts lands
right without a resync, what it refuses is accepted once its remedies are taken, and an identity of a while is noticed.

`RANDOM_SEED` begins with another seed, `RANDOM_TABLES` sets how many tables there are.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors
from test_shared_keys_live import VERSIONS, Source, assert_right_after_each_commit, make_lake, messages_of, take

from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.postgres.catalog.describe import describe
from ingestion.tasks.lanes import Findings
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import RawPolicy
from tests.clusters import Cluster, cluster
from tests.marks import slow
from tests.world import declared_source

pytestmark = pytest.mark.stack
SEED, TABLES, TRANSACTIONS = int(os.environ.get("RANDOM_SEED", "1")), int(os.environ.get("RANDOM_TABLES", "25")), 40
LEAVES = ("items_1", "items_21", "items_22", "items_3")
KEYS = ("id", "id, day", "day, id")
INDEXES = """
SELECT i.indexrelid::regclass::text FROM pg_index i WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indimmediate
  AND i.indisvalid ORDER BY 1
"""
REFUSED = (errors.UniqueViolation, errors.ObjectInUse, errors.ObjectNotInPrerequisiteState)


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as made:
        yield made


@dataclass
class Parted(Source):
    """Rows of one key pass from partition to partition; an application's statements that fail are rolled back."""

    alters: bool = False
    altered: list[str] = field(default_factory=list)  # what takes back the alterations, one after the other

    def _alteration(self) -> str:
        """For a while, a partition or the table has another replica identity."""
        if len(self.altered) % 2:
            self.altered.append("")
            return self.altered[-2]
        name = self.chance.choice(["items", *LEAVES])
        self.altered.append(self._one(identity_of(name)))
        return an_identity(self.chance, self.connection, name)

    def _statement(self) -> None:
        statement = self._alteration() if self.alters and self.chance.random() < 0.1 else self._any()
        try:
            with self.connection.transaction():
                self.connection.execute(statement)  # type: ignore[arg-type]
        except REFUSED:
            pass

    def _any(self) -> str:
        self.number += 1
        (one, other), day = self.chance.sample(range(1, 5), 2), self.chance.randint(0, 3)
        value = self.chance.choice(["'x'", f"'v{self.number}'"])
        return self.chance.choices(
            [
                f"INSERT INTO items VALUES ({one}, {day}, {value})",
                f"UPDATE items SET v = {value} WHERE id = {one}",
                f"UPDATE items SET v = {value} WHERE id = {one} AND day = {day}",
                f"UPDATE items SET day = {day} WHERE id = {one}",
                f"UPDATE items SET id = {other} WHERE id = {one}",
                f"UPDATE items SET id = {other} WHERE id = {one} AND day = {day}",
                f"UPDATE items SET id = CASE id WHEN {one} THEN {other} ELSE {one} END WHERE id IN ({one}, {other})",
                f"DELETE FROM items WHERE id = {one}",
                f"DELETE FROM items WHERE id = {one} AND day = {day}",
                f"DELETE FROM items WHERE v = {value}",
                "TRUNCATE items",
            ],
            [8, 2, 3, 3, 2, 2, 1, 2, 4, 1, 0.2],
        )[0]


def a_table(chance: random.Random) -> list[str]:
    """The statements that make a partitioned table."""
    late = chance.choice(["", "", "", " DEFERRABLE", " DEFERRABLE INITIALLY DEFERRED"])
    by, key = chance.choice([("day", "id, day"), ("day", "day, id"), ("id", "id"), ("id", "id, day")])
    whole = chance.choice(["", "", f", PRIMARY KEY ({key}){late}", f", UNIQUE ({key}){late}"])
    other = "id" if by == "day" or key == "id" else "day"
    made = [
        f"CREATE TABLE items (id int NOT NULL, day int NOT NULL, v text{whole}) PARTITION BY RANGE ({by})",
        "CREATE TABLE items_1 PARTITION OF items{} FOR VALUES FROM (0) TO (2)",
        f"CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (2) TO (3) PARTITION BY RANGE ({other})",
        "CREATE TABLE items_21 PARTITION OF items_2{} FOR VALUES FROM (0) TO (3)",
        "CREATE TABLE items_22 PARTITION OF items_2{} DEFAULT",
        "CREATE TABLE items_3 PARTITION OF items{} DEFAULT",
    ]
    return [statement.format(_own_key(chance, whole)) for statement in made]


def _own_key(chance: random.Random, whole: str) -> str:
    kinds = ["", "UNIQUE ({})", "UNIQUE ({}) INCLUDE (v)"]
    if "PRIMARY" not in whole:
        kinds += ["PRIMARY KEY ({})", "PRIMARY KEY ({})", "PRIMARY KEY ({}) INCLUDE (v)", "PRIMARY KEY ({}) DEFERRABLE"]
    kind = chance.choice(kinds).format(chance.choice(KEYS))
    return f" ({kind})" if kind else ""


def an_identity(chance: random.Random, connection: psycopg.Connection[Any], name: str) -> str:
    """The statement that gives a table or a partition a replica identity."""
    ways = ["DEFAULT", "DEFAULT", "FULL", "FULL", *(["NOTHING"] if chance.random() < 0.1 else [])]
    ways += [f"USING INDEX {index}" for (index,) in connection.execute(INDEXES, [name]).fetchall()]
    return f"ALTER TABLE {name} REPLICA IDENTITY {chance.choice(ways)}"


def identity_of(name: str) -> str:
    """SQL for the statement that gives it the identity that it has."""
    index = "(SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = c.oid AND indisreplident)"
    how = f"CASE relreplident WHEN 'd' THEN 'DEFAULT' WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' ELSE {index} END"
    using = "CASE relreplident WHEN 'i' THEN 'USING INDEX ' ELSE '' END"
    alter = f"'ALTER TABLE {name} REPLICA IDENTITY ' || {using} || {how}"
    return f"SELECT {alter} FROM pg_class c WHERE oid = '{name}'::regclass"


def accepted(connection: psycopg.Connection[Any], table: RawTable) -> tuple[TableFacts, int]:
    """The table once its remedies were taken, and how many they were."""
    for taken in range(len(LEAVES) + 2):
        try:
            return name_columns(table, None, describe(connection, table, "p")), taken
        except TableProblem as problem:
            remedy = problem.says.rpartition(": ")[2].removesuffix(", then resume the table")
            if not remedy.startswith("ALTER TABLE"):
                assert "REPLICA IDENTITY FULL" in remedy or "DEFAULT or FULL" in remedy, problem.says
                remedy = "ALTER TABLE items REPLICA IDENTITY FULL"
            connection.execute(remedy)  # type: ignore[arg-type]
    raise AssertionError("its remedies do not help")


def history(connection: psycopg.Connection[Any], chance: random.Random, *, alters: bool) -> tuple[Parted, int]:
    """What is done to a table, and how many remedies it took to have it accepted."""
    for statement in a_table(chance):
        connection.execute(statement)  # type: ignore[arg-type]
    for name in ("items", *LEAVES):
        connection.execute(an_identity(chance, connection, name))  # type: ignore[arg-type]
    connection.execute("CREATE PUBLICATION p FOR TABLE items WITH (publish_via_partition_root = true)")
    policy = RawPolicy(relation="public.items", key=tuple(chance.choice(KEYS).split(", ")))
    table = declared_source("s", {"items": policy}).tables[0]
    facts, remedies = accepted(connection, table)
    connection.execute("SELECT pg_create_logical_replication_slot('slot_items', 'pgoutput')")
    source = Parted(connection, table, facts, chance, alters=alters)
    for _ in range(TRANSACTIONS):
        source.transact()
    return source, remedies


@pytest.mark.parametrize("alters", [slow(False), True])
def test_what_is_accepted_lands_right_and_an_identity_of_a_while_is_noticed(
    server: Cluster, tmp_path: Path, alters: bool
) -> None:
    refused = resynced = right = 0
    for seed in range(SEED, SEED + TABLES):
        name = f"identities_{seed}"
        server.admin(f"CREATE DATABASE {name}")
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            source, remedies = history(connection, random.Random(f"{seed} {alters}"), alters=alters)
            messages = pa.array(messages_of(source, unfinished=False), pa.binary())
            connection.execute("SELECT pg_drop_replication_slot('slot_items')")
        (folder := tmp_path / name).mkdir()
        lake = make_lake(folder, source)
        written, _, noticed = take(lake, lake.lanes(), iter([messages]))
        stale = noticed.get("items", Findings()).stale
        assert stale is None or source.altered, f"seed {seed}: {stale}"
        if stale is None:
            assert_right_after_each_commit(source, lake.rows(written))
        refused, resynced, right = refused + (remedies > 0), resynced + (stale is not None), right + (stale is None)
        server.admin(f"DROP DATABASE {name} WITH (FORCE)")
    assert refused and right and (resynced or not alters)
