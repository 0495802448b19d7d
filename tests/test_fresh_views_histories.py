"""Readers of fresh views through random histories: each read is a state that the source had, none older than the last.

Transactions, schema changes, pauses, snapshots made anew, recoveries, maintenance, faults and refreshes come in any
order, while Trino and Spark read all the time. `RANDOM_SEED` runs one seed, `ROUNDS` says how many steps.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from ingestion import pause, recover_source, resnapshot, resume
from ingestion.verify import reconcile_raw
from lakehouse.declarations.policies import MaintenancePolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS
from tests.fresh import is_fresh_view, is_short_view, make_views, name_of
from tests.mirrored import declaring_columns, refreshed, write_position_deletes
from tests.test_mirrors_random import POINTS as OF_REFRESHES
from tests.test_random import POINTS, Cut, cut_at
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = r"""
CREATE SCHEMA "Verkauf & Co";
CREATE DOMAIN "Verkauf & Co"."Betrag €" AS numeric(12,2);
CREATE TABLE "Verkauf & Co"."Bestell Zeilen" (
  "Kunden-Nr" uuid, "select" numeric, n bigint, "Größe" "Verkauf & Co"."Betrag €", "a ""b" text[],
   "GROSS" text, doppelt bigint GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY ("select", "Kunden-Nr"));
ALTER TABLE "Verkauf & Co"."Bestell Zeilen" ALTER "GROSS" SET STORAGE EXTERNAL, ALTER "a ""b" SET STORAGE EXTERNAL;
CREATE TABLE "Order" ("when" timestamptz, "Käse" text, n bigint, "group" bytea, PRIMARY KEY ("Käse", "when"))
  PARTITION BY HASH ("Käse");
CREATE TABLE order_0 PARTITION OF "Order" FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE order_1 PARTITION OF "Order" FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE "Order" ALTER "group" SET STORAGE EXTERNAL;
CREATE TABLE "Konto" ("Schlüssel" bytea PRIMARY KEY, n int, "Notiz" text);
ALTER TABLE "Konto" ALTER "Notiz" SET STORAGE EXTERNAL
"""
KEY = '"Schlüssel"'  # of the last one
LINES, ORDER, KONTO = '"Verkauf & Co"."Bestell Zeilen"', '"Order"', '"Konto"'
TABLES = {
    "lines": RawPolicy(relation=LINES, key=("select", "Kunden-Nr")),
    "orders": RawPolicy(relation=f"public.{ORDER}", key=("Käse", "when")),
    "konto": RawPolicy(relation=f"public.{KONTO}", key=("Schlüssel",)),
}
RELATIONS = {"lines": LINES, "orders": ORDER, "konto": KONTO}
SHOWN = {  # what is read of each in the source; of all of them the value only, in an order
    "lines": ("Kunden-Nr", "select", "n", "Größe", 'a "b', "GROSS"),
    "orders": ("when", "Käse", "n", "group"),
    "konto": ("Schlüssel", "n", "Notiz"),
}
LONG = "repeat(md5(random()::text), 200)"
ODD = r"""(ARRAY['', ' ', 'ä', 'a''b', E'\\', E'\n', 'NULL', '日本', '%_', E'\u0301e'])"""
SOON = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "keep_removed_hours": 1,
        "compact": {"target_file_size_mb": 1, "min_input_files": 2, "sort_by": []},
        "expire_snapshots": {"older_than_hours": 0.01, "retain_last": 1, "keep_metadata_files": 5},
    }
)
SEEDS = [int(os.environ["RANDOM_SEED"])] if "RANDOM_SEED" in os.environ else [1]
ROUNDS = int(os.environ.get("ROUNDS", "25"))


def same(value: Any) -> Any:
    """What three clients give for one value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    return None if value is None else str(value)


def rows_of(rows: Any) -> str:
    return repr(sorted(tuple("∅" if value is None else same(value) for value in row) for row in rows))


@dataclass
class Seen:
    """The states of one table, each after a commit."""

    states: list[str] = field(default_factory=list)

    def at(self, found: str, since: int) -> int | None:
        """Which one it is, not before that one."""
        try:
            return self.states.index(found, since)
        except ValueError:
            return None


