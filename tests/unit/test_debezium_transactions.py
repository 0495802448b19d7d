"""Events of Debezium joined to their transactions: each lands once, whole, in the order of commits, or it waits."""

import random
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from debezium_topics import LAG, START, Event, Lake, Topics, deliver, deliver_anew, random_history, rows_of

from ingestion.sources.debezium.join.joined import OutOfOrder, Reached
from ingestion.sources.debezium.message.envelope import End
from tests.marks import seeds

A, B = "public.a", "public.b"


def two() -> Topics:
    return Topics([A, B])


def send(topics: Topics, xid: int, *changes: tuple[int, str, int], lsn: int = 0, end: int = 0, first: int = 1) -> None:
    """A transaction whose changes are (partition, operation, key), without its END where `end` is 0."""
    counts: dict[str, int] = {}
    for order, (partition, op, key) in enumerate(changes, start=first):
        counts[topics.relations[partition]] = counts.get(topics.relations[partition], 0) + 1
        in_table = counts[topics.relations[partition]]
        topics.send(partition, Event(xid, lsn + order, op, key, order, in_table))
    if end:
        topics.end(xid, end, counts)


def test_a_transaction_lands_under_the_position_of_its_end_in_its_order() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), (1, "c", 1), (0, "u", 1), end=40_000_000)
    lake = Lake(topics)
    joined = lake.read()
    assert lake.rows == {(0, 0): (40_000_000, 1), (1, 0): (40_000_000, 2), (0, 1): (40_000_000, 3)}
    assert joined.offsets == [2, 1] and joined.told_to == 1 and not joined.waits
    assert (joined.reached.end, joined.reached.bound) == (40_000_000, 40_000_001)


def test_it_waits_for_its_end_and_for_every_topic_and_nothing_of_it_is_passed() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    send(topics, 8, (0, "c", 2), (1, "c", 2))
    lake = Lake(topics)
    assert lake.read().offsets == [1, 0] and lake.rows.keys() == {(0, 0)}, "no END yet"
    topics.end(8, 40_000_100, {A: 1, B: 2})
    assert lake.read().told_to == 1, "an event of the other topic is not there yet"
    topics.send(1, Event(8, 9, "c", 3, 3, 2))
    assert not lake.read().waits and len(lake.rows) == 4


def test_what_cannot_be_read_is_of_a_transaction_once_later_ones_are_there() -> None:
    """A backlog was read to its end at once, however long, since a read of some of it was not sure."""
    topics = Topics([A, A, B])
    send(topics, 7, (0, "c", 1), end=0)
    topics.send(0, Event(7, 9, "c", 2, is_broken=True))
    topics.end(7, 40_000_000, {A: 2})
    lake = Lake(topics, is_whole=False)
    for partition, xid in ((2, 8), (0, 9)):
        send(topics, xid, (partition, "c", xid), end=40_000_000 + xid)
        assert lake.read(later=0.5).waits and not lake.rows, "its own event may be on the way by the other partition"
    send(topics, 10, (1, "c", 10), end=40_000_010)
    lake.read(later=0.5)
    assert [lake.rows[0, offset][0] for offset in range(3)] == [40_000_000, 40_000_000, 40_000_009]
    assert len(lake.rows) == 5


def test_what_cannot_be_read_does_not_wait_for_a_partition_that_is_read_to_its_end() -> None:
    """Of a partition without messages it waited until the whole backlog was read at once."""
    topics = Topics([A, A, B])
    topics.send(0, Event(7, 9, "c", 1, is_broken=True))
    topics.end(7, 40_000_000, {A: 1})
    for xid in (8, 9):
        send(topics, xid, (2, "c", xid), end=40_000_000 + xid)
    lake = Lake(topics)
    lake.read(later=5, most=[9, 9, 1, 9])
    assert lake.rows[0, 0][0] == 40_000_000 and lake.offsets == [1, 0, 1]


def test_transactions_are_joined_by_xid_whatever_their_records_positions() -> None:
    topics = two()
    send(topics, 9, (0, "c", 1), lsn=39_000_500, end=40_000_000)
    send(topics, 8, (0, "c", 2), lsn=39_000_100, end=40_000_100)
    lake = Lake(topics)
    lake.read()
    assert lake.rows == {(0, 0): (40_000_000, 1), (0, 1): (40_000_100, 1)}


def test_transactions_of_another_database_in_the_same_topics_are_not_taken_for_repetitions() -> None:
    """Their positions were lower, so that none of their rows landed, without a word."""
    topics = two()
    send(topics, 6, (0, "c", 1), end=40_000_000)
    lake = Lake(topics)
    lake.read()
    send(topics, 7, (0, "c", 2), end=40_000_100)
    send(topics, 1007, (0, "c", 3), end=10_000_000)
    with pytest.raises(OutOfOrder, match=r"transaction 1007 ends at 10000000, and was told behind .* 40000100"):
        lake.read()


def test_where_events_may_come_twice_those_of_another_database_are_told_from_repetitions() -> None:
    """They were dropped by a position that was only another database's, without a word."""
    topics = two()
    send(topics, 6, (0, "c", 1), end=40_000_000)
    send(topics, 7, (0, "c", 2), end=40_000_100)
    send(topics, 6, (0, "c", 1), end=40_000_000)
    send(topics, 1007, (1, "c", 3))
    topics.end(1007, 10_000_000, {B: 1}, committed=40.0002)
    send(topics, 8, (0, "c", 4), end=40_000_200)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=2)
    assert len(lake.rows) == 2 and lake.told_to == 3, "what was told before it lands"
    with pytest.raises(OutOfOrder, match=r"transaction 1007 ends at 10000000.* another database, whose connector"):
        lake.read(later=2)
    lake.reached = Reached()
    lake.read(later=2)
    assert lake.rows[1, 0] == (10_000_000, 1) and len(lake.rows) == 4, "the next epoch goes on with what is there"


