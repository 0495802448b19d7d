"""What every kind of source has to fulfil, asked of Postgres and of a source of two partitions in memory.

The next kind has its tests before its code: it adds a `Place` to `PLACES`.
"""

import pickle
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import memory_source as memory
import psycopg
import pyarrow as pa
import pytest
from pgoutput_record import scratch_database
from pydantic import SecretStr
from pyiceberg.types import StringType

from ingestion.pipeline.cycle import catch_up, note_if_read
from ingestion.pipeline.session import Session
from ingestion.pipeline.table_plans import covered
from ingestion.schema.changes import META_SCHEMA, PICKED_SCHEMA, Batch
from ingestion.schema.compared import ComparedColumn, Order
from ingestion.schema.facts import ColumnFacts, TableFacts, facts_from_json
from ingestion.schema.positions import POSITIONS, Lsn
from ingestion.schema.problem import TableProblem
from ingestion.sink.writer import pack, unpack
from ingestion.sources.base import LiveStream, OpenSource, Piece, Source, UnreadableRecord
from ingestion.sources.kinds import source_of
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.lanes import not_yet_there
from lakehouse.declarations import RawTable
from lakehouse.declarations import Source as Declared
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.settings import IngestionSettings, Settings, SourceSettings
from tests.clusters import Cluster, wait_for, with_standby
from tests.marks import slow

pytestmark = pytest.mark.stack
TABLE = RawTable(
    source="shop", name="items", description="", columns=(), raw=RawPolicy(relation="public.items", key=("id",)),
    load=LoadPolicy(), maintenance=None, owners=(),
)  # fmt: skip
Row = tuple[tuple[int, int], str, str, str | None]  # place in the order of all, operation, key, value


@dataclass(frozen=True)
class Place:
    """One kind of source to ask: what writes into it and alters it, and which rows of a read are from a position on.

    `publish` is the lake that has got so far.
    """

    source: Source[Any]
    states: Any
    publish: Callable[[Any], None]
    write: Callable[[str, str, str | None], None]
    alter: Callable[[], None]
    is_from: Callable[[Row, Any], bool]


@contextmanager
def in_memory(server: str) -> Iterator[Place]:
    log = memory.Log()
    with (
        scratch_database(server) as url,
        psycopg.connect(url, autocommit=True) as c,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setitem(cast(Any, POSITIONS), "memory", memory.Offsets)
        ensure_state(c)
        store.create_stream(cast(Any, c), "shop", "", store.Cluster("", 0), 0, kind="memory")
        yield from _in_memory(log, c)


def _in_memory(log: memory.Log, states: Any) -> Iterator[Place]:
    def publish(position: memory.Offsets) -> None:
        store.advance_positions(states, "shop", position)

    def alter() -> None:
        log.columns += ("more",)

    def is_from(row: Row, position: memory.Offsets) -> bool:
        return not position.has(*log.arrived[row[0][0]])

    yield Place(cast(Any, memory.MemorySource(log)), states, publish, log.write, alter, is_from)


@contextmanager
def in_postgres(server: str, standby: int | None = None) -> Iterator[Place]:
    with scratch_database(server) as url, psycopg.connect(url, autocommit=True) as c:
        c.execute("CREATE TABLE items (id text PRIMARY KEY, v text)")
        c.execute("ALTER TABLE items REPLICA IDENTITY FULL")
        c.execute("CREATE PUBLICATION lakehouse FOR TABLE items")
        ensure_state(c)
        shop = SourceSettings(url=SecretStr(url))
        if standby is not None:
            read = psycopg.conninfo.make_conninfo(url, port=standby)
            shop = SourceSettings(url=SecretStr(read), primary_url=SecretStr(url))
        settings = Settings(sources={"shop": shop})

        def write(operation: str, key: str, value: str | None) -> None:
            statement = {
                "c": "INSERT INTO items VALUES (%(key)s, %(value)s)",
                "u": "UPDATE items SET v = %(value)s WHERE id = %(key)s",
                "d": "DELETE FROM items WHERE id = %(key)s",
            }[operation]
            c.execute(statement, {"key": key, "value": value})

        def alter() -> None:
            c.execute("ALTER TABLE items ADD more int")

        def publish(position: Any) -> None:
            store.advance_positions(cast(Any, c), "shop", position)

        source = source_of(settings, "shop", 30.0, Event())
        yield Place(source, c, publish, write, alter, lambda row, position: row[0][0] >= position)
        mine = "FROM pg_replication_slots WHERE slot_type = 'logical'"
        while c.execute(f"SELECT slot_name {mine}").fetchone():  # until its reader has gone
            c.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine} AND NOT active")