@dataclass
class Life:
    """A source that is worked on, what its tables were, and what was done."""

    world: World
    spark: Any
    rng: random.Random
    seen: dict[str, Seen] = field(default_factory=lambda: {name: Seen() for name in TABLES})
    done: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    number: int = 0

    def note(self) -> None:
        """Keeps what the tables are now."""
        for name, relation_ in RELATIONS.items():
            columns = ", ".join(
                f"{psycopg.sql.Identifier(c).as_string()}" + ("::text" if c == 'a "b' else "") for c in SHOWN[name]
            )
            found = rows_of(self.world.rows(f"SELECT {columns} FROM {relation_}"))
            if not self.seen[name].states or self.seen[name].states[-1] != found:
                self.seen[name].states.append(found)

    def write(self, *statements: str) -> None:
        """One transaction, unless two keys become one."""
        with suppress(psycopg.errors.UniqueViolation), psycopg.connect(self.world.owner_url) as connection:
            for statement in statements:
                connection.execute(statement.encode())
        self.note()

    def transaction(self) -> None:
        """A random one."""
        self.number += 1
        n, rng = self.number, self.rng
        pick = rng.choice
        m = rng.randint(2, 6)
        inserts = [
            f"INSERT INTO {LINES} SELECT gen_random_uuid(), {n} + i / 8.0, {n}, i * 1.25, ARRAY['x', NULL, 'ä,\"'],"
             " 's' FROM generate_series(1, 3) i",
            f"INSERT INTO {ORDER} SELECT '2026-01-01Z'::timestamptz + {n} * interval '1.000001 s',"
             f" {ODD}[i], {n}, NULL FROM generate_series(1, 10) i",
            f"INSERT INTO {KONTO} SELECT decode(lpad(to_hex({n} * 8 + i), 6, '0'), 'hex'), {n}, 'ü'"
             " FROM generate_series(1, 4) i",
        ]  # fmt: skip
        small = [
            [f'UPDATE {LINES} SET n = {n}, "GROSS" = NULL, "a ""b" = NULL WHERE n % {m} = 0'],
            [f"DELETE FROM {LINES} WHERE n % {m} = 1"],
            [f'UPDATE {LINES} SET "select" = "select" + 1000, "GROSS" = NULL, "a ""b" = NULL WHERE n % {m} = 1'],
            [f'UPDATE {ORDER} SET n = {n} WHERE n % {m} = 0 AND "group" IS NULL'],
            [f"UPDATE {ORDER} SET \"Käse\" = \"Käse\" || 'x', n = {n} WHERE n % {m} = 1 AND \"group\" IS NULL"],
            [f"DELETE FROM {ORDER} WHERE n % {m} = 2"],
            [f'UPDATE {KONTO} SET n = {n}, "Notiz" = {n} WHERE n % {m} = 0'],
            [f"DELETE FROM {KONTO} WHERE n % {m} = 1"],
            [rf"""UPDATE {KONTO} SET {KEY} = {KEY} || '\x00', "Notiz" = NULL WHERE n % {m} = 1"""],
            [f"CREATE TEMP TABLE two ON COMMIT DROP AS SELECT (SELECT {KEY} FROM {KONTO} ORDER BY 1 LIMIT 1) AS a,"
             f" (SELECT {KEY} FROM {KONTO} ORDER BY 1 DESC LIMIT 1) AS b",
             rf"""UPDATE {KONTO} SET {KEY} = '\xffff', "Notiz" = '' WHERE {KEY} = (SELECT a FROM two)""",
             f"""UPDATE {KONTO} SET {KEY} = (SELECT a FROM two), "Notiz" = '' WHERE {KEY} = (SELECT b FROM two)""",
             rf"""UPDATE {KONTO} SET {KEY} = (SELECT b FROM two), "Notiz" = '' WHERE {KEY} = '\xffff'"""],
            [f"DELETE FROM {KONTO} WHERE n % 2 = 0", f"INSERT INTO {KONTO} VALUES (decode('{n:06x}', 'hex'), 2, 'neu')"
             " ON CONFLICT DO NOTHING"],
        ]  # fmt: skip
        large = [
            [f'UPDATE {LINES} SET "GROSS" = {LONG}, n = {n} WHERE n % {m} = 0'],
            [f"UPDATE {LINES} SET \"a \"\"b\" = ARRAY[{LONG}] WHERE n % {m} = 1"],
            [f"UPDATE {LINES} SET n = n + 1 WHERE n % {m} = 0"],
            [f'UPDATE {LINES} SET "select" = "select" + 0.5 WHERE n % {m} = 2'],
            [f"UPDATE {ORDER} SET \"group\" = decode({LONG}, 'hex'), n = {n} WHERE n % {m} = 0"],
            [f"UPDATE {ORDER} SET n = n + 1 WHERE n % {m} = 0"],
            [f'UPDATE {KONTO} SET "Notiz" = {LONG} WHERE n % {m} = 0'],
            [f"UPDATE {KONTO} SET n = n + 1 WHERE n % {m} = 0"],
            [rf"""UPDATE {KONTO} SET {KEY} = '\xfe' || {KEY} WHERE n % {m} = 0 AND length({KEY}) < 6"""],
        ]  # fmt: skip
        empty = [[f"TRUNCATE {pick([LINES, ORDER, KONTO])}"], [f"TRUNCATE {ORDER}, {KONTO}"]]
        changes = pick(rng.choices([small, large, empty], [20, 6, 1])[0])
        self.write(*changes, *rng.sample(inserts, rng.choice([0, 1, 1, 3])))

    def alter(self) -> None:
        """A random schema change, after which the columns that are shown are still there."""
        self.number += 1
        n = self.number
        table, column = self.rng.choice([LINES, ORDER, KONTO]), f'"Neu {n}"'
        self.write(
            *self.rng.choice(
                [
                    [f"ALTER TABLE {table} ADD {column} int"],
                    [f"ALTER TABLE {table} ADD {column} text DEFAULT 'x'"],
                    [f"ALTER TABLE {table} ADD {column} int", f"ALTER TABLE {table} DROP {column}"],
                    [f"ALTER TABLE {table} ADD {column} int", f'ALTER TABLE {table} RENAME {column} TO "ALT {n}"'],
                    [f"ALTER TABLE {KONTO} ALTER n TYPE bigint"],
                    [f"ALTER TABLE {KONTO} ALTER \"Notiz\" TYPE varchar(100000)"],
                    [f"ALTER TABLE {KONTO} REPLICA IDENTITY {self.rng.choice(['FULL', 'DEFAULT'])}"],
                    [f"ALTER TABLE {LINES} REPLICA IDENTITY {self.rng.choice(['FULL', 'DEFAULT'])}"],
                ]
            )
        )  # fmt: skip