def test_after_a_recovery_what_is_told_again_is_not_compared_with_the_epoch_before() -> None:
    """The clock of the database that took the place of the first one was behind."""
    topics = two()
    topics.end(6, 40_000_000, {}, committed=500)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=2)
    topics.end(1007, 10_000_000, {}, committed=400)
    with pytest.raises(OutOfOrder, match="another database"):
        lake.read(later=2)
    lake.reached = Reached()
    topics.end(1008, 10_000_100, {}, committed=401)
    lake.read(later=2)
    lake.told_to = 2
    topics.end(1007, 10_000_000, {}, committed=400)
    lake.read(later=2)
    assert lake.told_to == 4 and lake.reached.end == 10_000_100


@pytest.mark.parametrize("seconds", [30, 90])
def test_a_repetition_whose_end_is_gone_is_no_reason_to_stop(seconds: int) -> None:
    """The transaction topic keeps a while: what was told before that may be said again, and is then not known."""
    topics = two()
    topics.end(5, 39_000_000, {}, committed=0)
    topics.end(6, 40_000_000, {}, committed=100)
    lake = Lake(topics, exactly_once=False, told_from=1, told_to=1)
    lake.read(later=2)
    topics.end(7, 40_000_100, {}, committed=100 + seconds)
    topics.end(5, 39_000_000, {}, committed=99.9 + seconds)
    topics.end(8, 40_000_200, {}, committed=100 + seconds)
    lake.read(later=2)
    assert lake.told_to == (5 if seconds < 60 else 3), "a minute later it would be known"


@pytest.mark.parametrize("seed", range(40))
def test_no_transaction_of_a_second_database_is_passed_without_a_word(seed: int) -> None:
    chance = random.Random(f"two {seed}")
    topics = Topics([A, A, B])
    one = random_history(chance, topics.relations, 12)
    other = [
        (xid + 5000, end - 20_000_000, [replace(c, lsn=c.lsn - 20_000_000) for c in changes])
        for xid, end, changes in random_history(chance, topics.relations, 12)
    ]
    while one and other:
        deliver(chance, topics, [(one if chance.random() < 0.7 else other).pop(0)], 0.0)
    topics.told = [(at, end and replace(end, at=START + timedelta(seconds=at))) for at, end in topics.told]
    lake, whole = Lake(topics, exactly_once=chance.random() < 0.5), topics.clock
    topics.clock, epochs = 0.0, 1
    while lake.told_to < len(topics.told):
        topics.clock += chance.random()
        assert topics.clock < whole + 30
        try:
            lake.read(behind=[chance.random() * LAG for _ in range(4)])
        except OutOfOrder as problem:
            assert "another database" in str(problem) or "took its place" in str(problem)
            lake.reached, epochs = Reached(), epochs + 1
        for _, end in topics.told[: lake.told_to]:
            there = [(p, o) for p, log in enumerate(topics.logs) for o, e in enumerate(log) if end and e.xid == end.xid]
            assert all(place in lake.rows for place in there if topics.logs[place[0]][place[1]].key)
    assert epochs > 1


def test_an_idle_partition_holds_no_cut() -> None:
    topics, lake = two(), None
    lake = Lake(topics)
    for number in range(5):
        send(topics, 7 + number, (0, "c", 1), end=40_000_000 + 100 * number)
        assert not lake.read().waits
    assert lake.offsets == [5, 0] and lake.reached.end == 40_000_400


def test_a_later_transaction_does_not_overtake_one_that_waits() -> None:
    topics = two()
    topics.end(7, 40_000_000, {B: 1})
    send(topics, 8, (0, "c", 1), end=40_000_100)
    lake = Lake(topics)
    assert lake.read().waits and not lake.rows
    topics.send(1, Event(7, 5, "c", 1, 1, 1))
    lake.read()
    assert len(lake.rows) == 2


def test_events_that_come_twice_are_known_by_record_and_key_never_by_their_order() -> None:
    topics = two()
    for skew in (0, -1):
        for key in (1, 2, 3):
            topics.send(0, Event(7, 39_000_000, "c", key, key + skew, key + skew))  # rows of a COPY share their LSN
    topics.end(7, 40_000_000, {A: 2})
    lake = Lake(topics, exactly_once=False)
    assert lake.read().waits, "its counts may be void, so more may be on the way"
    assert lake.read(later=3).repeated == 3
    assert [lake.rows[0, offset] for offset in range(3)] == [(40_000_000, 1), (40_000_000, 2), (40_000_000, 3)]


def test_a_transaction_that_comes_once_more_after_it_has_landed_is_dropped() -> None:
    topics, lake = two(), None
    for _ in range(2):
        send(topics, 7, (0, "c", 1), (1, "c", 1), end=40_000_000)
        lake = lake or Lake(topics, exactly_once=False)
        lake.read(later=2)
    assert lake is not None and len(lake.rows) == 2 and lake.offsets == [2, 2]


def test_its_repetition_waits_until_its_events_are_surely_visible() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=2)
    topics.clock += 2
    topics.end(7, 40_000_000, {A: 1})
    assert lake.read(later=0.5).told_to == 1
    send(topics, 7, (0, "c", 1))
    send(topics, 8, (0, "c", 2), end=40_000_100)
    lake.read(later=2)
    assert len(lake.rows) == 2 and lake.offsets[0] == 3


def test_exactly_once_that_is_not_so_is_refused() -> None:
    topics = two()
    send(topics, 6, (0, "c", 9), end=38_000_000)
    for order, key in ((1, 1), (2, 2), (1, 2)):
        topics.send(0, Event(7, 39_000_000, "c", key, order, order))
    topics.end(7, 40_000_000, {A: 1})
    lake = Lake(topics, reached=Reached(1, START, 2))
    with pytest.raises(OutOfOrder, match="not delivered exactly once"):
        lake.read()
    lake.reached = Reached()
    lake.read()
    assert len(lake.rows) == 3, "the next epoch goes on with what is there"


