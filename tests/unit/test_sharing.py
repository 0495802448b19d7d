"""Followers that share a source, through the pipeline: whatever comes between them, the lake has each event once, and
who reads by ordinals, by cuts or by moments of ingestion misses nothing."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from held_topics import ID, Lake, declared, make_lake

from ingestion.pipeline import load_changes
from ingestion.pipeline.cycle import connections
from ingestion.pipeline.session import Session
from ingestion.pipeline.sharing import for_one_writer, read_turn, take_turn
from ingestion.run.operate import pause, resume
from ingestion.run.sharing import Sharing
from ingestion.schema.offsets import Offsets
from ingestion.sink.publish import Outdated
from ingestion.sources.kafka import source as module
from ingestion.sources.kinds import check_shared
from ingestion.state import claims, store
from ingestion.state import lease as leases
from ingestion.state.claims import TurnVoid
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations.policies import FlushPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.marks import slow

pytestmark = pytest.mark.stack

TABLES = ("clicks", "views")


class Killed(BaseException):
    """The end of a process."""


class Shared:
    """One follower of several, step by step."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.stack = lake, ExitStack()
        origin = module.KafkaSource(lake.settings, "web")
        nobody = leases.Lease("web", 0, "")
        self.session = Session(
            lake.settings, lake.catalog, cast(Any, None), nobody, lake.source, stop=threading.Event(), origin=origin
        )
        opened, states = self.stack.enter_context(connections(self.session))
        self.follower = Sharing(self.session, opened, states)
        self.seat: leases.Lease | None = None

    @property
    def states(self) -> Any:
        return self.follower.states

    @property
    def mine(self) -> Session:
        assert self.seat is not None
        return replace(self.session, lease=self.seat)

    def begin(self) -> bool:
        """Takes a turn, if there is something to read; does what is for one writer first."""
        follower = self.follower
        assert follower.turn is None
        if (why := for_one_writer(self.session, follower.source, self.states)) is not None:
            self.leave()
            follower.be_alone(why)
            return False
        self.seat = self.seat or leases.take_seat(self.states, "web", 60)
        if self.seat is None:
            return False
        try:
            if follower.looks(self.mine):
                what = follower.parts.next_of(follower.mine, 2 * module.EVENT_BYTES * 10)
                follower.turn = take_turn(self.mine, self.states, follower.mine, what)
        except (leases.LeaseLost, TurnVoid):
            self.seat = None
        return follower.turn is not None

    def finish(self) -> int | None:
        """Reads and publishes the turn; its rows, None where that was not to be."""
        turn = self.follower.turn
        assert turn is not None
        try:
            rows = read_turn(self.mine, self.follower.source, self.states, turn)
        except (Outdated, TurnVoid):
            claims.give_up(self.states, turn)
            return None
        except leases.LeaseLost:
            self.seat = None
            return None
        finally:
            self.follower.turn = None
        return sum(sum(counts.values()) for counts in rows.values())

    def read(self) -> int | None:
        """As often as it takes."""
        for _ in range(5):
            if self.begin():
                return self.finish()
        return None

    def leave(self) -> None:
        if self.seat is not None:
            leases.release(self.states, self.seat)
        self.seat = None

    def die(self) -> None:
        """Its session in the catalog ends with it, which is as if its seat had run out."""
        if self.seat is not None:
            expire(self.lake, self.seat)
        self.stack.close()

    @property
    def is_next(self) -> bool:
        turn = self.follower.turn
        return turn is not None and claims._first(self.states, turn) in (None, turn.at)


def expire(lake: Lake, seat: leases.Lease) -> None:
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source = %s", (seat.source,))


@pytest.fixture
def lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    made = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    made.source, made.broker.partitions = declared(*TABLES, flush=None), 4
    made.broker.create(*TABLES)
    yield made


@pytest.fixture
def start(lake: Lake) -> Iterator[Callable[[], Shared]]:
    made: list[Shared] = []

    def one() -> Shared:
        made.append(Shared(lake))
        return made[-1]

    yield one
    for follower in made:
        with suppress(Exception):
            follower.stack.close()


