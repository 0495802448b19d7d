"""Each warehouse `lake@…` is a state that the source had: all tables of one commit, under a load that never pauses."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lakehouse.declarations.policies import RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_serve.past.moments import parse_warehouse, warehouse_of
from tests.mirrored import declaring_columns, refreshed
from tests.serving import Served, served
from tests.world import World, make_world, replay

pytestmark = [pytest.mark.stack, pytest.mark.slow]

DDL = """CREATE TABLE steps (id int PRIMARY KEY, step int);
CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12, 2), note text);
CREATE TABLE entries (id int PRIMARY KEY, account int, amount numeric(12, 2));
INSERT INTO steps VALUES (1, 0);
INSERT INTO accounts SELECT n, 100, 'account ' || n FROM generate_series(1, 40) n"""
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("steps", "accounts", "entries")}
MOMENTS = 5
TRUNCATES_APART = 2.0  # seconds: a read that a truncate interrupts begins anew, a few times at most

State = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Copy:
    """The source's tables after a commit, and where and when that was."""

    lsn: str
    at: datetime
    tables: State


@dataclass
class Load:
    """One writer, whose transactions touch all tables, and copies them after every commit."""

    world: World
    copies: list[Copy] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        rng, truncate_at = random.Random(7), time.monotonic() + TRUNCATES_APART
        with psycopg.connect(self.world.owner_url, autocommit=True) as connection:
            self.copies.append(copied(connection))
            while not self.ended.is_set():
                step = len(self.copies)
                with connection.transaction():
                    change(connection, rng, step)
                    if time.monotonic() >= truncate_at:
                        connection.execute("TRUNCATE entries")
                        truncate_at = time.monotonic() + TRUNCATES_APART
                self.copies.append(copied(connection))


def change(connection: psycopg.Connection[Any], rng: random.Random, step: int) -> None:
    """A transfer with its two entries; from time to time rows are removed, or keys change."""
    amount, (giver, taker) = rng.randint(1, 50), rng.sample(range(1, 41), 2)
    connection.execute("UPDATE steps SET step = %s", (step,))
    connection.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, giver))
    connection.execute("INSERT INTO entries VALUES (%s, %s, %s)", (2 * step, giver, -amount))
    connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, taker))
    connection.execute("INSERT INTO entries VALUES (%s, %s, %s)", (2 * step + 1, taker, amount))
    if step % 10 == 0:
        connection.execute("DELETE FROM entries WHERE id < %s", (2 * step - 200,))
    if step % 25 == 0:
        connection.execute("UPDATE accounts SET id = id + 1000, note = repeat(note, 1000) WHERE id = 40")
        connection.execute("UPDATE accounts SET id = id - 1000, note = 'account 40' WHERE id = 1040")


def copied(connection: psycopg.Connection[Any]) -> Copy:
    tables = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in TABLES}
    [(lsn, at)] = connection.execute("SELECT pg_current_wal_lsn()::text, clock_timestamp()").fetchall()
    return Copy(lsn, at, tables)


def state_of(catalog: RestCatalog, namespace: str) -> State:
    """The source's tables as the warehouse has them."""
    found = {}
    for name in TABLES:
        rows = replay(sorted(catalog.load_table((namespace, name)).scan().to_arrow().to_pylist(), key=order), ("id",))
        found[name] = sorted(tuple(row.values()) for row in rows.values())
    return found


