"""Random transactions that let rows share keys, on each version of Postgres: after each commit raw says what the source
said, however the stream is cut, streamed before the transaction's end, or kept aside and landed later.

`RANDOM_SEED` runs another seed, `RANDOM_TRANSACTIONS` sets how many.
"""

import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import errors
from pyiceberg.catalog.sql import SqlCatalog

from ingestion.schema.declared_columns import may_share_keys
from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.raw_tables import ensure_raw_table
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written, writable_metadata
from ingestion.sources.postgres import reading
from ingestion.sources.postgres.catalog.describe import describe
from ingestion.sources.postgres.catalog.indexes import enforcing_indexes
from ingestion.sources.postgres.connection import aborted, peek
from ingestion.sources.postgres.pgoutput import Decoder, whole_transactions
from ingestion.sources.postgres.reading import SlotReader
from ingestion.sources.postgres.records import PgoutputRecords
from ingestion.tasks.changes import land_piece
from ingestion.tasks.lanes import Findings, Lanes
from ingestion.tasks.replay import ReplayPlan, replay
from ingestion.tasks.shared_keys import hold
from ingestion.tasks.shared_keys.positions import sent_at_seq
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import RawPolicy
from tests.clusters import Cluster, cluster
from tests.marks import slow
from tests.world import Row, declared_source, position
from tests.world import replay as replayed

pytestmark = pytest.mark.stack

COLUMNS = "v text, w numeric(9,2), d float, who int DEFAULT 0"
NAMED = ("statement", "pair", "parts", "parts_own")  # their rows are told apart by `who`; others are often alike
BIG = "(SELECT string_agg(md5((i + {n})::text), '') FROM generate_series(1, 100) i)"
TABLES = {
    "deferred": (("id",), f"CREATE TABLE deferred (id int, {COLUMNS}, PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED)"),
    "statement": (("id",), f"CREATE TABLE statement (id int, {COLUMNS}, UNIQUE (id) DEFERRABLE)"),
    "nothing": (("id",), f"CREATE TABLE nothing (id numeric(9,2), {COLUMNS})"),
    "pair": (("a", "id"), f"CREATE TABLE pair (a text DEFAULT 'x', id int, {COLUMNS}, PRIMARY KEY (id, a) DEFERRABLE)"),
    "parts": (
        ("id",),
        f"CREATE TABLE parts (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, {COLUMNS}) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (-1000) TO (3);"
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (3) TO (1000);"
        "ALTER TABLE parts_1 REPLICA IDENTITY FULL; ALTER TABLE parts_2 REPLICA IDENTITY FULL",
    ),
    "parts_own": (  # one row of a key in each of them, for a while
        ("id",),
        f"CREATE TABLE parts_own (id int NOT NULL, {COLUMNS}) PARTITION BY LIST ((who % 2));"
        "CREATE TABLE parts_own_0 PARTITION OF parts_own (PRIMARY KEY (id)) FOR VALUES IN (0);"
        "CREATE TABLE parts_own_1 PARTITION OF parts_own (PRIMARY KEY (id)) FOR VALUES IN (1)",
    ),
    "identity": (
        ("id",),
        "CREATE TABLE identity (id int NOT NULL, v text NOT NULL, w numeric(9,2), d float, who int, UNIQUE (id, v));"
        "ALTER TABLE identity REPLICA IDENTITY USING INDEX identity_id_v_key",
    ),
}  # fmt: skip


TRANSACTIONS = int(os.environ.get("RANDOM_TRANSACTIONS", "40"))
VERSIONS = [slow("15"), slow("16"), "18"]


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param, logical_decoding_work_mem="64kB") as made:
        yield made