def test_what_an_end_counts_and_does_not_come_is_told() -> None:
    topics = two()
    topics.send(0, Event(7, 5, "c", 1, 1, 1))
    topics.end(7, 40_000_000, {A: 3})
    lake = Lake(topics, reached=Reached(1, START, 2))
    assert lake.read(later=59).waits
    with pytest.raises(OutOfOrder, match=r"2 of 3 events of public.a in transaction 7 are missing"):
        lake.read(later=61)
    lake.reached = Reached()
    joined = lake.read(later=61)
    assert not joined.waits and len(lake.rows) == 1, "the next epoch goes on with what is there"
    assert joined.missing == {A: (2, 3)}, "and says what is not"


def test_what_the_first_read_lacks_is_counted_over_all_transactions_and_no_more_than_that() -> None:
    topics = two()
    topics.end(6, 39_000_000, {A: 2})
    send(topics, 7, (0, "c", 1), (1, "c", 1), end=40_000_000)
    topics.send(0, Event(8, 41_000_000, "c", 2, 2, 2))
    topics.end(8, 42_000_000, {A: 3})
    joined = Lake(topics).read(later=61)
    assert not joined.waits and joined.missing == {A: (4, 5)}


def test_a_transaction_whose_end_does_not_come_is_told_while_others_land() -> None:
    """It waited for good, without a word: others went on, so that nothing lagged."""
    topics = two()
    send(topics, 6, (0, "c", 1), (1, "c", 1), end=39_000_000)
    lake = Lake(topics)
    assert not lake.read().unended
    send(topics, 7, (0, "c", 2), (0, "c", 3))
    last = int((START.timestamp() + topics.clock) * 1000)
    assert lake.read(later=59).waits and not lake.read(later=59).unended
    assert lake.read(later=61).unended == {7: last}
    send(topics, 11, (0, "c", 4))
    assert lake.read(later=100).unended == {7: last}, "the first of a partition, behind which all others wait"
    topics.clock += 100
    for number in range(3):
        send(topics, 8 + number, (1, "u", 1), end=40_000_000 + 100 * number)
        assert lake.read(later=2).unended == {7: last}
    assert lake.offsets == [1, 4] and lake.reached.end == 40_000_200
    topics.end(7, 40_000_300, {A: 2})
    topics.end(11, 40_000_400, {A: 1})
    assert not lake.read(later=100).unended and len(lake.rows) == 8


def test_an_event_that_comes_after_its_transaction_has_landed_is_told() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    lake = Lake(topics)
    lake.read()
    topics.send(0, Event(7, 6, "c", 2, 2, 2))
    send(topics, 8, (0, "c", 3), end=40_000_100)
    assert lake.read().waits, "a later END may be on the way"
    with pytest.raises(OutOfOrder, match="an event of transaction 7 stands before events of later transactions"):
        lake.read(later=2)


def test_a_database_that_went_back_is_told_from_a_repetition() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    lake = Lake(topics)
    lake.read()
    send(topics, 8, (0, "c", 3), end=40_000_100)
    topics.told.append((topics.clock, End(5, 39_000_000, START + timedelta(hours=1), {A: 1})))
    lake.read()
    assert lake.reached.end == 40_000_100, "what was committed before it lands"
    with pytest.raises(OutOfOrder, match="the database was restored"):
        lake.read()


def test_a_change_of_a_key_is_its_delete_and_its_create_at_one_record() -> None:
    topics = two()
    topics.send(0, Event(7, 39_000_000, "d", 1, 1, 1))
    topics.send(0, Event(7, 39_000_000, " ", 0))
    topics.send(0, Event(7, 39_000_000, "c", 2, 2, 2))
    topics.send(0, Event(7, 39_000_100, "d", 5, 3, 3))
    topics.send(0, Event(7, 39_000_200, "c", 5, 4, 4))
    topics.end(7, 40_000_000, {A: 4})
    assert [old for *_, old in rows_of(Lake(topics).read().placed)] == [-1, -1, 0, -1, -1]
    later = Lake(topics, told_to=1, reached=Reached(40_000_000, START, 40_000_001), begun={A: 40_000_000})
    assert [old for *_, old in rows_of(later.read().placed)] == [-1, -1, 0, -1, -1], "in its history too"


def interrupted(op: str = "r") -> tuple[Topics, Lake]:
    """Connect was killed within transaction 7, had stored no offsets, and began with a snapshot."""
    topics = two()
    send(topics, 6, (0, "c", 1), end=39_000_000)
    send(topics, 7, (0, "c", 2), (1, "c", 2), (0, "d", 1), lsn=39_500_000)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=2)
    assert lake.offsets == [1, 0]
    for key in (2, 3):
        topics.send(0, Event(0, 0, op, key))
    return topics, lake


def test_a_transaction_within_which_the_connector_began_anew_does_not_stop_the_source() -> None:
    """It stood still: an END never comes, and what was behind its events waited for it."""
    topics, lake = interrupted()
    assert lake.read(later=59).waits, "a snapshot that a signal asked for may be under way"
    joined = lake.read(later=62)
    assert not joined.waits and joined.endless == {7} and lake.offsets == [5, 1]
    places = [lake.rows[0, offset] for offset in range(5)]
    assert places == sorted(places), "the rows of the snapshot come last"
    send(topics, 9, (0, "u", 2), (1, "u", 2), end=41_000_000)
    assert not lake.read(later=2).waits and len(lake.rows) == 8


def test_the_next_transaction_shows_that_one_before_the_snapshot_has_no_end() -> None:
    topics, lake = interrupted()
    send(topics, 9, (0, "u", 2), (1, "u", 2), end=41_000_000)
    assert lake.read(later=2).endless == {7}
    numbers = [lake.rows[0, offset][0] for offset in range(6)]
    assert numbers == [39_000_000, *[40_999_999] * 4, 41_000_000] and lake.rows[1, 0][0] == 40_999_999


def test_a_transaction_that_a_snapshot_interrupts_and_that_goes_on_lands_whole() -> None:
    for op, later in (("r", 50), ("i", 1000)):
        topics, lake = interrupted(op)
        assert lake.read(later=later).waits
        topics.clock += later
        topics.send(1, Event(7, 39_600_000, "c", 3, 4, 2))
        topics.end(7, 40_000_000, {A: 2, B: 2})
        assert not lake.read(later=2).endless
        assert [n for n, _ in lake.rows.values()].count(40_000_000) == 4


