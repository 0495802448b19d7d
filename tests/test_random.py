"""Random histories under random faults, replayable by their seed: at the end the lake is the source, at every cut the
balance holds.

`RANDOM_SEED` runs one seed, `RANDOM_MINUTES` sets how long the long form runs.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import psycopg
import pytest

from ingestion import pause, resume
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.test_ingestion import assert_equal, assert_order_is_unique, cuts
from tests.world import World, make_world, position, replay

pytestmark = pytest.mark.stack

DDL = """
CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance bigint NOT NULL);
CREATE TABLE transfers (id bigint PRIMARY KEY, debit int, credit int, amount bigint, memo text);
CREATE TABLE wide (a int, b text, body text, n numeric(10,2), PRIMARY KEY (a, b));
CREATE TABLE events (id bigint, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO accounts SELECT i, 'o' || i, 1000 FROM generate_series(1, 20) i
"""
TABLES = {
    "accounts": RawPolicy(relation="public.accounts", key=("id",)),
    "transfers": RawPolicy(relation="public.transfers", key=("id",)),
    "wide": RawPolicy(relation="public.wide", key=("a", "b")),
    "events": RawPolicy(relation="public.events", key=("id", "day")),
}
TOTAL = 20 * 1000
POINTS = [
    *(f"ingestion.pipeline.load_changes:{step}" for step in ("run_tasks", "publish")),
    "ingestion.sink.publish:_stage_all",
    "ingestion.sink.publish:_swap",
    "ingestion.sources.postgres.connection:advance_slot",
    *(f"ingestion.pipeline.load_tables:{step}" for step in ("run_tasks", "publish", "stage_repair")),
    "ingestion.pipeline.replay:publish",
    "ingestion.sink.raw_tables:follow_source",
]


class Cut(BaseException):
    """The process ends here, as far as ingestion can tell."""


@dataclass
class History:
    """A source that is worked on at random; `done` counts what was done to it."""

    world: World
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def step(self) -> None:
        """One transaction, or one DDL."""
        choices: list[tuple[int, Callable[[], list[str]]]] = [
            (8, self._transfer), (6, self._wide), (3, self._big), (3, self._events), (2, self._move_key),
            (1, self._truncate), (2, self._alter), (1, self._partition), (1, self._bulk),
        ]  # fmt: skip
        make = self.rng.choices([c for _, c in choices], [w for w, _ in choices])[0]
        statements = make()
        self.done[make.__name__.lstrip("_")] += 1
        with psycopg.connect(self.world.owner_url) as connection:
            for statement in statements:
                connection.execute(statement)
            if self.rng.random() < 0.1:
                self.done["rolled back"] += 1
                connection.rollback()

    def _transfer(self) -> list[str]:
        self.number += 1
        debit, credit = self.rng.sample([1, 1, 2, *range(1, 21)], 2)
        amount = self.rng.randint(1, 50)
        return [
            f"UPDATE accounts SET balance = balance - {amount} WHERE id = {debit}",
            f"INSERT INTO transfers (id, debit, credit, amount) VALUES ({self.number}, {debit}, {credit}, {amount})",
            f"UPDATE accounts SET balance = balance + {amount} WHERE id = {credit}",
        ]

    def _wide(self) -> list[str]:
        a = self.rng.randint(1, 6)
        return [
            f"INSERT INTO wide (a, b, n) VALUES ({a}, 'k', {a}) ON CONFLICT (a, b) DO UPDATE SET n = wide.n + 1",
            f"DELETE FROM wide WHERE a = {self.rng.randint(1, 30)}",
            f"UPDATE wide SET n = n + 0.5 WHERE a % {self.rng.randint(1, 4)} = 0",
        ]

    def _big(self) -> list[str]:
        body = f"(SELECT string_agg(md5((i + {self.rng.randint(0, 9)})::text), '') FROM generate_series(1, 300) i)"
        return [f"UPDATE wide SET body = {body} WHERE a = {self.rng.randint(1, 6)}"]

    def _events(self) -> list[str]:
        self.number += 1
        day = f"2026-0{self.rng.randint(1, 2)}-{self.rng.randint(10, 28)}"
        return [
            f"INSERT INTO events VALUES ({self.number}, '{day}', 'é''\\n')",
            "UPDATE events SET note = NULL WHERE id % 7 = 0",
        ]

    def _move_key(self) -> list[str]:
        one, other = self.rng.sample(range(1, 7), 2)
        return [
            "DELETE FROM wide WHERE a = -1", f"UPDATE wide SET a = -1 WHERE a = {one} AND b = 'k'",
            f"UPDATE wide SET a = {one} WHERE a = {other} AND b = 'k'", f"UPDATE wide SET a = {other} WHERE a = -1",
        ]  # fmt: skip

    def _truncate(self) -> list[str]:
        return [self.rng.choice(["TRUNCATE transfers", "TRUNCATE wide, events"])]

    def _bulk(self) -> list[str]:
        first = self.rng.randint(10, 25)
        return [
            f"INSERT INTO wide (a, b, n) SELECT {first}, i::text, i FROM generate_series(1, 800) i"
            " ON CONFLICT DO NOTHING"
        ]

    def _alter(self) -> list[str]:
        self.number += 1
        table = self.rng.choice(["transfers", "wide", "events", "accounts"])
        column = f"x{self.number}"
        return self.rng.choice(
            [
                [f"ALTER TABLE {table} ADD {column} int"],
                [f"ALTER TABLE {table} ADD {column} int DEFAULT {self.number}"],
                [f"ALTER TABLE {table} ADD {column} int", f"ALTER TABLE {table} DROP {column}"],
                [f"ALTER TABLE {table} ADD {column} text", f"ALTER TABLE {table} RENAME {column} TO y{self.number}"],
                ["ALTER TABLE transfers ALTER amount TYPE bigint USING amount"],
                ["ALTER TABLE wide ALTER n TYPE numeric(10,2) USING n + 1"],
            ]
        )

    def _partition(self) -> list[str]:
        exists = "SELECT 1 FROM pg_class WHERE relname = 'events_3'"
        if self.world.rows(exists):
            return ["DROP TABLE events_3"]
        return [
            "CREATE TABLE events_3 (LIKE events INCLUDING ALL)",
            "INSERT INTO events_3 (id, day) VALUES (-1, '2026-03-03')",
            "ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",
        ]  # fmt: skip


@contextmanager
def cut_at(point: str, when: str, nth: int) -> Iterator[None]:
    """Ends whatever reaches the point for the nth time."""
    module_name, name = point.split(":")
    module = import_module(module_name)
    original, calls = getattr(module, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            raise Cut
        result = original(*args, **kwargs)
        if calls == nth:
            raise Cut
        return result

    setattr(module, name, wrapped)
    try:
        yield
    finally:
        setattr(module, name, original)


def ingest_somehow(history: History, spark: Any) -> None:
    """One cycle, cut off at a random point more often than not, sometimes in a process that is killed."""
    rng, world = history.rng, history.world
    dice = rng.random()
    if dice < 0.1:
        killed = world.driver(f"{rng.choice(POINTS)}:{rng.choice(['before', 'after'])}")
        assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
        history.done["killed" if killed.returncode else "not reached"] += 1
    elif dice < 0.65:
        try:
            with cut_at(rng.choice(POINTS), rng.choice(["before", "after"]), rng.randint(1, 2)):
                world.ingest(spark)
            history.done["not reached"] += 1
        except Cut:
            history.done["cut off"] += 1
    elif dice < 0.75:
        table = world.source.table(rng.choice(list(TABLES)))
        try:
            (pause if rng.random() < 0.6 else _resume)(world.settings, table)
            history.done["paused or resumed"] += 1
        except LakehouseError:
            history.done["command refused"] += 1
    else:
        world.ingest(spark)
        history.done["ingested"] += 1


def _resume(settings: Settings, table: Any) -> None:
    from ingestion.run.operate import resume as resume_table

    resume_table(settings, table)


def run_history(settings: Settings, spark: Any, seed: int, rounds: int) -> Counter[str]:
    """Works on a source and ingests it in turns, then compares; returns what was done."""
    world = make_world(settings, DDL, TABLES, lease_seconds=1.5, snapshot_chunk_bytes=16384, cycle_max_bytes=262144)
    history = History(world, random.Random(seed))
    for _ in range(rounds):
        for _ in range(history.rng.randint(1, 6)):
            history.step()
        ingest_somehow(history, spark)
    for name in TABLES:
        try:
            resume(world.settings, world.declarations, world.source.name, [name], spark)
        except LakehouseError as error:
            assert "only a parked or paused table" in str(error), error
    report = world.ingest(spark)
    assert report.aside == (), f"seed {seed}: {report.aside}"
    for name in TABLES:
        assert_equal(world, name)
        assert_order_is_unique(world, name)
    assert_balance_at_every_cut(world)
    return history.done


def assert_balance_at_every_cut(world: World) -> None:
    """No cut shows a debit without its credit."""
    rows = world.raw("accounts")
    for cut in cuts(world):
        if "accounts" in dict(cut["snapshots"]):
            seen = [row for row in rows if position(row)[:2] <= (cut["epoch"], cut["cut_lsn"])]
            balances = [row["balance"] for row in replay(seen, ("id",)).values()]
            assert sum(balances) == TOTAL, f"cut at {cut['cut_lsn']}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(os.environ["RANDOM_SEED"])] if "RANDOM_SEED" in os.environ else [1])
def test_a_random_history_with_random_faults_is_the_source(
    settings: Settings, spark: Any, seed: int, record_property: Callable[[str, object], None]
) -> None:
    done = run_history(settings, spark, seed, rounds=10)
    record_property("done", dict(done))
    print(f"seed {seed}: {dict(done)}")


@pytest.mark.slow
def test_random_histories_for_half_an_hour(settings: Settings, spark: Any) -> None:
    deadline = time.monotonic() + 60 * float(os.environ.get("RANDOM_MINUTES", "30"))
    done: Counter[str] = Counter()
    seeds = []
    while time.monotonic() < deadline:
        seeds.append(random.SystemRandom().randrange(1 << 31))
        print(f"seed {seeds[-1]}", flush=True)
        done += run_history(settings, spark, seeds[-1], rounds=20)
    print(f"{len(seeds)} seeds {seeds}: {dict(done)}")