@dataclass
class Source:
    """One database with one table, a slot, and what the table held after each transaction."""

    connection: psycopg.Connection[Any]
    table: RawTable
    facts: TableFacts
    chance: random.Random
    states: dict[int, list[Row]] = field(default_factory=dict)
    number: int = 0

    def work(self, transactions: int) -> None:
        wide = "INSERT INTO {} (id, v) SELECT i, repeat('y', 500) FROM generate_series(100, 300) i"
        self.connection.execute(wide.format(self.table.name))  # type: ignore[arg-type]
        for _ in range(transactions):
            self.transact()

    def transact(self) -> None:
        try:
            with self.connection.transaction():
                self._deferred()
                for _ in range(self.chance.randint(1, 5)):
                    self._statement()
                self._refuse_duplicates()
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                xid = self._one("SELECT pg_current_xact_id()::text::bigint")
                state = self.rows()
        except (errors.UniqueViolation, errors.ObjectInUse):  # or a truncate while a check is deferred
            return
        self.states[xid] = state

    def rows(self) -> list[Row]:
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(f"SELECT * FROM {self.table.name}").fetchall()  # type: ignore[arg-type]

    def _deferred(self) -> None:
        if self.chance.random() < 0.7:
            self.connection.execute("SET CONSTRAINTS ALL DEFERRED")

    def _refuse_duplicates(self) -> None:
        key = ", ".join(self.table.key)
        name = self.table.name
        if self._one(f"SELECT count(*) FROM (SELECT FROM {name} GROUP BY {key} HAVING count(*) > 1) twice"):
            raise errors.UniqueViolation("two rows on one key")

    def _statement(self) -> None:
        statement = self._any()
        try:
            with self.connection.transaction():
                self.connection.execute(statement)  # type: ignore[arg-type]
                if self.chance.random() < 0.1:
                    raise psycopg.Rollback
        except (errors.UniqueViolation, errors.ObjectInUse):
            pass

    def _any(self) -> str:
        self.number += 1
        name, one, other = self.table.name, self.chance.randint(1, 5), self.chance.randint(1, 5)
        values = ["'x'", "'x'", f"'v{self.number}'", *([] if name == "identity" else [BIG.format(n=one)])]
        value = self.chance.choice(values)
        some = f"(SELECT ctid FROM {name} WHERE id = {one} ORDER BY random() LIMIT 1)"
        if name.startswith("parts"):  # a ctid is one of a leaf
            some = "(SELECT NULL::tid)"
        return self.chance.choices(
            [
                f"INSERT INTO {name} (id, v, w) VALUES ({one}, {value}, 1) ON CONFLICT DO NOTHING"
                if name == "identity"
                else f"INSERT INTO {name} (id, v, w) VALUES ({one}, {value}, 1)",
                f"UPDATE {name} SET id = CASE id WHEN {one} THEN {other} ELSE {one} END WHERE id IN ({one}, {other})",
                f"UPDATE {name} SET id = id + 1 WHERE id >= {one}",
                f"UPDATE {name} SET id = id - 1 WHERE id >= {one}",
                f"UPDATE {name} SET id = 1 + (id + 1) % 5 WHERE id BETWEEN 1 AND 5",
                f"UPDATE {name} SET w = w + 1 WHERE id = {one}",
                f"UPDATE {name} SET v = {value}, d = 'NaN' WHERE ctid = {some}",
                f"DELETE FROM {name} WHERE ctid = {some}",
                f"DELETE FROM {name} WHERE id = {one} AND v = 'x'",
                f"DELETE FROM {name} WHERE id NOT BETWEEN 1 AND 5",
                f"TRUNCATE {name}",
                f"INSERT INTO {name} (id, v) SELECT i, repeat('y', 500) FROM generate_series(100, 300) i",
            ],
            [6, 6, 3, 3, 2, 2, 3, 4, 3, 3, 0.3, 0.3],
        )[0]

    def _one(self, query: str) -> Any:
        row = self.connection.execute(query).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]


@pytest.fixture(params=list(TABLES))
def source(request: pytest.FixtureRequest, server: Cluster) -> Iterator[Source]:
    name = request.param
    key, ddl = TABLES[name]
    table = declared_source("s", {name: RawPolicy(relation=f"public.{name}", key=key)}).tables[0]
    identity = "" if name == "identity" else f"; ALTER TABLE {name} REPLICA IDENTITY FULL"
    server.admin(f"CREATE DATABASE {name}", "SELECT 1")
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(f"{ddl}{identity}")  # type: ignore[arg-type]
        connection.execute(
            f"CREATE PUBLICATION p FOR TABLE {name} WITH (publish_via_partition_root = true)"  # type: ignore[arg-type]
        )
        if name in NAMED:
            connection.execute("CREATE SEQUENCE who")
            connection.execute(f"ALTER TABLE {name} ALTER who SET DEFAULT nextval('who')")  # type: ignore[arg-type]
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"slot_{name}"])
        facts = name_columns(table, None, described(connection, table))
        yield Source(connection, table, facts, random.Random(f"{os.environ.get('RANDOM_SEED', '1')} {name}"))
        connection.execute("SELECT pg_drop_replication_slot(%s)", [f"slot_{name}"])
    server.admin(f"DROP DATABASE {name} WITH (FORCE)")


def described(connection: psycopg.Connection[Any], table: RawTable) -> TableFacts:
    """Where partitions have a key of their own, FULL on the table does not pass on to them: each of them is refused."""
    for number in (0, 1) if table.name == "parts_own" else ():
        with pytest.raises(TableProblem, match=rf"public.parts_own_{number} .* \(id\), narrower") as refused:
            describe(connection, table, "p")
        remedy = refused.value.says.partition(": ")[2].removesuffix(", then resume the table")
        connection.execute(remedy)  # type: ignore[arg-type]
    return describe(connection, table, "p")