def test_what_comes_again_of_one_that_has_landed_is_not_taken_for_one_without_an_end() -> None:
    topics = two()
    send(topics, 6, (0, "c", 1), lsn=38_000_000, end=39_000_000)
    send(topics, 7, (0, "d", 1), lsn=39_500_000, end=40_000_000)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=2)
    send(topics, 6, (0, "c", 1), lsn=38_000_000)
    topics.send(0, Event(0, 0, "r", 3))
    assert not lake.read(later=100).endless
    send(topics, 9, (0, "u", 3), end=41_000_000)
    with pytest.raises(OutOfOrder, match="an event of transaction 6 stands before"):
        lake.read(later=2)


def test_rows_of_a_snapshot_stand_just_below_the_transaction_that_follows_in_their_partition() -> None:
    topics = two()
    topics.send(0, Event(0, 0, "r", 1))
    send(topics, 7, (0, "u", 1), end=40_000_000)
    topics.send(0, Event(0, 0, "r", 2))
    send(topics, 8, (0, "u", 2), end=40_000_100)
    lake = Lake(topics)
    lake.read()
    assert [lake.rows[0, offset][0] for offset in range(4)] == [39_999_999, 40_000_000, 40_000_099, 40_000_100]


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("op", ["i", "r"])
def test_a_truncate_stands_behind_the_rows_of_other_partitions_that_it_removed(
    op: str, later: bool, exactly_once: bool
) -> None:
    """They came back: each was just below the next transaction of its own partition, or behind all of them."""
    topics = Topics([A, A, B])
    for partition in (0, 1, 1, 2):
        topics.send(partition, Event(0, 0, op, 1))
    send(topics, 7, (0, "t", 9), end=40_000_000)
    topics.send(1, Event(0, 0, "i", 2))
    if later:
        send(topics, 8, (1, "c", 1), end=40_000_100)
    lake = Lake(topics, exactly_once=exactly_once)
    assert not lake.read(later=2).waits
    truncate = lake.rows[0, 1]
    assert truncate[0] == 40_000_000 and all(lake.rows[where] < truncate for where in ((0, 0), (1, 0), (1, 1)))
    assert lake.rows[1, 2] > truncate, "a row that came later is there"
    assert len(set(lake.rows.values())) == len(lake.rows)


def test_a_truncate_waits_for_the_rows_of_other_partitions_that_it_removed() -> None:
    topics = Topics([A, A])
    for partition in (0, 1, 1):
        topics.send(partition, Event(0, 0, "r", 1))
    send(topics, 7, (0, "t", 9), end=40_000_000)
    lake = Lake(topics, is_whole=False)
    assert lake.read(behind=[0.0, 0.03, 0.0], later=0).offsets == [1, 1], "the other partition may have more rows"
    lake.is_whole = True
    assert not lake.read(later=2).waits
    assert len(lake.rows) == 4 and max(lake.rows.values()) == lake.rows[0, 1]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_truncate_waits_for_rows_of_a_partition_that_shows_none_yet(is_first: bool) -> None:
    """They came back: what had no message in a read counted as read up to its end."""
    topics = Topics([A, A, A])
    lake = Lake(topics)
    if not is_first:
        topics.send(1, Event(0, 0, "i", 1))
        lake.read(later=5)
        topics.clock += 5
    topics.send(1, Event(0, 0, "i", 2))
    send(topics, 7, (0, "t", 9), end=40_000_000)
    assert lake.read(behind=[0.0, 0.5, 0.0, 0.0], later=0.1).offsets[0] == 0
    assert not lake.read(later=1.1).waits
    assert max(lake.rows.values()) == lake.rows[0, 0] and len(lake.rows) == 3 - is_first


@pytest.mark.parametrize("op", ["i", "r"])
def test_a_row_waits_for_a_truncate_that_came_before_it(op: str) -> None:
    """It landed behind the last transaction, and the TRUNCATE of a partition that was not read as far removed it."""
    topics = Topics([A, A])
    send(topics, 7, (0, "c", 1), end=39_000_000)
    send(topics, 8, (0, "t", 9), end=40_000_000)
    topics.send(1, Event(0, 0, op, 2))
    lake = Lake(topics)
    assert lake.read(most=[1, 9, 9], later=5).offsets == [1, 0], "the TRUNCATE is not read"
    assert lake.read(most=[1, 9, 0], later=5).offsets == [1, 0], "it is read, and its END is"
    topics.told, told = topics.told[:1], topics.told[1:]
    assert lake.read(later=5).offsets == [1, 0]
    topics.told += told
    lake.read(later=5)
    assert lake.rows[0, 0] < lake.rows[0, 1] < lake.rows[1, 0]


@pytest.mark.parametrize("op", ["i", "r"])
def test_a_row_waits_for_no_truncate_that_has_landed_and_comes_again(op: str) -> None:
    """Where a clock was set back, two partitions waited for what was behind the other's row, for ever."""
    topics = Topics([A, A])
    lake = Lake(topics, exactly_once=False)

    def truncate() -> None:
        for partition in (0, 1):
            send(topics, 7 + partition, (partition, "t", 9), lsn=39_000_000 + partition, end=40_000_000 + partition)

    truncate()
    assert not lake.read(later=5).waits
    topics.clock += 10
    for partition in (0, 1):
        topics.send(partition, Event(0, 0, op, 1))
    topics.clock -= 0.5
    truncate()
    assert not lake.read(later=5).waits
    assert lake.rows[0, 0] < lake.rows[0, 1] and lake.rows[1, 0] < lake.rows[1, 1] and len(lake.rows) == 4