def rows_of(lake: Lake, table: str) -> list[dict[str, Any]]:
    found = lake.catalog.load_table(("raw_web", table)).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["_epoch"], row["_commit_lsn"], row["_seq"]))


def assert_sound(lake: Lake, seen: dict[str, int]) -> None:
    """Of each table; `seen` is the newest ordinal that a reader has met in it."""
    with store.connect_catalog(lake.settings) as states:
        stream = store.read_stream(states, "web")
        positions = store.read_positions(states, "web")
    assert stream is not None
    ends = stream.position.by_partition
    for table, position in positions.items():
        if position.state == "new":
            continue
        rows = rows_of(lake, table)
        places = [(row["_topic_partition"], row["_offset"]) for row in rows]
        assert len(set(places)) == len(places), "an event is there twice"
        assert len({(row["_commit_lsn"], row["_seq"]) for row in rows}) == len(rows)
        ingested = [row["_ingested_at"] for row in rows]
        if position.state == "streaming" and table in stream.cut_tables:
            assert ingested == sorted(ingested) or table in seen.get("resumed", ()), "loads go by the moment"  # type: ignore[operator]
            there = {
                (number, offset) for (topic, number), end in ends.items() if topic == table for offset in range(end)
            }
            assert set(places) == there, "what the position says is not what is there"
        for number in {place[0] for place in places}:
            assert [o for n, o in places if n == number] == sorted(o for n, o in places if n == number)
        new = [row for row in rows if row["_commit_lsn"] > seen.get(table, -1)]
        assert len(rows) - len(new) == seen.get(f"{table} rows", 0), "rows came where a reader had passed"
        seen[table] = max((row["_commit_lsn"] for row in rows), default=-1)
        seen[f"{table} rows"] = len(rows)


def assert_cuts(lake: Lake) -> None:
    """Each cut holds exactly the events below its offsets, and cuts follow each other."""
    cuts = lake.catalog.load_table(("meta", "cuts")).scan().to_arrow().to_pylist()
    cuts.sort(key=lambda cut: cut["published_at"])
    rows = {table: rows_of(lake, table) for table in TABLES}
    for before, cut in zip([None, *cuts], cuts, strict=False):
        at = Offsets.parse(cut["position"])
        assert before is None or before["cut_lsn"] <= cut["cut_lsn"]
        assert before is None or Offsets.parse(before["position"]) <= at
        for table, _ in cut["snapshots"]:
            below = {(r["_topic_partition"], r["_offset"]) for r in rows[table] if r["_commit_lsn"] <= cut["cut_lsn"]}
            assert below == {(n, o) for (topic, n), end in at if topic == table for o in range(end)}


def all_of(lake: Lake) -> dict[str, list[int]]:
    return {
        t: sorted(e["id"] for (topic, _), log in lake.broker.logs.items() if topic == t for e in log) for t in TABLES
    }


def landed(lake: Lake) -> dict[str, list[int]]:
    return {table: sorted(row["id"] for row in rows_of(lake, table)) for table in TABLES}