@contextmanager
def in_standby(primary: Cluster, standby: Cluster) -> Iterator[Place]:
    """Everything is written to the primary, and on its standby when that returns."""
    with in_postgres(primary.url(), standby.port) as place:

        def write(operation: str, key: str, value: str | None) -> None:
            place.write(operation, key, value)
            wait_for(standby, primary)

        def alter() -> None:
            place.alter()
            wait_for(standby, primary)

        wait_for(standby, primary)
        yield replace(place, write=write, alter=alter)


PLACES = {"memory": in_memory, "postgres": in_postgres}


@pytest.fixture(params=[*PLACES, slow("standby")])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = (
        in_standby(*request.getfixturevalue("pair"))
        if request.param == "standby"
        else PLACES[request.param](request.getfixturevalue("cluster"))
    )
    with made as place:
        yield place


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its standby."""
    with with_standby(hot_standby_feedback="on") as both:
        yield both


@pytest.fixture
def source(place: Place) -> Iterator[OpenSource[Any]]:
    with place.source.open() as opened:
        opened.check(place.states)
        yield opened


def change(place: Place, chance: random.Random, table: dict[str, str | None], count: int) -> None:
    """So many changes by one row each; `table` is what the source holds."""
    for _ in range(count):
        key, value = str(chance.randrange(8)), "".join(chance.choices(string.ascii_letters, k=5))
        operation = "c" if key not in table else chance.choice("ud")
        place.write(operation, key, None if operation == "d" else value)
        table.pop(key) if operation == "d" else table.update({key: value})


def rows_of(reader: Any) -> list[Row]:
    """What a read lands, in the order of all; the reader has travelled to a task."""
    pieces: list[Piece] = []
    reader = unpack(pack(reader))
    reader.read(no_key, lambda: Everything(), frozenset(), pieces.append)
    return rows_in(batch for piece in pieces for batch in piece.batches)


def rows_in(batches: Iterable[Batch]) -> list[Row]:
    """The rows of batches, in the order of all."""
    rows = []
    for batch in batches:
        assert batch.meta.schema.names[: len(META_SCHEMA)] == META_SCHEMA.names
        for meta, value in zip(batch.meta.to_pylist(), batch.values.to_pylist(), strict=True):
            rows.append(((meta["_commit_lsn"], meta["_seq"]), meta["_op"], value["id"], value["v"]))
    return sorted(rows)


class Everything(frozenset[int]):
    """All relations, whatever their numbers."""

    def __contains__(self, relation: object) -> bool:
        return True


def replayed(rows: list[Row], into: dict[str, str | None] | None = None) -> dict[str, str | None]:
    """The table after the rows of a log."""
    found = dict(into or {})
    for _, operation, key, value in rows:
        found.pop(key, None) if operation == "d" else found.update({key: value})
    return found


def now_of(source: OpenSource[Any], place: Place) -> Any:
    """The source's end once what was written can be read."""
    if isinstance(source.now().position, Lsn):
        (end,) = cast(Any, place.states.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone())
        while source.now().position < end:
            pass
    return source.now()


def test_positions_compare_and_join_and_are_spelled(place: Place, source: OpenSource[Any]) -> None:
    found, chance, table = [source.now().position], random.Random(1), dict[str, str | None]()
    for _ in range(6):
        change(place, chance, table, 2)
        found.append(now_of(source, place).position)
    found.append(found[1].join(found[3]))
    for one in found:
        assert one <= one and one.join(one) == one
        assert type(one).parse(one.text) == one and type(one).start() <= one and type(one).start().commit_bound == 0
        for other in found:
            both = one.join(other)
            assert one <= both and other <= both and both == other.join(one)
            assert (one <= other) == (both == other)
            assert not one <= other or one.commit_bound <= other.commit_bound
            for third in found:
                assert both.join(third) == one.join(other.join(third))
                assert not (one <= third and other <= third) or both <= third, "no lower one is above both"
    assert all(before <= after for before, after in pairwise(found[:-1])), "time goes on"