@pytest.mark.parametrize("changes", [((1, "c", 5), (0, "t", 9)), ((0, "t", 9), (1, "c", 5)), ((0, "t", 9),)])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_truncate_does_not_stop_a_backlog(changes: tuple[tuple[int, str, int], ...], is_tied: bool) -> None:
    """What was to be read at once grew until it was all of the backlog."""
    topics = Topics([A, A, B], step=0.0 if is_tied else 0.01)
    send(topics, 7, *changes, end=40_000_000)
    for number in range(300):
        send(topics, 8 + number, (2, "c", number + 1), end=40_000_100 + 100 * number)
        topics.clock += 0.1
    lake = Lake(topics)
    lake.read(later=100, most=[9, 9, 100, 100])
    assert lake.offsets == [1, len(changes) - 1, 99] and lake.reached.end > 40_000_000


def test_many_partitions_of_many_topics_are_not_compared_with_each_other() -> None:
    """A hundred topics of sixty partitions took seconds in each read, and half a gigabyte where one had a TRUNCATE."""
    topics = Topics([f"public.t{number}" for number in range(100) for _ in range(60)])
    send(topics, 7, (0, "t", 9), end=40_000_000)
    lake = Lake(topics)
    tracemalloc.start()
    began = time.process_time()
    lake.read(later=5)
    took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lake.rows and took < 5 and peak < 64 * 1024 * 1024


def test_what_a_partition_has_behind_a_truncate_settles_it() -> None:
    """Only a later moment did, so that a backlog waited for one that is not read to its end."""
    topics = Topics([A, A], step=0.0)
    send(topics, 7, (0, "t", 9), (1, "c", 5), end=40_000_000)
    send(topics, 8, (0, "t", 9), end=40_000_100)
    send(topics, 9, (1, "c", 6), (1, "c", 7), end=40_000_200)
    lake = Lake(topics)
    lake.read(most=[9, 2, 9])
    assert lake.reached.end == 40_000_100 and lake.offsets == [2, 1]
    lake.read(most=[9, 2, 9])
    assert len(lake.rows) == 5


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_a_truncate_of_a_clock_that_is_ahead_waits_for_a_moment(ahead: float) -> None:
    """Each read took it for one that had just come, so all tables of the source waited for that long."""
    topics = Topics([A, A, B])
    send(topics, 7, (0, "t", 9), end=40_000_000)
    send(topics, 8, (2, "c", 4), end=40_000_100)
    lake = Lake(topics, ahead=ahead)
    assert lake.read().offsets == [0, 0, 0]
    assert not lake.read(later=1.1).waits and len(lake.rows) == 2


@pytest.mark.parametrize("op", ["i", "r"])
@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_rows_of_a_clock_that_is_ahead_stand_on_their_side_of_a_truncate(op: str, ahead: float) -> None:
    """They had one moment, so a row behind a TRUNCATE was lost, and one before it came back."""
    topics = Topics([A, A])
    for partition in (0, 1):
        topics.send(partition, Event(0, 0, op, 1))
    topics.clock += 1
    send(topics, 7, (0, "t", 9), end=40_000_000)
    topics.clock += 1
    for partition in (0, 1):
        topics.send(partition, Event(0, 0, op, 2))
    send(topics, 8, (0, "c", 3), (1, "c", 4), end=40_000_500)
    lake = Lake(topics, ahead=ahead)
    lake.read(later=0.5)
    lake.read(later=5)
    truncate, rows = lake.rows[0, 1], lake.rows
    assert rows[0, 0] < truncate and rows[1, 0] < truncate and truncate < rows[0, 2] and truncate < rows[1, 1]


@pytest.mark.parametrize("op", ["i", "r"])
def test_a_row_is_below_no_truncate_that_its_partition_shows_to_be_before_it(op: str) -> None:
    """By moments alone it was, of a clock that was set back, or in its own partition in the same moment."""
    topics = Topics([A, A], step=0.0)
    send(topics, 7, (0, "t", 9), (1, "c", 1), end=40_000_000)
    send(topics, 8, (0, "t", 9), end=40_000_100)
    topics.send(0, Event(0, 0, op, 3))
    send(topics, 9, (1, "c", 2), end=40_000_200)
    topics.clock -= 0.5
    topics.send(1, Event(0, 0, op, 4))
    send(topics, 10, (0, "c", 5), (1, "c", 6), end=40_000_300)
    lake = Lake(topics)
    lake.read(later=5)
    assert lake.rows[0, 1] < lake.rows[0, 2] < lake.rows[0, 3] and lake.rows[1, 1] < lake.rows[1, 2] < lake.rows[1, 3]


def test_a_history_lands_as_far_as_all_partitions_are_read() -> None:
    """A TRUNCATE landed before rows that it removed, or behind some that came after it."""
    topics = Topics([A, B, B])
    topics.send(2, Event(0, 0, "r", 1))
    send(topics, 7, (0, "c", 1), (1, "t", 9), lsn=39_000_000, end=40_000_000)
    send(topics, 8, (2, "c", 2), lsn=40_000_000, end=40_000_100)
    lake = Lake(topics, hidden=frozenset({1, 2}))
    lake.read(later=2)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    send(topics, 9, (1, "c", 1), (2, "c", 3), end=40_000_200)
    assert lake.read(later=2, most=[9, 9, 0, 9]).offsets == [1, 0, 0], "the other partition is not read"
    assert lake.read(later=2, most=[9, 0, 9, 9]).offsets == [1, 0, 0], "nor is the one with the TRUNCATE"
    assert not lake.read(later=2).waits
    assert lake.rows[2, 0] < lake.rows[1, 0] < lake.rows[2, 1] < lake.rows[2, 2]


def test_a_truncate_in_a_history_stands_behind_the_rows_that_it_removed() -> None:
    topics = Topics([A, B, B])
    for partition in (1, 2, 2):
        topics.send(partition, Event(0, 0, "r", 1))
    send(topics, 7, (0, "c", 1), (1, "t", 9), lsn=39_000_000, end=40_000_000)
    lake = Lake(topics, hidden=frozenset({1, 2}))
    lake.read(later=2)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    send(topics, 8, (1, "c", 1), (2, "c", 1), end=40_000_100)
    assert not lake.read(later=2).waits
    rows = sorted((place, where) for where, place in lake.rows.items() if where[0])
    assert [where for _, where in rows] == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (2, 2)]