def lake_steps(life: Life) -> list[tuple[int, Callable[[], None]]]:
    """What may happen to the lake, with weights."""
    world, rng, spark = life.world, life.rng, life.spark
    name = world.source.name

    def ingest() -> None:
        world.ingest(spark)

    def ingest_cut() -> None:
        with suppress(Cut), cut_at(rng.choice(POINTS), rng.choice(["before", "after"]), rng.randint(1, 2)):
            world.ingest(spark)

    def refresh() -> None:
        refreshed(world, spark)

    def refresh_cut() -> None:
        with suppress(Cut), cut_at(rng.choice(OF_REFRESHES), rng.choice(["before", "after"]), rng.randint(1, 2)):
            refreshed(world, spark)

    def refresh_meanwhile() -> None:
        """Publishes while a refresh is under way."""
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                life.transaction()
                world.ingest(spark)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            refreshed(world, spark)
            refreshed(world, spark)
        finally:
            stop.set()
            thread.join()

    def killed() -> None:
        point = rng.choice([*POINTS, *OF_REFRESHES])
        more = ["--mirror"] if point in OF_REFRESHES else []
        world.driver(f"{point}:{rng.choice(['before', 'after'])}", *more)

    def pause_one() -> None:
        pause(world.settings, world.source.table(rng.choice(list(TABLES))))

    def resume_all() -> None:
        for table in TABLES:
            with suppress(LakehouseError):
                resume(world.settings, world.declarations, name, [table], spark)

    def again() -> None:
        resnapshot(world.settings, world.declarations, name, [rng.choice(list(TABLES))], spark)

    def recover() -> None:
        recover_source(world.settings, world.declarations, name, spark)

    def repair() -> None:
        list(reconcile_raw(world.settings, world.declarations, [name], repair=True, spark=spark))

    def maintain() -> None:
        table = world.source.table(rng.choice(list(TABLES)))
        for identifier in (table.identifier, table.mirror_identifier):
            for action in ("compact", "expire_snapshots"):
                with closing(Session(world.settings)) as session:
                    ACTIONS[action](session, TableName(*identifier), SOON)

    return [
        (12, ingest), (4, ingest_cut), (6, refresh), (3, refresh_cut), (3, refresh_meanwhile), (1, killed),
        (2, pause_one), (3, resume_all), (1, again), (1, recover), (1, repair), (2, maintain),
    ]  # fmt: skip