@dataclass(frozen=True)
class Lake:
    """A catalog in a file, a raw table, and the templates of `meta`."""

    catalog: SqlCatalog
    target: TableTarget
    templates: dict[str, str]

    def lanes(self, aside: Mapping[str, str] | None = None) -> Lanes:
        io = self.catalog._load_file_io()
        return Lanes([self.target], self.templates, io, 1 << 20, PgoutputRecords(), aside)

    def rows(self, written: tuple[Written, ...]) -> list[Row]:
        return sorted(rows_in(file for table in written for file in table.files), key=position)


def rows_in(files: Any) -> list[Row]:
    paths = [file.file_path.removeprefix("file://") for file in files]
    return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture
def lake(tmp_path: Path, source: Source) -> Lake:
    made = make_lake(tmp_path, source)
    assert made.target.shares_keys
    return made


def make_lake(tmp_path: Path, source: Source) -> Lake:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_s", "meta"):
        catalog.create_namespace(namespace)
    raw = ensure_raw_table(catalog, source.table, source.facts, datetime.now(UTC))
    target = TableTarget(
        "s", source.table.name, writable_metadata(raw, "c"), source.facts.columns, (source.facts,), frozenset(), {},
        source.table.key, "error", 0, 1, datetime.now(UTC), shares_keys=may_share_keys(source.table, (source.facts,)),
    )  # fmt: skip
    meta = {name: ensure_meta(catalog, name) for name in ("spool", "quarantine", "unrepresentable")}
    return Lake(catalog, target, {name: writable_metadata(table, "c") for name, table in meta.items()})


def messages_of(source: Source, *, unfinished: bool) -> list[bytes]:
    statement = peek(f"slot_{source.table.name}", "p", (1 << 63) - 1, unfinished=unfinished)
    return [row[0] for row in source.connection.execute(f"SELECT data FROM {statement}", binary=True)]  # type: ignore


def pieces(source: Source, messages: list[bytes]) -> Iterator[pa.Array]:
    first = 0
    while first < len(messages):
        size = source.chance.choice([1, 3, 10, 100, 1000])
        yield pa.array(messages[first : first + size], pa.binary())
        first += size


def take(lake: Lake, lanes: Lanes, arrays: Iterator[pa.Array]) -> Any:
    """What a task makes of the stream."""
    decoder = Decoder(1 << 32, lanes.key_in, lanes.landing, lanes.imaged)
    reader = SlotReader("s", "", 0, "", "", 0, 0, None, 0)
    for messages in arrays:
        for piece in reading.pieces(reader, decoder, messages, lambda: lanes.landing):
            land_piece(lanes, piece)
    return lanes.close(decoder.carried)


def assert_right_after_each_commit(source: Source, rows: list[Row]) -> None:
    positions = [position(row) for row in rows]
    assert len(positions) == len(set(positions))
    last = {row["_xid"] & 0xFFFFFFFF: index for index, row in enumerate(rows)}
    assert len(last) > 10
    for xid, expected in source.states.items():
        if xid in last:
            actual = replayed(rows[: last[xid] + 1], source.table.key)
            assert sorted(map(repr, actual.values())) == sorted(map(repr, spelled(expected, rows)))


def assert_key_changes_are_whole(source: Source, rows: list[Row]) -> None:
    """Each names the key under which the same row stood before; erasure follows a person by that."""
    sent = {(row["_commit_lsn"], sent_at_seq(row["_seq"])): row for row in rows}
    assert len(sent) == len(rows)
    moved = [row for row in rows if row["_old_key"]]
    assert moved
    for row in moved:
        left = sent[row["_commit_lsn"], sent_at_seq(row["_seq"]) - 1]
        assert left["_op"] == "d" and (left["who"] or 0) in (row["who"], 0)
        assert json.loads(row["_old_key"]) == {name: str(left[name]) for name in source.table.key}


def spelled(expected: list[Row], rows: list[Row]) -> list[Row]:
    """In the order of the raw table's columns."""
    names = [name for name in rows[0] if not name.startswith("_")]
    return [{name: row[name] for name in names} for row in expected]