def test_followers_read_parts_of_their_own_and_their_rows_are_one_sequence(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(), start()
    lake.broker.send("clicks", 8)
    assert first.read() == 8, "alone first, to begin the tables; then all parts, of all there are"
    for follower in (second, first, second):
        follower.begin()
    assert len(first.follower.mine) == len(second.follower.mine) == 4
    lake.broker.send("clicks", 8)
    lake.broker.send("views", 8)
    assert first.begin() and second.begin(), "both read at once"
    published: list[int | None] = []
    moments = {follower.follower.turn.at for follower in (first, second) if follower.follower.turn}
    assert finish(second, monkeypatch, lambda: published.append(first.finish())) == 8
    assert published == [8], "the other one, while this one read"
    assert {row["_ingested_at"] for table in TABLES for row in rows_of(lake, table)} > moments and len(moments) == 2
    seen: dict[str, int] = {}
    assert_sound(lake, seen)
    assert_cuts(lake)
    ordinals = {row["_commit_lsn"] for table in TABLES for row in rows_of(lake, table)}
    assert ordinals == {7, 15, 23}, "the number of events that come before"
    assert landed(lake) == all_of(lake)


def test_what_a_killed_follower_had_is_read_by_the_others(lake: Lake, start: Callable[[], Shared]) -> None:
    first, second = start(), start()
    first.read()
    for follower in (second, first, second):
        follower.begin()
    lake.broker.send("clicks", 8)
    assert first.begin() and second.begin()
    first.die()
    assert second.finish() is None, "its ordinals count on what the other one had read"
    assert second.read() == 8 and landed(lake) == all_of(lake)
    assert_cuts(lake)


def test_a_topic_that_is_deleted_parks_its_table_and_followers_share_the_others(
    lake: Lake, start: Callable[[], Shared]
) -> None:
    """What is next was asked of all their partitions, so each of them ended: its brokers did "not answer"."""
    first, second = start(), start()
    lake.broker.send("views", 8)
    first.read()
    for follower in (second, first, second):
        follower.begin()
    lake.broker.send("views", 8)
    lake.broker.delete("views")
    for follower in (first, second):
        assert {name.split("/")[0] for name in follower.follower.mine} == {*TABLES}
        assert follower.follower.parts.next_of(follower.follower.mine, 1 << 20).bytes == 0
    lake.broker.send("clicks", 8)
    for follower in (first, second, first, second):
        follower.read()
    with store.connect_catalog(lake.settings) as states:
        views = store.read_positions(states, "web")["views"]
    assert views.state == "parked" and "topic views was deleted" in (views.reason or "")
    assert landed(lake)["clicks"] == all_of(lake)["clicks"] and len(landed(lake)["views"]) == 8
    assert_cuts(lake)


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_its_publish_all_of_a_turn_lands_or_nothing(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    first, second = start(), start()
    first.read()
    for follower in (second, first, second):
        follower.begin()
    lake.broker.send("clicks", 8)
    assert first.begin()
    real = load_changes.publish

    def killed(*given: Any) -> None:
        if not before:
            real(*given)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(load_changes, "publish", killed)
        first.finish()
    first.die()
    assert len(landed(lake)["clicks"]) == (0 if before else 4)
    while second.read() is not None:
        pass
    assert landed(lake) == all_of(lake)
    assert_cuts(lake)


def test_a_late_writer_publishes_nothing(lake: Lake, start: Callable[[], Shared]) -> None:
    """It has read and written its files; its parts are another follower's by then."""
    first, second = start(), start()
    first.read()
    lake.broker.send("clicks", 8)
    assert first.begin() and first.seat is not None
    with store.connect_catalog(lake.settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source LIKE 'web/%'")
    assert second.read() == 8
    assert first.finish() is None and landed(lake) == all_of(lake)
    assert first.read() is None, "nothing is left"
    lake.broker.send("clicks", 4)
    assert (first.read() or 0) + (second.read() or 0) + (first.read() or 0) == 4
    assert_cuts(lake)


def test_a_table_that_is_paused_and_resumed_misses_nothing_of_any_follower(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read by the former state is not published; what waits lands by one writer alone."""
    followers = [start(), start()]
    for follower in (*followers, *followers):
        follower.begin()
    lake.broker.send("clicks", 8)
    clicks = lake.source.table("clicks")
    assert followers[0].begin() and followers[1].begin()
    assert finish(followers[0], monkeypatch, lambda: pause(lake.settings, clicks)) is None
    assert followers[1].finish() is None, "it comes after what was not published"
    for _ in range(3):
        for follower in followers:
            follower.read()
    assert landed(lake)["clicks"] == [] and lake.catalog.load_table(("meta", "spool")).scan().to_arrow().num_rows == 8
    lake.broker.send("clicks", 8)
    lake.broker.send("views", 8)
    for follower in followers:
        follower.read()
    assert landed(lake)["clicks"] == []
    lake.broker.send("clicks", 8)
    assert followers[0].begin()
    assert finish(followers[0], monkeypatch, lambda: resume(lake.settings, clicks)) is None
    for _ in range(4):
        for follower in followers:
            follower.read()
    assert landed(lake) == all_of(lake)
    assert_cuts(lake)


def finish(follower: Shared, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> int | None:
    """Finishes a turn; `meanwhile` comes while its events are read."""
    real = load_changes.run_tasks

    def read(*given: Any) -> Any:
        monkeypatch.setattr(load_changes, "run_tasks", real)
        meanwhile()
        return real(*given)

    monkeypatch.setattr(load_changes, "run_tasks", read)
    return follower.finish()


def test_what_others_have_read_of_a_table_that_one_parks_waits_with_the_rest(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.source = declared(*TABLES, flush=None, columns=ID | {"page": "date"})
    first, second = start(), start()
    for follower in (first, second, first, second):
        follower.begin()
    lake.broker.send("clicks", 8)
    lake.broker.logs["clicks", 2][-1]["page"] = "infinity"  # which the lake's type cannot hold
    assert first.begin() and second.begin() and "clicks/2" in first.follower.mine
    assert finish(second, monkeypatch, first.finish) is None, "its files have rows of a table that lands no more"
    for follower in (first, second, first, second):
        follower.read()
    with store.connect_catalog(lake.settings) as states:
        assert store.read_positions(states, "web")["clicks"].state == "parked"
    spool = lake.catalog.load_table(("meta", "spool")).scan().to_arrow().to_pylist()
    kept = [(row["partition"], row["offset"]) for row in spool]
    rows = [(row["_topic_partition"], row["_offset"]) for row in rows_of(lake, "clicks")]
    assert sorted(kept + rows) == [(number, offset) for number in range(4) for offset in range(2)]
    assert {place for place in kept if place[0] < 2} == {(0, 0), (0, 1), (1, 0), (1, 1)}, "of the other one all"


def test_another_declaration_is_followed_by_one_and_read_by_all(lake: Lake, start: Callable[[], Shared]) -> None:
    old = [start(), start()]
    for follower in (*old, *old):
        follower.begin()
    lake.broker.says = "/a"
    lake.broker.send("clicks", 8)
    assert old[1].begin()
    old[0].leave()
    assert old[1].seat is not None
    expire(lake, old[1].seat)
    lake.source = declared(*TABLES, flush=None, columns=ID | {"page": "text"})
    new = [start(), start()]
    why = for_one_writer(new[0].session, new[0].follower.source, new[0].states)
    assert why == "table clicks follows another declaration"
    for _ in range(4):
        for follower in new:
            follower.read()
    assert [row["page"] for row in rows_of(lake, "clicks")] == ["/a"] * 8
    assert old[1].finish() is None, "by the columns of before"
    assert landed(lake) == all_of(lake)
    assert_cuts(lake)


def test_partitions_that_are_added_are_claimed(lake: Lake, start: Callable[[], Shared]) -> None:
    followers = [start(), start()]
    for follower in (*followers, *followers):
        follower.begin()
    lake.broker.partitions = 7
    lake.broker.send("clicks", 14)
    with store.connect_catalog(lake.settings) as states:
        assert claims.unclaimed(states, "web", followers[0].follower.parts.parts()) != ()
    for _ in range(3):
        for follower in followers:
            follower.read()
    with store.connect_catalog(lake.settings) as states:
        assert claims.unclaimed(states, "web", followers[0].follower.parts.parts()) == ()
    assert landed(lake) == all_of(lake)


def test_files_that_others_write_are_spared_until_they_can_be_published_no_more(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(), start()
    for follower in (first, second, first, second):
        follower.begin()
    lake.broker.send("clicks", 8)
    written: list[str] = []

    def look() -> None:
        found = first.states.execute("SELECT DISTINCT writer FROM lakehouse.staged_files ORDER BY 1")
        written.extend(writer for (writer,) in found.fetchall())

    assert first.begin() and second.begin()
    finish(second, monkeypatch, lambda: finish(first, monkeypatch, look))
    assert written == ["web/follower/1", "web/follower/2"], "each has named what it writes, while the other one writes"
    for follower in (first, second):
        seat = follower.seat
        assert seat is not None
        for cycle in ("a", "b"):
            store.register_staged(follower.states, seat.source + cycle, "web", ["file:///x"], (), seat.source)
    query = "SELECT cycle_id FROM lakehouse.staged_files ORDER BY 1"
    assert [row[0] for row in first.states.execute(query)] == ["web/follower/1b", "web/follower/2b"]
    first.leave()
    second.leave()
    lake.broker.send("clicks", 1)
    lake.once()
    assert first.states.execute(query).fetchall() == []


@pytest.mark.parametrize("kind", ["postgres", "debezium"])
def test_a_source_that_one_follower_has_to_read_is_refused_in_one_line(kind: str) -> None:
    source = declared("clicks", flush=None)
    other = source.model_copy(
        update={"tables": tuple(table.model_copy(update={"kind": kind}) for table in source.tables)}
    )
    with pytest.raises(LakehouseError, match=f"kind {kind} has one order.*without --share") as refused:
        check_shared(other)
    assert "\n" not in str(refused.value)
    check_shared(source)
    with pytest.raises(LakehouseError, match=r"declared flush.*remove meta\.flush"):
        check_shared(declared("clicks", flush=FlushPolicy(interval_minutes=10)))


STEPS = ["send", "send", "begin", "begin", "begin", "finish", "finish", "finish", "die", "late", "killed", "widen",
         "once", "pause", "resume", "column", "rewrite"]  # fmt: skip


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 20))])
def test_whatever_happens_every_event_lands_once_where_no_reader_has_passed(
    lake: Lake, start: Callable[[], Shared], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    seen: dict[str, Any] = {"resumed": set()}
    followers = [start() for _ in range(3)]
    lake.once()
    for _ in range(60):
        number, step = chance.randrange(3), chance.choice(STEPS)
        follower, table = followers[number], chance.choice(TABLES)
        has_turn = follower.follower.turn is not None
        if step == "send":
            lake.broker.send(table, chance.randrange(1, 12))
        elif step == "begin" and not has_turn:
            follower.begin()
        elif step == "finish" and has_turn and (follower.is_next or chance.random() < 0.2):
            if not follower.is_next:
                follower.session.stop.set()  # it gives up, as when it is stopped
            follower.finish()
            follower.session.stop.clear()
        elif step == "die":
            follower.die()
            followers[number] = start()
        elif step == "late" and follower.seat is not None:
            expire(lake, follower.seat)
        elif step == "killed" and has_turn and follower.is_next:
            kill_at_publish(follower, monkeypatch, before=chance.random() < 0.5)
            followers[number] = start()
        elif step == "widen" and lake.broker.partitions < 8:
            lake.broker.partitions += 1
        elif step == "once":
            with store.connect_catalog(lake.settings) as states:
                is_free = leases.holder_of(states, "web") is None
            if is_free:
                lake.once()
        elif step in ("pause", "resume"):
            with suppress(LakehouseError):
                (pause if step == "pause" else resume)(lake.settings, lake.source.table(table))
                seen["resumed"].add(table)
                seen.pop(table, None), seen.pop(f"{table} rows", None)
        elif step == "column" and chance.random() < 0.3:
            columns = ID | {"page": "text"} if chance.random() < 0.5 else ID
            lake.source, lake.broker.says = declared(*TABLES, flush=None, columns=columns), "/x"
            for one in followers:
                one.leave()
                one.die()
            followers = [start() for _ in range(3)]
        elif step == "rewrite" and lake.snapshots(table):
            lake.rewrite(table)
        for name in seen["resumed"]:
            seen.pop(name, None), seen.pop(f"{name} rows", None)  # what waited lands at its place
        assert_sound(lake, seen)
    for one in followers:
        one.leave()
    for name in TABLES:
        with suppress(LakehouseError):
            resume(lake.settings, lake.source.table(name))
    lake.once()
    assert landed(lake) == all_of(lake)
    if not seen["resumed"]:
        assert_cuts(lake)


def kill_at_publish(follower: Shared, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    real = load_changes.publish

    def killed(*given: Any) -> None:
        if not before:
            real(*given)
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(load_changes, "publish", killed)
        follower.finish()
    follower.die()