@contextmanager
def read_all_the_time(life: Life) -> Iterator[Counter[str]]:
    """Reads each view in both engines in turn until the block ends; fails there with what was wrong."""
    stop, wrong, reads = threading.Event(), [], Counter[str]()
    connection, spark_catalog = connect(life.world.settings), life.world.settings.catalog_name

    def in_trino(table: str) -> Any:
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM {relation(*name_of(life.world, table))}")
        return cursor.fetchall()

    def in_spark(table: str) -> Any:
        return life.spark.sql(f"SELECT * FROM {'.'.join((spark_catalog, *name_of(life.world, table)))}").collect()

    def read(engine: str, rows: Callable[[str], Any]) -> None:
        newest = dict.fromkeys(TABLES, 0)
        while not stop.is_set():
            for table in TABLES:
                try:
                    found = rows_of(rows(table))
                except Exception as error:
                    wrong.append(f"{engine} {table} after {life.log[-3:]}: {type(error).__name__} {str(error)[:1500]}")
                    return
                at = life.seen[table].at(found, newest[table])
                reads[engine] += 1
                if at is None:
                    before = life.seen[table].at(found, 0)
                    what = (
                        f"state {before} after {newest[table]}" if before is not None else f"no state: {found[:1500]}"
                    )
                    wrong.append(f"{engine} {table} after {life.log[-3:]}: {what} of {len(life.seen[table].states)}")
                    return
                newest[table] = at

    threads = [threading.Thread(target=read, args=given) for given in (("trino", in_trino), ("spark", in_spark))]
    for thread in threads:
        thread.start()
    try:
        yield reads
        assert not wrong, wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        print(dict(life.done), dict(reads), wrong, life.log, sep="\n")
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_read_through_a_random_history_is_a_state_none_older_than_the_last(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    write_position_deletes(monkeypatch)
    made = make_world(settings, DDL, TABLES, lease_seconds=1.5, cycle_max_bytes=262144)
    world = declaring_columns(made, {"lines": {"doppelt"}})
    life = Life(world, spark, random.Random(seed))
    for _ in range(12):
        life.transaction()
    world.ingest(spark)
    life.note()
    make_views(world, SHOWN)
    refreshed(world, spark)
    assert all(is_short_view(world, name) for name in TABLES)
    steps = lake_steps(life)
    with read_all_the_time(life) as reads:
        for _ in range(ROUNDS):
            for _ in range(life.rng.choice([0, 1, 1, 2, 3])):
                (life.alter if life.rng.random() < 0.06 else life.transaction)()
            step = life.rng.choices([s for _, s in steps], [w for w, _ in steps])[0]
            life.log.append(step.__name__)
            before = sum(reads.values())
            try:
                step()
                life.done[step.__name__] += 1
            except LakehouseError as error:
                life.done[f"{step.__name__} refused"] += 1
                life.log.append(str(error)[:200])
            assert sum(reads.values()) >= before
        for name in TABLES:
            with suppress(LakehouseError):
                resume(world.settings, world.declarations, world.source.name, [name], spark)
        life.log.append("end")
        world.ingest(spark)
        assert refreshed(world, spark).aside == ()
    for name in TABLES:
        assert is_fresh_view(world, name)
        with closing(connect(settings)) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {relation(*name_of(world, name))}")
            assert rows_of(cursor.fetchall()) == life.seen[name].states[-1], name