def test_rows_of_a_snapshot_land_without_a_transaction_and_below_the_next() -> None:
    topics = two()
    lake = Lake(topics)
    for key in range(1, 30):
        topics.send(key % 2, Event(0, 0, "r", key))
        assert not lake.read().waits
    send(topics, 7, (0, "u", 1), end=40_000_000)
    lake.read()
    numbers = [number for number, _ in lake.rows.values()]
    assert len(lake.rows) == 30 and max(numbers) == 40_000_000 and len(set(lake.rows.values())) == 30


def test_rows_of_a_snapshot_in_mid_stream_wait_where_no_number_is_left_for_them() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    lake = Lake(topics)
    lake.read()
    waited = 0
    for key in range(1, 30):
        topics.send(1, Event(0, 0, "r", key))
        waited += lake.read().waits
    assert waited > 5 and max(number for number, _ in lake.rows.values()) < 40_000_020
    send(topics, 8, (1, "u", 29), end=40_000_040)
    assert not lake.read().waits
    places = [lake.rows[1, offset] for offset in range(30)]
    assert places == sorted(places), "a partition keeps its order"


def test_a_first_read_takes_what_is_older_than_the_transaction_topic() -> None:
    topics = two()
    send(topics, 6, (0, "c", 1))
    send(topics, 7, (0, "c", 2), end=40_000_000)
    lake = Lake(topics)
    lake.read()
    assert [lake.rows[0, offset][0] for offset in range(2)] == [39_999_999, 40_000_000]


def test_an_event_that_cannot_be_read_counts_in_the_transaction_around_it() -> None:
    topics = two()
    send(topics, 7, (0, "c", 1), end=40_000_000)
    topics.send(0, Event(8, 6, "c", 2, 1, 1, is_broken=True))
    topics.send(0, Event(8, 7, "c", 3, 2, 2))
    topics.end(8, 40_000_100, {A: 2})
    lake = Lake(topics)
    assert not lake.read(later=1).waits
    assert lake.rows[0, 1][0] == lake.rows[0, 2][0] == 40_000_100


def test_what_cannot_be_read_is_not_taken_for_an_event_that_is_on_its_way() -> None:
    """The transaction landed short, and its event, which came within the second, stopped the source."""
    topics = Topics([A])
    topics.send(0, Event(0, 0, " ", 1, is_broken=True))
    topics.clock = 5.0
    topics.send(0, Event(7, 30_000_100, "c", 1, 1, 1))
    topics.end(7, 30_000_200, {A: 1})
    lake = Lake(topics)
    assert lake.read(behind=[0.5, 0.0]).told_to == 0 and not lake.rows
    assert lake.read(later=1).reached.end == 30_000_200 and lake.rows[0, 1] == (30_000_200, 1)
    assert lake.rows[0, 0][0] == 30_000_199


def test_one_that_is_of_no_transaction_waits_for_a_while_and_then_goes_its_way() -> None:
    topics = two()
    topics.send(0, Event(0, 0, "c", 1, is_broken=True))
    lake = Lake(topics)
    assert lake.read().waits and not lake.read(later=61).waits and len(lake.rows) == 1


def test_a_table_that_is_read_later_has_its_history_under_one_number_in_the_order_of_commits() -> None:
    topics = two()
    topics.send(1, Event(0, 0, "r", 9))
    send(topics, 7, (0, "c", 1), (1, "c", 1), end=40_000_000)
    send(topics, 8, (1, "u", 1), (0, "u", 1), lsn=38_000_000, end=40_000_100)
    lake = Lake(topics, hidden=frozenset({1}))
    lake.read()
    assert lake.reached.bound == 40_000_101 and lake.rows.keys() == {(0, 0), (0, 1)}
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    send(topics, 9, (1, "u", 1), end=40_000_200)
    lake.read()
    history = [lake.rows[1, offset] for offset in range(3)]
    assert {number for number, _ in history} == {40_000_199} and history == sorted(history)
    assert lake.rows[1, 3] == (40_000_200, 1)


@pytest.mark.parametrize("again", [(0, 1), (0,), ()])
def test_history_whose_end_comes_again_in_the_same_read_is_not_taken_for_a_repetition(again: tuple[int, ...]) -> None:
    """Its events were dropped: Connect was restarted just before the table was declared."""
    topics = two()
    send(topics, 7, (0, "c", 1), (1, "c", 1), end=40_000_000)
    send(topics, 8, (0, "u", 1), (1, "u", 1), lsn=40_000_010, end=40_000_100)
    lake = Lake(topics, hidden=frozenset({1}), exactly_once=False)
    lake.read(later=2)
    for partition in again:
        topics.send(partition, Event(8, 40_000_011 + partition, "u", 1, 1 + partition, 1))
    topics.end(8, 40_000_100, {A: 1, B: 1})
    send(topics, 9, (1, "u", 1), lsn=40_000_110, end=40_000_200)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    assert lake.read(later=2).repeated == len(again) and not lake.read(later=2).waits
    rows = [(lake.rows[where], topics.logs[1][where[1]].xid) for where in lake.rows if where[0] == 1]
    assert [xid for _, xid in sorted(rows)] == [7, 8, 9] and len(lake.rows) == 5


def test_history_of_an_xid_that_came_again_has_the_end_of_its_own_time() -> None:
    """The last transaction of that xid had it, so its change stood behind later ones."""
    topics = two()
    send(topics, 7, (1, "c", 1), lsn=39_000_000, end=40_000_000)
    send(topics, 8, (1, "u", 1), lsn=40_000_000, end=40_000_100)
    send(topics, 7, (0, "c", 1), lsn=41_000_000, end=42_000_000)
    lake = Lake(topics, hidden=frozenset({1}))
    lake.read(later=2)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    lake.read(later=2)
    assert lake.rows[1, 0] < lake.rows[1, 1]