def test_two_positions_may_each_be_ahead_of_the_other() -> None:
    one, other = memory.Offsets((3, 1)), memory.Offsets((2, 4))
    assert not one <= other and not other <= one and one.join(other) == memory.Offsets((3, 4))
    assert one.text == "topic/0:3,topic/1:1"


def stored(place: Place) -> list[tuple[str, str]]:
    """Each position of the state as text: of the stream, and of its tables."""
    query = 'SELECT source, position FROM lakehouse.streams UNION SELECT "table", position FROM lakehouse.positions'
    return sorted(cast(Any, place.states).execute(query).fetchall())


def test_the_state_keeps_a_position_as_its_source_writes_it(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(12), {}, 5)
    first = now_of(source, place).position
    place.publish(first)
    snapshotted = store.TablePosition("items", 1, first, "loading", first)
    store.put_position(place.states, "shop", snapshotted, "load")
    assert stored(place) == [("items", first.text), ("shop", first.text)]
    change(place, random.Random(13), {}, 5)
    later = now_of(source, place).position
    store.put_position(place.states, "shop", replace(snapshotted, position=later, state="streaming"), "load")
    place.publish(first)
    stream, positions = store.read_stream(place.states, "shop"), store.read_positions(place.states, "shop")
    assert stream is not None and (stream.position, positions["items"].position, positions["items"].point) == (
        first, later, first,
    )  # fmt: skip
    assert covered(positions, first) == () and covered(positions, later) == ("items",)


def test_of_two_positions_of_which_neither_is_further_the_state_keeps_what_both_have_reached(cluster: str) -> None:
    """By numbers alone the smaller one was lost."""
    with in_memory(cluster) as place:
        one, other = memory.Offsets((3, 1)), memory.Offsets((2, 4))
        store.put_position(place.states, "shop", store.TablePosition("items", 1, one, "loading", one), "load")
        place.publish(other)
        place.publish(one)
        assert stored(place) == [("items", "topic/0:3,topic/1:4"), ("shop", "topic/0:3,topic/1:4")]
        ahead = {"items": store.TablePosition("items", 1, one, "streaming", one)}
        assert covered(ahead, cast(Any, other)) == (), "the cut has not reached one of its partitions"


def test_the_pipeline_passes_a_backlog_in_parts_and_confirms_what_it_has_published(place: Place) -> None:
    """A source of which no table is declared: all of a cycle but what writes rows."""
    held = dict[str, str | None]()
    change(place, random.Random(14), held, 40)
    states = cast(Any, place.states)
    lease = leases.acquire(states, "shop", 60, "once")
    assert lease is not None
    settings = Settings(ingestion=IngestionSettings(cycle_max_bytes=3))
    session = Session(
        settings,
        cast(Any, None),
        cast(Any, None),
        lease,
        Declared(name="shop", description="", load=LoadPolicy(), tables=()),
        origin=place.source,
    )
    with place.source.open() as opened:
        opened.check(states)
        end = now_of(opened, place)
        outcome = catch_up(session, opened, states, end.position)
        assert end.position <= outcome.position and outcome.rows == {}
        stream = store.read_stream(states, "shop")
        assert stream is not None and stream.position == outcome.position
        assert not [row for row in rows_of(opened.change_reader(end, None)) if place.is_from(row, outcome.position)]
        assert_noted(session, opened, place, held)


def assert_noted(session: Session, opened: OpenSource[Any], place: Place, held: dict[str, str | None]) -> None:
    """A source in which nothing happens was read until its clock said so, whether a cycle or a follower looked."""
    states, before = cast(Any, place.states), opened.now()

    def noted() -> datetime:
        return cast(datetime, states.execute("SELECT read_at FROM lakehouse.streams").fetchone()[0])

    end = catch_up(session, opened, states).position
    assert before.at <= noted() <= opened.now().at
    change(place, random.Random(15), held, 1)
    there, later = now_of(opened, place), datetime.now(UTC) + timedelta(hours=1)
    assert not there.position <= end
    for position, expected in ((there.position, False), (end, True)):
        looked = SimpleNamespace(now=lambda at=position: replace(there, position=at, at=later))
        note_if_read(session, cast(Any, looked), states)
        assert (noted() == later) is expected