@pytest.mark.parametrize(
    ("ddl", "key", "at_once", "at_commit"),
    [
        ("id int PRIMARY KEY", ("id",), True, True),
        ("id int PRIMARY KEY, b int", ("id", "b"), True, True),
        ("id int PRIMARY KEY DEFERRABLE", ("id",), False, True),
        ("id int NOT NULL, b int NOT NULL, UNIQUE (id, b)", ("id",), False, False),
        ("id int NOT NULL, b int NOT NULL, UNIQUE (id, b)", ("b", "id"), True, True),
        ("id int UNIQUE", ("id",), False, False),  # NULLs are equal to nothing
        ("id int, UNIQUE NULLS NOT DISTINCT (id)", ("id",), True, True),
        ("id int NOT NULL, b int, UNIQUE (id) INCLUDE (b)", ("id",), True, True),
        ("id int, b int", ("id",), False, False),
    ],
)
def test_a_key_is_kept_at_once_or_at_commit_or_not_at_all(
    server: Cluster, ddl: str, key: tuple[str, ...], at_once: bool, at_commit: bool
) -> None:
    with psycopg.connect(server.url("postgres")) as connection:
        connection.execute(f"CREATE TABLE keyed ({ddl})")  # type: ignore[arg-type]
        oid = connection.execute("SELECT 'keyed'::regclass::oid::bigint").fetchone()
        assert oid is not None
        for index in ("(id) WHERE id > 0", "(abs(id))"):
            connection.execute(f"CREATE UNIQUE INDEX ON keyed {index}")  # type: ignore[arg-type]
        found = [bool(enforcing_indexes(connection, oid[0], key, at_once=first)) for first in (True, False)]
        connection.rollback()
    assert found == [at_once, at_commit]


def comparable(rows: list[Row]) -> list[str]:
    """NaN and all."""
    return [repr(row) for row in rows]


def test_after_each_commit_raw_says_what_the_source_said(source: Source, lake: Lake) -> None:
    source.work(TRANSACTIONS)
    in_blocks = messages_of(source, unfinished=True)
    assert b"S" in {message[:1] for message in in_blocks}
    ways = {
        "in pieces": pieces(source, messages_of(source, unfinished=False)),
        "at once": iter([pa.array(messages_of(source, unfinished=False), pa.binary())]),
        "in blocks": whole_transactions(
            pieces(source, in_blocks), lambda xids: aborted(source.connection, sorted(xids))
        ),
    }
    for way, arrays in ways.items():
        written, _, noticed = take(lake, lake.lanes(), iter(arrays))
        assert noticed.get(source.table.name, Findings()).stale is None, way
        assert_right_after_each_commit(source, lake.rows(written))
        assert_key_changes_are_whole(source, lake.rows(written))


def test_what_was_kept_aside_lands_the_same(source: Source, lake: Lake) -> None:
    source.work(TRANSACTIONS // 2)
    messages = messages_of(source, unfinished=False)
    written, _, _ = take(lake, lake.lanes(), pieces(source, messages))
    lanes = lake.lanes({source.table.name: "parked"})
    _, files, _ = take(lake, lanes, pieces(source, messages))
    spool = lake.catalog.load_table("meta.spool")
    with spool.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files["spool"]:
            append.append_data_file(file)
    spool = spool.refresh()
    tasks = tuple(spool.scan().plan_files())
    later = replay(
        ReplayPlan(spool.metadata.model_dump_json(), tasks, lake.target, lake.templates, {}, 1 << 20, PgoutputRecords())
    )
    assert later.noticed.get(source.table.name, Findings()).stale is None
    assert comparable(lake.rows(later.written)) == comparable(lake.rows(written))


@pytest.mark.parametrize("source", ["deferred"], indirect=True)
def test_a_transaction_too_large_to_be_held_asks_for_a_repair_only_where_it_may_be_wrong(
    source: Source, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "HELD_BYTES", 20_000)
    source.connection.execute("INSERT INTO deferred (id, v) SELECT i, 'v' FROM generate_series(1, 3000) i")
    loaded = messages_of(source, unfinished=False)
    cut = [pa.array(loaded[first : first + 100], pa.binary()) for first in range(0, len(loaded), 100)]
    written, _, noticed = take(lake, lake.lanes(), iter(cut))
    assert noticed == {} and written[0].operations == {"c": 3000}
    source.connection.execute("UPDATE deferred SET id = id + 1")
    source.connection.execute("INSERT INTO deferred (id, v) VALUES (1, 'new')")
    messages = messages_of(source, unfinished=False)
    cut = [pa.array(messages[first : first + 100], pa.binary()) for first in range(0, len(messages), 100)]
    written, _, noticed = take(lake, lake.lanes(), iter(cut))
    assert "too large" in (noticed["deferred"].stale or "")
    assert written[0].operations == {"c": 6001, "d": 3000}