@pytest.mark.parametrize("op", ["i", "r"])
def test_rows_of_a_snapshot_behind_a_history_stand_behind_it(op: str) -> None:
    """Both were just below the same transaction, and the rows before the history: an older version was shown."""
    topics = two()
    send(topics, 7, (0, "c", 1), (1, "u", 1), end=40_000_000)
    lake = Lake(topics, hidden=frozenset({1}))
    lake.read()
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    for key in (1, 2):
        topics.send(1, Event(0, 0, op, key))
    topics.send(0, Event(0, 0, op, 2))
    send(topics, 9, (1, "u", 1), (0, "u", 1), end=40_000_200)
    assert not lake.read(later=100).waits
    history, *behind, newest = (lake.rows[1, offset] for offset in range(4))
    assert history[0] == behind[0][0] == 40_000_199 and history < behind[0] < behind[1] < newest
    assert newest == (40_000_200, 1) and lake.rows[0, 1] < lake.rows[0, 2]
    assert len(set(lake.rows.values())) == len(lake.rows)


@pytest.mark.parametrize("seed", seeds(20, 7))
def test_any_history_with_rows_of_snapshots_keeps_the_order_of_each_partition(seed: int) -> None:
    chance = random.Random(seed)
    topics = Topics([A, A, B])
    deliver(chance, topics, random_history(chance, topics.relations, 12), 0.0)
    lake = Lake(topics, hidden=frozenset({2}))
    lake.read(later=2)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    for key in range(1, chance.randint(2, 9)):
        topics.send(chance.randrange(3), Event(0, 0, "i", key))
    moved = [
        (xid + 1_000, end + 1_000_000, [replace(c, lsn=c.lsn + 1_000_000) for c in changes])
        for xid, end, changes in random_history(chance, topics.relations, 3)
    ]
    deliver(chance, topics, moved, 0.0)
    assert not lake.read(later=2).waits
    for partition, log in enumerate(topics.logs):
        places = [lake.rows[partition, offset] for offset, event in enumerate(log) if event.key]
        assert places == sorted(places), partition
    assert len(set(lake.rows.values())) == len(lake.rows)


@pytest.mark.parametrize("seed", seeds(20, 7))
@pytest.mark.parametrize("restarts", [0.0, 0.05])
def test_any_history_of_a_table_that_is_read_later_lands_once_in_the_order_of_its_commits(
    seed: int, restarts: float
) -> None:
    chance = random.Random(seed)
    topics = Topics([A, A, B])
    history = random_history(chance, topics.relations, 25)
    deliver(chance, topics, history, restarts)
    lake, whole = Lake(topics, exactly_once=not restarts, hidden=frozenset({2})), topics.clock
    topics.clock = whole * chance.random()
    lake.read(later=2 if restarts else 0)
    lake.hidden, lake.begun = frozenset(), {B: lake.reached.end}
    if not restarts:
        lake.read(later=2)
    topics.clock = whole
    lake.read(later=2)
    lake.read(later=100)
    rows = sorted(
        (lake.rows[2, offset], event) for offset, event in enumerate(topics.logs[2]) if (2, offset) in lake.rows
    )
    sent = [(c.op, c.key, c.lsn) for _, _, changes in history for c in changes if c.partition == 2]
    assert [(event.op, event.key, event.lsn) for _, event in rows] == sent
    assert len(lake.rows) == sum(len(changes) for _, _, changes in history)


@pytest.mark.parametrize("seed", seeds(60, 20))
@pytest.mark.parametrize("restarts", [0.0, 0.06])
def test_any_history_lands_once_whole_and_in_the_order_of_its_commits(seed: int, restarts: float) -> None:
    chance = random.Random(f"{seed}/{restarts}")
    topics = Topics([A, A, B])
    history = random_history(chance, topics.relations, 25)
    deliver(chance, topics, history, restarts)
    lake, whole = Lake(topics, exactly_once=restarts == 0), topics.clock
    topics.clock = 0.0
    while topics.clock < whole:
        topics.clock = min(whole, topics.clock + chance.random())
        lake.read(behind=[chance.random() * LAG for _ in range(4)])
        expected_so_far(lake, history)
    for _ in range(2):
        lake.read(later=5)
    landed = expected_so_far(lake, history)
    assert landed == len(history)


@pytest.mark.parametrize("seed", seeds(60, 20))
@pytest.mark.parametrize("exactly_once", [True, False])
def test_any_history_goes_on_whatever_a_connector_that_begins_anew_leaves_out(seed: int, exactly_once: bool) -> None:
    """Each event lands once, in its partition's order; what was sent whole lands as a transaction."""
    chance = random.Random(f"anew {seed}")
    topics = Topics([A, A, B])
    history = random_history(chance, topics.relations, 25)
    cut = deliver_anew(chance, topics, history, 0.2)
    lake, whole, endless = Lake(topics, exactly_once=exactly_once), topics.clock, set[int]()
    topics.clock = 0.0
    while topics.clock < whole:
        topics.clock = min(whole, topics.clock + 2 * chance.random())
        endless |= lake.read(behind=[chance.random() * LAG for _ in range(4)]).endless
    for later in (2, 70, 72):
        joined = lake.read(later=later)
        endless |= joined.endless
    assert not joined.waits and endless <= cut
    ends = {xid: end for xid, end, _ in history}
    for partition, log in enumerate(topics.logs):
        there = [offset for offset, event in enumerate(log) if event.key]
        places = [lake.rows[partition, offset] for offset in there]
        assert places == sorted(places)
        for offset, (number, _) in zip(there, places, strict=True):
            assert log[offset].xid in {0, *cut} or number == ends[log[offset].xid]
    assert len(lake.rows) == sum(event.key != 0 for log in topics.logs for event in log)