def test_to_read_twice_gives_the_same(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(2), {}, 30)
    now = now_of(source, place)
    first = rows_of(source.change_reader(now, None))
    assert len(first) == 30 == len({row[0] for row in first}), "every row has a place of its own"
    change(place, random.Random(3), replayed(first), 5)
    assert rows_of(source.change_reader(now, None)) == first, "what comes later is not below the position"
    with place.source.open() as again:
        again.check(place.states)
        assert rows_of(again.change_reader(now, None)) == first


def test_the_bound_of_a_position_parts_what_was_read_below_from_all_later_rows(
    place: Place, source: OpenSource[Any]
) -> None:
    """The pipeline passes over the rows below the bound, and gives the rows of a snapshot the number before it."""
    for key in ("0", "2", "4", "6", "1"):  # one partition is far ahead of the others
        place.write("c", key, "v")
    with source.snapshot([TABLE]) as point:
        for key in ("3", "5", "7", "8"):
            place.write("c", key, "v")
    now = now_of(source, place)
    stops = [source.stop_between(type(now.position).start(), now.position, size) for size in (1, 3, 6)]
    rows, found = rows_of(source.change_reader(now, None)), list[Batch]()
    source.change_reader(now, None).read(no_key, Everything, frozenset(), lambda piece: found.extend(piece.batches))
    for position in (type(now.position).start(), *stops, point.position, now.position):
        later = [batch for batch in (not_yet_there(batch, position.commit_bound) for batch in found) if batch]
        numbers = [row["_commit_lsn"] for batch in later for row in batch.meta.to_pylist()]
        assert sorted(numbers) == [row[0][0] for row in rows if place.is_from(row, position)], position.text


def test_nothing_is_lost_whatever_was_confirmed(place: Place, source: OpenSource[Any]) -> None:
    """A crash comes before the publish, or between it and the confirmation; the lake passes over what it has."""
    chance, table, lake = random.Random(4), dict[str, str | None](), list[Row]()
    for crash in ("none", "before", "between", "none", "between", "before", "before", "none"):
        change(place, chance, table, chance.randrange(4))
        with place.source.open() as opened:
            opened.check(place.states)
            now = now_of(opened, place)
            found = [row for row in rows_of(opened.change_reader(now, None)) if row[0] not in {had[0] for had in lake}]
            if crash != "before":
                lake += found
                place.publish(now.position)
            if crash == "none":
                opened.confirm(now.position)
    assert replayed(lake) == table
    assert len({row[0] for row in lake}) == len(lake)


def test_a_confirmed_change_does_not_have_to_be_read_again(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(5), {}, 10)
    now = now_of(source, place)
    before = rows_of(source.change_reader(now, None))
    place.publish(now.position)
    source.confirm(now.position)
    source.confirm(now.position)
    change(place, random.Random(6), replayed(before), 4)
    after = rows_of(source.change_reader(now_of(source, place), None))
    assert len([row for row in after if place.is_from(row, now.position)]) == 4 and len(before) == 10
    assert not [row for row in before if place.is_from(row, now.position)]


def test_a_snapshot_holds_what_the_stream_lacks_from_its_point_on(place: Place, source: OpenSource[Any]) -> None:
    chance, table = random.Random(7), dict[str, str | None]()
    change(place, chance, table, 20)
    looked: list[None] = []
    with source.snapshot([TABLE], lambda: looked.append(None)) as point:
        at_point = dict(table)
        change(place, chance, table, 15)
        facts, problem = source.inspect(TABLE, None)
        assert problem is None and facts is not None and looked
        readers = [source.row_reader(TABLE, facts, chunk, point) for chunk in source.ranges(facts, 1 << 20)]
        parts = [part for reader in readers for part in unpack(pack(reader)).rows(as_text=True)]  # type: ignore
    snapshot = {row["id"]: row["v"] for part in parts for row in part.to_pylist()}
    assert snapshot == at_point
    stream = rows_of(source.change_reader(now_of(source, place), None))
    from_there_on = [row for row in stream if place.is_from(row, point.position)]
    assert len(from_there_on) == 15 and len(stream) - len(from_there_on) == 20
    assert replayed(from_there_on, snapshot) == table