def order(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["_epoch"], row["_commit_lsn"], row["_seq"]


@pytest.fixture
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(settings, tmp_path_factory.mktemp("access"), ()) as found:
        yield found


@pytest.mark.slow
def test_each_moment_under_load_is_one_commit_of_all_tables(settings: Settings, spark: Any, service: Served) -> None:
    world = make_world(settings, DDL, TABLES)
    world.ingest(spark)
    load = Load(world)
    writer = threading.Thread(target=load.run)
    writer.start()
    try:
        for _ in range(2 * MOMENTS):
            world.ingest(spark)
            time.sleep(0.3)
    finally:
        load.ended.set()
        writer.join()
    name, count = world.source.name, len(load.copies)
    found = [check_moment(world, service, load, count * part // (MOMENTS + 1)) for part in range(1, MOMENTS + 1)]
    assert len(set(found)) >= MOMENTS - 1, f"cuts of steps {found} of {count}"
    cuts = query(settings, f"SELECT count(*) FROM lake.meta.cuts WHERE source = '{name}'")
    print(f"{count} commits, {cuts[0][0]} cuts, moments at steps {found}")


def check_moment(world: World, service: Served, load: Load, step: int) -> int:
    """Asks for a copy's position and its time; returns the step that the cut is of."""
    copy, source = load.copies[step], world.source.name
    catalog = service.client("writer", f"lake@{source}={copy.lsn}")
    state = state_of(catalog, f"raw_{source}")
    [(_, of)] = state["steps"]
    assert of <= step
    assert state == load.copies[of].tables, f"step {of}, asked for {step}"
    assert position(catalog) == newest(world, f"cut_lsn <= {number(copy.lsn)}")
    by_time = service.client("writer", f"lake@{copy.at.isoformat()}")
    assert position(by_time, source) == newest(world, f"cut_at <= timestamp '{copy.at:%Y-%m-%d %H:%M:%S.%f} UTC'")
    state = state_of(by_time, f"raw_{source}")
    assert state == load.copies[state["steps"][0][1]].tables
    return int(of)


def position(catalog: RestCatalog, source: str | None = None) -> int:
    """The position of the cut that the client was led to."""
    moment = parse_warehouse(warehouse_of(catalog.properties["prefix"], "lake") or "", "lake")
    assert moment is not None
    [found] = [found for found in moment.positions if source in {None, found.source}]
    return found.lsn


def newest(world: World, condition: str) -> int:
    sql = f"SELECT max(cut_lsn) FROM lake.meta.cuts WHERE source = '{world.source.name}' AND {condition}"
    return int(query(world.settings, sql)[0][0])


def number(lsn: str) -> int:
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def test_a_moment_that_newer_cuts_belong_to_is_refused(settings: Settings, spark: Any, service: Served) -> None:
    """A position that was not read yet was answered from the cut before it, and kept."""
    world = make_world(settings, DDL, TABLES)
    world.ingest(spark)
    [(first,)] = world.rows("SELECT pg_current_wal_lsn()::text")
    world.sql("UPDATE steps SET step = 1", "UPDATE accounts SET balance = 0 WHERE id = 1")
    [(second,)] = world.rows("SELECT pg_current_wal_lsn()::text")
    source, namespace = world.source.name, f"raw_{world.source.name}"
    with pytest.raises(Exception, match=f"{source}={second} is not in the lake yet: {source} has been read until"):
        service.client("writer", f"lake@{source}={second}")
    world.ingest(spark)
    stays = service.client("writer", f"lake@{source}={first}")
    assert state_of(service.client("writer", f"lake@{source}={second}"), namespace)["steps"] == [(1, 1)]
    assert state_of(stays, namespace)["steps"] == [(1, 0)], "a client stays at the cut that it was led to"


@pytest.mark.slow
def test_each_cut_of_mirrors_is_a_state_of_the_source_for_readers(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """A warehouse of the past had no mirrors: the catalog that a reader attached was empty."""
    world = declaring_columns(make_world(settings, DDL, TABLES))
    source, moments = world.source.name, []
    for step in range(1, 4):
        world.sql(f"UPDATE steps SET step = {step}", f"DELETE FROM accounts WHERE id = {step}")
        world.ingest(spark)
        with psycopg.connect(world.owner_url, autocommit=True) as connection:
            of_source = copied(connection)
        if step != 2:
            refreshed(world, spark)
        moments.append((step, of_source))
    world.ingest(spark)  # a position beyond what was read is refused
    space = f"mirror_{source}"
    rules = [{"schema": space, "name": name, "least": "reader", "personal": []} for name in TABLES]
    with served(settings, tmp_path / "access", rules) as service:
        for step, of_source in moments:
            at = 1 if step == 2 else step
            reader = service.client("reader", f"lake@{source}={of_source.lsn}")
            assert reader.list_namespaces() == [(space,)]
            tables = {name: reader.load_table((space, name)) for name in TABLES}
            rows = {n: sorted(tuple(r.values()) for r in t.scan().to_arrow().to_pylist()) for n, t in tables.items()}
            assert rows == moments[at - 1][1].tables, f"step {step}"
            [cut] = {table.properties["lakehouse.cut"] for table in tables.values()}
            assert cut.startswith(f"{source}=1:") and "lakehouse.position" not in tables["steps"].properties
            exact = service.client("writer", f"lake@{cut}")
            assert state_of(exact, f"raw_{source}") == moments[at - 1][1].tables, "raw at the cut of the mirrors"


def test_a_cut_whose_snapshots_have_expired_is_refused(settings: Settings, spark: Any, service: Served) -> None:
    world = make_world(settings, DDL, TABLES)
    world.ingest(spark)
    [(first,)] = world.rows("SELECT pg_current_wal_lsn()::text")
    world.sql("UPDATE steps SET step = 1")
    world.ingest(spark)
    source = world.source.name
    catalog = service.client("writer", f"lake@{source}={first}")
    before = state_of(catalog, f"raw_{source}")
    table = f"lake.raw_{source}.steps"
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{table}', older_than => now(), retain_last => 1)")
    with pytest.raises(Exception, match=r"no snapshot of that cut any more: its retention has passed"):
        catalog.load_table((f"raw_{source}", "steps"))
    assert state_of(service.client("writer"), f"raw_{source}")["steps"] == [(1, 1)]
    others = catalog.load_table((f"raw_{source}", "accounts")).scan().to_arrow()
    assert len(others) == len(before["accounts"])


def test_a_table_that_was_set_back_still_has_its_earlier_cuts(settings: Settings, spark: Any, service: Served) -> None:
    """As `lakehouse maintain restore` does: main points to an earlier snapshot."""
    world = make_world(settings, DDL, TABLES)
    lsns = []
    for step in range(1, 4):
        world.sql(f"UPDATE steps SET step = {step}")
        world.ingest(spark)
        lsns.append(world.rows("SELECT pg_current_wal_lsn()::text")[0][0])
    world.ingest(spark)
    source = world.source.name
    asked = [service.client("writer", f"lake@{source}={lsn}") for lsn in lsns]
    table = asked[0].load_table((f"raw_{source}", "steps"))
    snapshot = table.metadata.current_snapshot_id
    spark.sql(f"CALL lake.system.set_current_snapshot(table => 'lake.raw_{source}.steps', snapshot_id => {snapshot})")
    try:
        for step, catalog in enumerate(asked, 1):
            assert state_of(catalog, f"raw_{source}")["steps"] == [(1, step)]
    finally:
        spark.sql(f"DROP TABLE lake.raw_{source}.steps")