def expected_so_far(lake: Lake, history: list) -> int:
    """How many transactions have landed; all of their changes have, once each, in order, and none of others."""
    rows: dict[int, list[tuple[int, int, Event]]] = {}
    for (partition, offset), (number, place) in lake.rows.items():
        rows.setdefault(number, []).append((place, partition, lake.topics.logs[partition][offset]))
    ends = {end for _, end, _ in history if end <= lake.reached.end}
    assert rows.keys() <= ends
    for _, end, changes in history:
        if end <= lake.reached.end:
            found = [(p, e.op, e.key, e.lsn) for _, p, e in sorted(rows.get(end, []), key=lambda row: row[0])]
            assert sorted(found) == sorted((c.partition, c.op, c.key, c.lsn) for c in changes)
            for partition in {c.partition for c in changes}:
                mine = [(c.op, c.key, c.lsn) for c in changes if c.partition == partition]
                assert [row[1:] for row in found if row[0] == partition] == mine
    return len(ends)


def state(events: Iterable[Event]) -> dict[int, int]:
    """By key, the positions of the rows that are left."""
    rows: dict[int, int] = {}
    for event in events:
        if event.op in "td":
            rows = {key: lsn for key, lsn in rows.items() if event.op == "d" and key != event.key}
        else:
            rows[event.key] = event.lsn
    return rows


@pytest.mark.parametrize("seed", seeds(60, 20))
@pytest.mark.parametrize("exactly_once", [True, False])
def test_any_truncates_leave_the_rows_that_came_after_them(seed: int, exactly_once: bool) -> None:
    chance, topics, lsn = random.Random(seed), Topics([A, A]), 40_000_000

    def snapshot(op: str, count: int) -> None:
        topics.clock += 0.05
        for key in (chance.randint(1, 8) for _ in range(count)):
            topics.send(key % 2, Event(0, 0, op, key))
        topics.clock += 0.05

    snapshot("r", chance.randint(0, 8))
    for xid in range(7, 7 + chance.randint(1, 6)):
        if chance.random() < 0.3:
            snapshot("i", chance.randint(1, 3))
        count = chance.randint(1, 4)
        for order in range(1, count + 1):
            op, key = chance.choice("uuudt"), chance.randint(1, 8)
            topics.send(0 if op == "t" else key % 2, Event(xid, lsn + order, op, key, order, order))
        lsn += 1_000
        topics.end(xid, lsn, {A: count})
    lake = Lake(topics, exactly_once=exactly_once, is_whole=False)
    for _ in range(chance.randint(0, 2)):
        lake.read(behind=[chance.random() * topics.clock for _ in range(3)])
    lake.is_whole = True
    lake.read(later=100)
    landed = [
        topics.logs[partition][offset] for (partition, offset), _ in sorted(lake.rows.items(), key=lambda r: r[1])
    ]
    sent = sorted((event for log in topics.logs for event in log), key=lambda event: event.at)
    assert len(landed) == len(sent) and state(landed) == state(sent)


@pytest.mark.parametrize("seed", seeds(60, 20))
@pytest.mark.parametrize("exactly_once", [True, False])
def test_any_truncates_that_are_read_at_any_moment_leave_the_rows_that_came_after_them(
    seed: int, exactly_once: bool
) -> None:
    """Read while they are sent, of partitions that show messages late or have none, by clocks that are ahead, some of a
    backlog at a time, and with a history."""
    chance, lsn = random.Random(f"moments {seed}"), 40_000_000
    topics = Topics([A] * chance.randint(2, 4) + [B])
    used = chance.choice((1, len(topics.relations) - 1))  # the partitions of the first table in which anything comes

    def snapshot(op: str, count: int) -> None:
        topics.clock += 0.05
        topics.step = 0.01
        for key in (chance.randint(1, 8) for _ in range(count)):
            topics.send(key % used, Event(0, 0, op, key))
        topics.clock += 0.05

    snapshot("r", chance.randint(0, 8))
    for xid in range(7, 7 + chance.randint(1, 12)):
        if chance.random() < 0.4:
            snapshot("i", chance.randint(1, 3))
        topics.step = chance.choice((0.0, 0.01))
        counts: dict[str, int] = {}
        for order in range(1, chance.randint(2, 5)):
            op, key = chance.choice("uuudtb"), chance.randint(1, 8)
            partition = len(topics.relations) - 1 if op == "b" else chance.randrange(len(topics.relations) - 1)
            partition = key % used if op in "ud" else partition
            relation = topics.relations[partition]
            counts[relation] = counts.get(relation, 0) + 1
            event = Event(xid, lsn + order, op.replace("b", "u"), 9 if op == "t" else key, order, counts[relation])
            topics.send(partition, event)
        lsn += 1_000
        topics.end(xid, lsn, counts)
        topics.clock += chance.choice((0.0, 0.0, 0.3, 2.0))
    lake = Lake(topics, exactly_once=exactly_once, ahead=chance.choice((0.0, 3600.0)))
    whole, topics.clock = topics.clock, 0.0
    lake.hidden = frozenset(range(len(topics.relations) - 1)) if chance.random() < 0.4 else frozenset()
    declared = whole * chance.random()
    while topics.clock < whole:
        topics.clock = min(whole, topics.clock + chance.choice((0.1, 1.0, 5.0)) * chance.random())
        if lake.hidden and topics.clock > declared:
            lake.hidden, lake.begun, lake.visible = frozenset(), {A: lake.reached.end}, []
        some = [chance.randint(1, 4) for _ in range(len(topics.logs) + 1)]
        lake.read(behind=[chance.random() * LAG for _ in some], most=chance.choice((None, some)))
    lake.hidden, lake.begun = frozenset(), {A: lake.reached.end} if lake.hidden else lake.begun
    for later in (1.0, 2.5, 4.0):
        joined = lake.read(later=later)
    assert not joined.waits
    for relation in (A, B):
        events = [
            (lake.rows[p, offset], event)
            for p, log in enumerate(topics.logs) if topics.relations[p] == relation
            for offset, event in enumerate(log)
        ]  # fmt: skip
        landed = [event for _, event in sorted(events, key=lambda row: row[0])]
        assert state(landed) == state(sorted(landed, key=lambda event: (event.at, event.xid, event.order)))