def test_what_was_read_at_a_point_holds_unless_the_session_that_keeps_its_tables_was_ended(
    place: Place, source: OpenSource[Any]
) -> None:
    """Without its lock, VACUUM FULL between two ranges of a table emptied the later one."""
    with source.snapshot([TABLE]) as point:
        point.check()
        if not isinstance(point.position, Lsn):
            return
        holders = "SELECT pid FROM pg_locks WHERE relation = 'public.items'::regclass AND mode = 'AccessShareLock'"
        opened = cast(Any, source).connection
        for (pid,) in opened.execute(holders).fetchall():
            opened.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with pytest.raises(LakehouseError, match="what was read is not published, and is read again"):
            point.check()
        assert pickle.loads(pickle.dumps(point)) == point


def test_a_backlog_is_read_in_parts_that_come_to_its_end(place: Place, source: OpenSource[Any]) -> None:
    reached, chance, table = source.now().position, random.Random(11), dict[str, str | None]()
    change(place, chance, table, 40)
    now, found = now_of(source, place), list[Row]()
    for _ in range(50):
        if now.position <= reached:
            break
        stop = source.stop_between(reached, now.position, 7)
        assert reached <= stop <= now.position and stop != reached and source.distance(reached, stop) > 0
        found += rows_of(source.change_reader(replace(now, position=stop), None))
        place.publish(stop)
        source.confirm(stop)
        reached = stop
    assert now.position <= reached and replayed(found) == table


def test_the_live_stream_brings_what_a_read_brings(place: Place, source: OpenSource[Any]) -> None:
    live = source.stream(source.now().position, 1 << 20)
    try:
        change(place, random.Random(8), {}, 12)
        now = now_of(source, place)
        live.reach(now.position, 20)
        assert live.has_changes and now.position <= live.position
        reader = source.change_reader(now, live)
        received = rows_of(reader)
        assert len(received) == 12 and not reader.is_silent
        assert rows_of(source.change_reader(now, live)) == received, "it stays until it is confirmed"
        source.confirm(now.position, live)
        assert source.change_reader(now, live).is_silent
    finally:
        live.close()


def test_kept_records_tell_their_relation_and_place(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(9), {}, 6)
    records: list[Any] = []
    reader = unpack(pack(source.change_reader(now_of(source, place), None)))
    cast(Any, reader).read(no_key, frozenset, frozenset(), lambda piece: records.append(piece.records(Everything())))
    kept = [row for table in records for row in table.to_pylist()]
    assert all(table.schema == PICKED_SCHEMA for table in records)
    assert len(kept) == 6 == len({(row["commit_lsn"], row["place"]) for row in kept}) and all(
        row["message"] for row in kept
    )


def test_an_alteration_shows_in_the_fingerprint_and_nothing_else_does(place: Place, source: OpenSource[Any]) -> None:
    before = source.fingerprints([TABLE])
    change(place, random.Random(10), {}, 5)
    assert source.fingerprints([TABLE]) == before
    place.alter()
    assert source.fingerprints([TABLE]) != before


def test_a_committed_change_is_below_the_position_that_was_asked_for_after_it(
    place: Place, source: OpenSource[Any]
) -> None:
    change(place, random.Random(15), {}, 8)
    committed = source.committed()
    place.write("c", "9", "later")
    found = rows_of(source.change_reader(replace(now_of(source, place), position=committed), None))
    assert len(found) == 8 and not [row for row in found if place.is_from(row, committed)]


def test_what_is_kept_grows_with_changes(place: Place, source: OpenSource[Any]) -> None:
    before = source.retention(None)
    assert before.is_sound and before.state != "missing" and not before.is_read
    change(place, random.Random(16), {}, 200)
    assert source.retention(store.read_stream(place.states, "shop")).bytes > before.bytes


