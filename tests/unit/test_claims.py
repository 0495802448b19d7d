"""Followers that share a source: each part has one reader, and what they read is published as one sequence."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from ingestion.schema.offsets import Offsets
from ingestion.state import claims, store
from ingestion.state import lease as leases
from ingestion.state.claims import Turn, TurnVoid
from ingestion.state.lease import Lease
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings, load_settings
from tests.marks import slow

SECONDS, PATIENCE = 60.0, 300.0
PARTS = [f"clicks/{number}" for number in range(6)]
SIT = """
import sys, time
from ingestion.state import claims
from ingestion.state import lease as leases
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import load_settings
settings = load_settings(catalog_url=sys.argv[1])
with connect_catalog(settings) as connection:
    seat = leases.take_seat(connection, "web", 60)
    claims.take(connection, seat, 60, sys.argv[2].split())
with leases.kept_alive(settings, seat):
    print(seat.source, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def settings(cluster: str) -> Settings:
    return load_settings(catalog_url=cluster)


@pytest.fixture
def states(settings: Settings) -> Iterator[CatalogConnection]:
    with connect_catalog(settings) as connection:
        ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.leases, lakehouse.claims, lakehouse.turns, lakehouse.streams")
        store.create_stream(connection, "web", "", store.Cluster("c", 0), 0, kind="kafka")
        yield connection


def sit(states: CatalogConnection) -> Lease:
    seat = leases.take_seat(states, "web", SECONDS)
    assert seat is not None
    return seat


def expire(states: CatalogConnection, seat: Lease) -> None:
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source = %s", (seat.source,))


def at(**offsets: int) -> Offsets:
    return Offsets.of({("clicks", int(name[1:])): offset for name, offset in offsets.items()})


def turn_of(states: CatalogConnection, seat: Lease, stop: Offsets) -> Turn:
    mine = claims.share(states, seat, SECONDS, PARTS)
    turn = claims.take_turn(states, seat, SECONDS, PATIENCE, mine, stop)
    assert turn is not None
    return turn


def publish(states: CatalogConnection, turn: Turn) -> None:
    """What a publish does with the state, in its transaction."""
    with states.transaction():
        leases.check(states, turn.seat, SECONDS)
        claims.end_turn(states, turn)
        store.advance_positions(states, "web", turn.reach)


def stands(states: CatalogConnection) -> Offsets:
    stream = store.read_stream(states, "web")
    assert stream is not None
    return Offsets.parse(stream.position.text)


def test_of_fifty_that_claim_at_once_each_part_has_one_winner_and_nobody_has_half(
    settings: Settings, states: CatalogConnection
) -> None:
    """Sets that overlap: who gets one part of its set has all of it."""
    start = threading.Barrier(50)

    def claim(number: int) -> tuple[str, set[str]] | None:
        wanted = {PARTS[number % 6], PARTS[(number + 1) % 6], PARTS[(number + number // 6) % 6]}
        with connect_catalog(settings) as connection:
            seat = sit(connection)
            start.wait()
            return (seat.source, wanted) if claims.take(connection, seat, SECONDS, wanted) else None

    with ThreadPoolExecutor(50) as pool:
        won = [found for found in pool.map(claim, range(50)) if found]
    held = dict(states.execute("SELECT part, seat FROM lakehouse.claims").fetchall())
    assert won and len({seat for seat, _ in won}) == len(won)
    assert held == {part: seat for seat, wanted in won for part in wanted}, "all of a set, or none"
    assert sum(len(wanted) for _, wanted in won) == len(held), "one winner of each part"
    assert len(leases.seats(states, "web")) == 50


def test_a_claim_ends_with_its_seats_time_and_a_late_writer_is_refused(states: CatalogConnection) -> None:
    first, second = sit(states), sit(states)
    assert claims.take(states, first, SECONDS, PARTS) and not claims.take(states, second, SECONDS, PARTS[:1])
    turn = claims.take_turn(states, first, SECONDS, PATIENCE, dict.fromkeys(PARTS, 1), at(p0=10))
    assert turn is not None
    expire(states, first)
    assert claims.take(states, second, SECONDS, PARTS)
    for late in (lambda: publish(states, turn), lambda: turn_of(states, first, at(p0=20))):
        with pytest.raises((TurnVoid, leases.LeaseLost)):
            late()
    assert stands(states) == Offsets()
    generations = {g for (g,) in states.execute("SELECT generation FROM lakehouse.claims").fetchall()}
    assert generations == {2}


def test_a_late_writer_whose_seat_another_one_has_is_refused(states: CatalogConnection) -> None:
    first = sit(states)
    turn = turn_of(states, first, at(p0=10))
    expire(states, first)
    second = sit(states)
    assert second.source == first.source and second.token > first.token
    with pytest.raises(leases.LeaseLost):
        publish(states, turn)
    assert turn_of(states, second, at(p0=5)).base == Offsets(), "what the first one read is read again"


def test_a_claim_that_came_back_to_its_follower_is_another_one(states: CatalogConnection) -> None:
    first, second = sit(states), sit(states)
    claims.take(states, first, SECONDS, PARTS[:1])
    turn = claims.take_turn(states, first, SECONDS, PATIENCE, {PARTS[0]: 1}, at(p0=10))
    assert turn is not None
    for seat, other in ((first, second), (second, first)):
        claims.give_back(states, seat, PARTS[:1])
        assert claims.take(states, other, SECONDS, PARTS[:1])
    with pytest.raises(TurnVoid):
        publish(states, turn)


def test_a_killed_followers_parts_are_free_at_once(settings: Settings, states: CatalogConnection) -> None:
    argv = [sys.executable, "-c", SIT, settings.catalog_dsn(), " ".join(PARTS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seat_name = process.stdout.readline().strip()
        seat = sit(states)
        try:
            assert claims.share(states, seat, SECONDS, PARTS) == {} and seat.source != seat_name
            assert claims.unclaimed(states, "web", PARTS) == ()
        finally:
            process.kill()
    deadline = time.monotonic() + 20
    while claims.unclaimed(states, "web", PARTS) != tuple(PARTS):
        assert time.monotonic() < deadline, "a killed follower counts as alive"
        time.sleep(0.05)
    assert sorted(claims.share(states, seat, SECONDS, PARTS)) == PARTS


def test_parts_are_shared_evenly_as_followers_come_and_go(states: CatalogConnection) -> None:
    seats: list[Lease] = []
    for _ in range(4):
        seats.append(sit(states))
        for _ in range(2):  # one gives back what another one takes
            held = [claims.share(states, seat, SECONDS, PARTS) for seat in seats]
        assert sorted(part for one in held for part in one) == PARTS
        assert max(map(len, held)) - min(map(len, held)) <= 1
    gone = seats.pop(1)
    leases.release(states, gone)
    assert claims.unclaimed(states, "web", PARTS)
    for _ in range(2):
        held = [claims.share(states, seat, SECONDS, PARTS) for seat in seats]
    assert sorted(part for one in held for part in one) == PARTS and [len(one) for one in held] == [2, 2, 2]
    assert claims.share(states, seats[0], SECONDS, PARTS[3:]).keys() <= set(PARTS[3:]), "a topic is gone"


def test_one_writer_and_followers_that_share_keep_each_other_out(states: CatalogConnection) -> None:
    seat = sit(states)
    assert leases.acquire(states, "web", SECONDS, "once") is None
    held = leases.holder_of(states, "web")
    assert held is not None and seat.holder in held[0] and held[1] == "follow"
    assert leases.follower_of(states, "web") == "alive"
    leases.release(states, seat)
    assert leases.follower_of(states, "web") == "none" and leases.holder_of(states, "web") is None
    alone = leases.acquire(states, "web", SECONDS, "once")
    assert alone is not None and leases.take_seat(states, "web", SECONDS) is None
    with pytest.raises(leases.LeaseLost):
        leases.check(states, seat, SECONDS)
    leases.release(states, alone)
    assert leases.take_seat(states, "web", SECONDS) is not None


def test_who_was_late_is_refused_also_after_one_writer_and_another_group(states: CatalogConnection) -> None:
    late = sit(states)
    turn = turn_of(states, late, at(p0=10))
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
    alone = leases.acquire(states, "web", SECONDS, "follow")
    assert alone is not None
    with pytest.raises(leases.LeaseLost):
        publish(states, turn)
    leases.release(states, alone)
    again = sit(states)
    with pytest.raises(leases.LeaseLost):
        publish(states, turn)
    assert turn_of(states, again, at(p1=1)).base == Offsets()


def test_a_writer_of_the_release_before_is_kept_out_while_followers_share(states: CatalogConnection) -> None:
    """It goes by the lease's row alone: its time, and the session that is stored with its token."""
    seat = sit(states)
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source = %s", (seat.source,))
    leases.check(states, seat, SECONDS)
    row = states.execute(
        "SELECT expires_at > clock_timestamp() + interval '50 s', session_token IS DISTINCT FROM token, mode"
        " FROM lakehouse.leases WHERE source = 'web'"
    ).fetchone()
    assert row == (True, True, "follow")


def test_who_waits_for_a_group_that_begins_sees_who_is_in_it(settings: Settings, states: CatalogConnection) -> None:
    """A statement that waited for a row sees that row as it is now, and all others as they were."""
    alone = leases.acquire(states, "web", SECONDS, "once")
    assert alone is not None
    leases.release(states, alone)
    with ThreadPoolExecutor(1) as pool, connect_catalog(settings) as other:
        with states.transaction():
            assert leases.take_seat(states, "web", SECONDS) is not None
            waiting = pool.submit(leases.acquire, other, "web", SECONDS, "once")
            time.sleep(0.5)
            assert not waiting.done()
        assert waiting.result(10) is None


def test_seats_of_a_former_group_are_no_seats_of_the_next_one(states: CatalogConnection) -> None:
    former = [sit(states), sit(states)]
    claims.share(states, former[1], SECONDS, PARTS)
    states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source = 'web'")
    now = sit(states)
    assert leases.seats(states, "web").keys() == {now.source}
    assert sorted(claims.share(states, now, SECONDS, PARTS)) == PARTS


def test_of_many_that_come_at_once_either_one_is_alone_or_all_share(
    settings: Settings, states: CatalogConnection
) -> None:
    for _ in range(5):
        states.execute("TRUNCATE lakehouse.leases")

        def come(number: int) -> Lease | None:
            with connect_catalog(settings) as connection:
                if number % 2:
                    return leases.acquire(connection, "web", SECONDS, "once")
                return leases.take_seat(connection, "web", SECONDS)

        with ThreadPoolExecutor(16) as pool:
            won = [lease for lease in pool.map(come, range(32)) if lease]
        alone = [lease for lease in won if lease.group is None]
        assert (len(alone), len(won)) in ((1, 1), (0, 16))


def test_who_finds_a_seat_that_its_late_follower_renews_takes_another_one(
    settings: Settings, states: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = sit(states), sit(states)
    expire(states, late)
    real = leases.acquire

    def renewed_before(connection: CatalogConnection, source: str, *given: Any) -> Lease | None:
        if source == late.source:
            with connect_catalog(settings) as own:
                own.execute("UPDATE lakehouse.leases SET expires_at = 'infinity' WHERE source = %s", (source,))
        return real(connection, source, *given)

    monkeypatch.setattr(leases, "acquire", renewed_before)
    assert {sit(states).source, late.source, other.source} == {f"web/follower/{number}" for number in (1, 2, 3)}


def test_turns_are_published_in_the_order_they_were_taken(states: CatalogConnection) -> None:
    seats = [sit(states), sit(states)]
    for _ in range(2):
        held = [claims.share(states, seat, SECONDS, PARTS) for seat in seats]
    assert PARTS[0] in held[0] and PARTS[5] in held[1]
    first, second = turn_of(states, seats[0], at(p0=10)), turn_of(states, seats[1], at(p5=7))
    assert (first.base, first.reach) == (at(), at(p0=10)) == (at(), second.base)
    assert second.reach == at(p0=10, p5=7) and second.at > first.at
    with pytest.raises(TurnVoid):
        publish(states, second)
    publish(states, first)
    publish(states, second)
    assert stands(states) == at(p0=10, p5=7)
    with pytest.raises(TurnVoid):
        publish(states, second)


def test_a_turn_is_not_published_where_the_lake_stands_elsewhere(states: CatalogConnection) -> None:
    """Whatever has moved it: a catalog that was restored has seats and turns of then."""
    turn = turn_of(states, sit(states), at(p0=10))
    store.advance_positions(states, "web", at(p0=4))
    with pytest.raises(TurnVoid):
        publish(states, turn)
    assert stands(states) == at(p0=4)


def test_a_turn_that_is_given_up_takes_those_after_it_along(states: CatalogConnection) -> None:
    seats = [sit(states) for _ in range(3)]
    for _ in range(2):
        held = [claims.share(states, seat, SECONDS, PARTS) for seat in seats]
    stops = [Offsets.of({("clicks", int(min(one)[-1])): 10}) for one in held]
    before, middle, after = (turn_of(states, seat, stop) for seat, stop in zip(seats, stops, strict=True))
    claims.give_up(states, middle)
    publish(states, before)
    with pytest.raises(TurnVoid):
        claims.wait_for(states, after, PATIENCE, threading.Event())
    with pytest.raises(TurnVoid):
        publish(states, after)
    again = turn_of(states, seats[2], stops[2])
    assert again.base == before.reach and again.at > after.at
    publish(states, again)


@pytest.mark.parametrize("how", ["gone", "hung"])
def test_who_waits_for_a_turn_that_never_ends_is_told(states: CatalogConnection, how: str) -> None:
    first, second = sit(states), sit(states)
    for _ in range(2):
        for seat in (first, second):
            claims.share(states, seat, SECONDS, PARTS)
    turn_of(states, first, at(p0=10))
    waiting = turn_of(states, second, at(p5=10))
    if how == "gone":
        expire(states, first)
    else:
        states.execute("UPDATE lakehouse.turns SET at = at - interval '1 h' WHERE seat = %s", (first.source,))
    with pytest.raises(TurnVoid):
        claims.wait_for(states, waiting, PATIENCE, threading.Event())
    assert turn_of(states, second, at(p5=10)).base == Offsets()


def test_who_is_to_stop_does_not_wait_for_its_turn(states: CatalogConnection) -> None:
    first, second = sit(states), sit(states)
    for _ in range(2):
        for seat in (first, second):
            claims.share(states, seat, SECONDS, PARTS)
    turn_of(states, first, at(p0=10))
    stop = threading.Event()
    stop.set()
    with pytest.raises(TurnVoid):
        claims.wait_for(states, turn_of(states, second, at(p5=10)), PATIENCE, stop)


def test_the_part_that_has_not_moved_for_longest_is_known(states: CatalogConnection) -> None:
    seat = sit(states)
    claims.share(states, seat, SECONDS, PARTS)
    claims.note_read(states, seat, PARTS)
    states.execute("UPDATE lakehouse.claims SET read_at = '2026-01-01' WHERE part = %s", (PARTS[3],))
    found = claims.read_until(states, "web", PARTS)
    assert found is not None and found.year == 2026 and found.month == 1
    assert claims.read_until(states, "web", []) is None
    publish(states, turn_of(states, seat, at(p0=1)))
    now = claims.read_until(states, "web", PARTS)
    assert now is not None and now > found


@dataclass
class Reader:
    """One follower, as the random test plays it."""

    connection: CatalogConnection
    seat: Lease | None = None
    turn: Turn | None = None


@dataclass
class World:
    """What was published, as one who reads the lake sees it: in each step more, and never anything before it."""

    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(6), 0))
    rows: dict[tuple[int, int], int] = field(default_factory=dict)  # partition, offset: ordinal
    newest: int = 0
    ingested: object = None


@pytest.mark.parametrize("seed", [0, 1, 2, *map(slow, range(3, 12))])
def test_whatever_followers_do_the_lake_has_one_sequence(
    settings: Settings, states: CatalogConnection, seed: int
) -> None:
    """Random steps of five followers; the oracle knows nothing of claims: events, and what a reader has seen."""
    chance, world = random.Random(seed), World()
    with ExitStack() as stack:
        readers = [Reader(stack.enter_context(connect_catalog(settings))) for _ in range(5)]
        for _ in range(250):
            reader = chance.choice(readers)
            step = chance.choice(["produce", "turn", "turn", "publish", "publish", "publish", "die", "expire", "alone"])
            if step == "produce":
                world.ends[chance.randrange(6)] += chance.randrange(1, 5)
            elif step == "turn" and reader.turn is None:
                try_turn(reader, world, chance)
            elif step == "publish" and reader.turn is not None:
                try_publish(reader, world)
            elif step == "die":
                reader.seat = reader.turn = None  # whatever it had is there until it expires
            elif step == "expire":
                states.execute(
                    "UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source IN"
                    " (SELECT source FROM lakehouse.leases WHERE source LIKE 'web/%' ORDER BY random() LIMIT 1)"
                )
            elif step == "alone" and chance.random() < 0.3:
                be_alone(states, world)
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
        be_alone(states, world)
    assert {(part, offset) for part, end in world.ends.items() for offset in range(end)} == world.rows.keys()


def try_turn(reader: Reader, world: World, chance: random.Random) -> None:
    try:
        reader.seat = reader.seat or leases.take_seat(reader.connection, "web", SECONDS)
        if reader.seat is None:
            return
        mine = claims.share(reader.connection, reader.seat, SECONDS, PARTS)
        numbers = [int(part[-1]) for part in mine]
        stop = Offsets.of({("clicks", n): chance.randrange(world.ends[n] + 1) for n in numbers})
        reader.turn = claims.take_turn(reader.connection, reader.seat, SECONDS, PATIENCE, mine, stop)
    except (leases.LeaseLost, TurnVoid):
        reader.seat = None


def try_publish(reader: Reader, world: World) -> None:
    turn, reader.turn = reader.turn, None
    assert turn is not None
    try:
        publish(reader.connection, turn)
    except TurnVoid:
        claims.give_up(reader.connection, turn)
    except leases.LeaseLost:
        reader.seat = None
    else:
        landed(world, turn.base, turn.reach)
        assert world.ingested is None or turn.at > world.ingested, "loads go by the moment of ingestion"
        world.ingested = turn.at


def landed(world: World, base: Offsets, reach: Offsets) -> None:
    """The rows of a publish, whose ordinal was written before it."""
    ordinal, first = reach.commit_bound - 1, base.by_partition
    assert ordinal >= world.newest, "a reader that has seen the newest one would miss these rows"
    for (_, number), end in reach:
        for offset in range(first.get(("clicks", number), 0), end):
            assert (number, offset) not in world.rows, "an event is there twice"
            world.rows[number, offset] = ordinal
    world.newest = reach.commit_bound
    seen = {number: offset for (_, number), offset in reach}
    assert world.rows.keys() == {(n, offset) for n, end in seen.items() for offset in range(end)}, "a cut has gaps"


def be_alone(states: CatalogConnection, world: World) -> None:
    """One writer that reads all there is, as `ingest --once` does."""
    lease = leases.acquire(states, "web", SECONDS, "once")
    if lease is None:
        return
    base, reach = stands(states), Offsets.of({("clicks", n): end for n, end in world.ends.items()})
    with states.transaction():
        leases.check(states, lease, SECONDS)
        store.advance_positions(states, "web", reach)
    if base != reach:
        landed(world, base, reach)
    leases.release(states, lease)


def test_sessions_of_seats_are_seen_by_roles_that_may_not_see_when_they_began(
    settings: Settings, states: CatalogConnection
) -> None:
    seat = sit(states)
    states.execute("DROP ROLE IF EXISTS weak_reader")
    states.execute("CREATE ROLE weak_reader LOGIN")
    states.execute("GRANT USAGE ON SCHEMA lakehouse TO weak_reader")
    states.execute("GRANT SELECT ON lakehouse.leases TO weak_reader")
    with (
        leases.kept_alive(settings, seat),
        psycopg.connect(settings.catalog_dsn(), user="weak_reader") as weak,
    ):
        assert leases.holders_of(weak, "web") == [seat.holder]  # type: ignore[arg-type]