def test_a_check_alone_finds_a_sound_source_so_and_changes_nothing(place: Place, source: OpenSource[Any]) -> None:
    place.publish(now_of(source, place).position)
    before = store.read_stream(place.states, "shop")
    assert before is not None
    live = source.stream(before.position, 1 << 20)
    try:
        source.check_only(place.states)
    finally:
        live.close()
    assert store.read_stream(place.states, "shop") == before


def test_a_source_begun_anew_keeps_nothing_and_is_read_in_the_next_epoch(place: Place, source: OpenSource[Any]) -> None:
    table: dict[str, str | None] = {}
    change(place, random.Random(17), table, 6)
    place.publish(now_of(source, place).position)
    source.begin_anew(place.states)(place.states)
    assert source.retention(None).state == "missing" and not source.retention(None).is_sound
    stream = source.check(place.states)
    assert stream.epoch == 2 and source.retention(stream).is_sound
    with source.snapshot([TABLE]) as point:
        change(place, random.Random(18), dict(table), 5)
    found = rows_of(source.change_reader(now_of(source, place), None))
    assert len([row for row in found if place.is_from(row, point.position)]) == 5


def test_a_source_is_begun_anew_while_a_killed_reader_of_ours_is_connected(
    place: Place, source: OpenSource[Any]
) -> None:
    """`--recover` right after a follower was killed was refused: its slot was active."""
    left = source.stream(now_of(source, place).position, 1 << 20)
    try:
        source.begin_anew(place.states)(place.states)
    finally:
        left.close()
    assert source.retention(None).state == "missing" and source.check(place.states).epoch == 2


def described(source: OpenSource[Any], table: RawTable = TABLE) -> TableFacts:
    facts, problem = source.inspect(table, None)
    assert facts is not None and problem is None
    return facts


def test_a_table_is_described_by_a_number_under_which_it_is_found_again(place: Place, source: OpenSource[Any]) -> None:
    facts = described(source)
    assert facts_from_json(facts.to_json()) == facts, "it is stored as JSON"
    assert [column.name for column in facts.columns] == ["id", "v"] and "id" in facts.identity
    assert source.name_of(facts.oid) == facts.relation and source.name_of(2**31 - 1) is None
    assert source.holds_tables, "a log of events has tests of its own"
    elsewhere = declared_with(relation="public.moved")
    again, _ = source.inspect(elsewhere, facts.oid)
    assert again is not None and again.oid == facts.oid
    source.check_readable(TABLE, facts)


def declared_with(**given: Any) -> RawTable:
    return TABLE.model_copy(update={"raw": TABLE.raw.model_copy(update=given)})


def test_a_declared_key_that_two_rows_have_is_refused(place: Place, source: OpenSource[Any]) -> None:
    by_value = declared_with(key=("v",))
    place.write("c", "1", "same")
    source.check_key(by_value, described(source, by_value))
    place.write("c", "2", "same")
    source.check_key(TABLE, described(source))
    with pytest.raises(TableProblem, match="one declared key"):
        source.check_key(by_value, described(source, by_value))


def test_inside_one_moment_all_is_read_as_it_was(place: Place, source: OpenSource[Any]) -> None:
    table: dict[str, str | None] = {}
    change(place, random.Random(19), table, 20)
    facts = described(source)

    def read() -> list[tuple[str | None, ...]]:
        order: list[tuple[ColumnFacts, Order]] = [(facts.columns[0], "bytes")]
        return [tuple(row) for row in source.ordered_rows(TABLE, facts.columns, order)]

    with source.at_one_moment():
        then = read()
        change(place, random.Random(20), dict(table), 10)
        assert read() == then == sorted(table.items())
    with source.at_one_moment():
        assert read() != then


def test_a_comparison_sees_the_table_at_its_point(place: Place, source: OpenSource[Any]) -> None:
    """Digests and rows are what `ingestion.schema.compared` says, from whatever parts they come."""
    chance, table = random.Random(21), dict[str, str | None]()
    change(place, chance, table, 30)
    place.write("c", "8", None)
    table["8"] = None
    facts = described(source)
    columns = [ComparedColumn(column, StringType(), None) for column in facts.columns]
    with source.snapshot([TABLE]) as point:
        at_point = dict(table)
        change(place, chance, table, 10)
        compared = source.compared(TABLE, facts, columns, columns[:1], point, None)
        cells = {memory.cell(key): memory.cell(key) + memory.cell(value) for key, value in at_point.items()}
        lines = {key: md5(line.encode()).hexdigest() for key, line in cells.items()}
        digests = asked(compared.digests())
        expected = [(memory.bucket(key), memory.signed(line)) for key, line in lines.items()]
        assert {row["bucket"] for row in digests} == {bucket for bucket, _ in expected}
        assert sum(row["rows"] for row in digests) == len(expected)
        assert sum(int(row["total"]) for row in digests) == sum(number for _, number in expected)
        every = asked(compared.rows(None, printed=True))
        assert {row["key"]: row["line"] for row in every} == lines
        assert {row["s0"]: row["s1"] for row in every} == at_point
        one = memory.bucket(memory.cell("8"))
        assert asked(compared.rows([one], printed=False)) == [row for row in every if memory.bucket(row["key"]) == one]


def asked(readers: Sequence[Any]) -> list[dict[str, Any]]:
    """All rows of what has travelled to tasks."""
    return [row for reader in readers for batch in unpack(pack(reader)).batches() for row in batch.to_pylist()]  # type: ignore


def test_the_ranges_of_a_table_are_as_many_as_its_size_says(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(22), {}, 50)
    [sizes] = [source.sizes([TABLE])[TABLE.name]]
    for chunk_bytes in (1 << 13, 1 << 30):
        assert all(size >= 0 for size in sizes)
        ranges = source.ranges(described(source), chunk_bytes)
        assert 1 <= len(ranges) == max(1, sum(source.ranges_of(size, chunk_bytes) for size in sizes))


def no_key(relation: Any) -> None:
    """Keys where none is declared."""


def records_of(source: OpenSource[Any]) -> Any:
    """How its records are kept, and read as its table is described now."""
    return source.records({"t": described(source)})


def kept_records(source: OpenSource[Any], place: Place) -> pa.Table:
    """All records that a read keeps, as they are stored."""
    found: list[Any] = []
    reader = cast(Any, source.change_reader(now_of(source, place), None))
    reader.read(no_key, frozenset, frozenset(), lambda piece: found.append(piece.records(Everything())))
    records = pa.concat_tables(found)
    return records.append_column("seq", pa.array([2 * place for place in records["place"].to_pylist()], pa.int64()))


def test_kept_records_become_the_rows_that_a_read_lands(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(23), {}, 12)
    landed = rows_of(source.change_reader(now_of(source, place), None))
    records = kept_records(source, place)
    [relation] = set(records["relation"].to_pylist())
    assert records_of(source).relation(relation).oid == described(source).oid
    batches = list(unpack(pack(records_of(source))).decode(relation, records, no_key, ()))  # type: ignore
    assert rows_in(batches) == landed
    emptied = [records_of(source).without(message, relation, {"v"}) for message in records["message"].to_pylist()]
    without = records.set_column(records.schema.get_field_index("message"), "message", pa.array(emptied, pa.binary()))
    values = {row[3] for row in rows_in(records_of(source).decode(relation, without, no_key, ()))}
    assert values == {None}


def test_a_kept_record_that_cannot_be_read_is_told_by_its_number(place: Place, source: OpenSource[Any]) -> None:
    change(place, random.Random(24), {}, 5)
    records = kept_records(source, place)
    broken = [b"?" if n == 3 else message for n, message in enumerate(records["message"].to_pylist())]
    records = records.set_column(records.schema.get_field_index("message"), "message", pa.array(broken, pa.binary()))
    with pytest.raises(UnreadableRecord) as failure:
        list(records_of(source).decode(records["relation"][0].as_py(), records, no_key, ()))
    assert failure.value.index == 3 and failure.value.reason


def test_the_contract_asks_for_every_part_of_the_protocol() -> None:
    asked_for = set(re.findall(r"\b(?:source|opened|again|live)\.(\w+)", Path(__file__).read_text()))
    protocols = (OpenSource, LiveStream)
    members = {name for protocol in protocols for name in vars(protocol) if not name.startswith("_")}
    called_by_the_pipeline = {"check_again", "remember", "wait", "below"}  # `catch_up` and `change_reader` do
    assert members - asked_for == called_by_the_pipeline
