"""Transactions whose END is not in the transaction topic any more, while their events are still in the others."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from debezium_recorded import ITEMS, PAIRS, Message, read, recorded, table
from debezium_topics import Lake, Topics, deliver, random_history
from test_debezium_transactions import A, B, send, two

from ingestion.schema.transaction_offsets import TransactionOffsets
from tests.marks import seeds

HOUR = 3600.0
PLAIN = recorded("plain")
TABLES = table("items", ITEMS), table("pairs", PAIRS, ("a", "b"))


def test_what_is_older_than_the_transaction_topic_lands_where_its_partition_has_nothing_newer() -> None:
    """A small table changes once in a month; the transaction topic keeps a week."""
    topics = two()
    send(topics, 6, (1, "c", 1), (1, "u", 1), end=39_000_000)
    topics.clock += HOUR
    send(topics, 7, (0, "c", 2), end=40_000_000)
    lake = Lake(topics, told_from=1, told_to=1)
    joined = lake.read(later=100)
    assert not joined.waits and joined.forgotten == {6}
    assert lake.rows[1, 0] < lake.rows[1, 1] and lake.rows[0, 0] == (40_000_000, 1)
    send(topics, 8, (1, "u", 1), end=40_000_100)
    assert not lake.read().waits
    assert lake.rows[1, 1] < lake.rows[1, 2] == (40_000_100, 1)


def test_what_has_just_been_sent_is_not_taken_for_it() -> None:
    topics = two()
    send(topics, 6, (1, "c", 1), end=39_000_000)
    topics.clock += HOUR
    send(topics, 7, (0, "c", 2), end=40_000_000)
    send(topics, 8, (1, "c", 2))
    lake = Lake(topics, told_from=1, told_to=1)
    assert lake.read(later=100).waits and (1, 1) not in lake.rows
    topics.end(8, 40_000_100, {B: 1})
    assert not lake.read().waits and lake.rows[1, 1] == (40_000_100, 1)


def test_a_table_that_is_read_later_lands_what_is_older_than_the_transaction_topic() -> None:
    topics = two()
    send(topics, 6, (1, "c", 1), (0, "c", 1), end=39_000_000)
    topics.clock += HOUR
    send(topics, 7, (0, "u", 1), (1, "u", 1), end=40_000_000)
    lake = Lake(topics, hidden=frozenset({1}))
    lake.read(later=100)
    lake.hidden, lake.begun, lake.told_from = frozenset(), {B: lake.reached.end}, 1
    assert not lake.read(later=100).waits
    assert lake.rows[1, 0] < lake.rows[1, 1]
    send(topics, 8, (1, "u", 1), end=40_000_200)
    assert not lake.read().waits and lake.rows[1, 1] < lake.rows[1, 2]


@pytest.mark.parametrize("seed", seeds(40, 13))
def test_any_history_lands_once_in_its_order_whatever_the_transaction_topic_has_forgotten(seed: int) -> None:
    """Read at once, or a piece at a time: what has its END lands under it, and no partition loses its order."""
    chance = random.Random(f"forgotten {seed}")
    topics = Topics([A, A, B])
    old = random_history(chance, topics.relations, 12)
    deliver(chance, topics, old, 0.0)
    forgotten, topics.clock = len(topics.told), topics.clock + HOUR
    new = [(xid + 100, end + 50_000_000, changes) for xid, end, changes in random_history(chance, topics.relations, 12)]
    deliver(chance, topics, new, 0.0)
    lake, whole, begun = Lake(topics, told_from=forgotten, told_to=forgotten), topics.clock, topics.clock
    if chance.random() < 0.5:
        begun = topics.told[forgotten][0]
    topics.clock = begun
    while topics.clock < whole:
        lake.read(behind=[chance.random() * 0.3 for _ in range(4)])
        topics.clock = min(whole, topics.clock + chance.random())
    for _ in range(2):
        joined = lake.read(later=5)
    assert not joined.waits
    ends = {xid: end for xid, end, _ in new}
    for partition, log in enumerate(topics.logs):
        there = [offset for offset, event in enumerate(log) if event.key]
        places = [lake.rows[partition, offset] for offset in there]
        assert places == sorted(places) and len({*places}) == len(places)
        for offset, (number, _) in zip(there, places, strict=True):
            assert log[offset].xid not in ends or number == ends[log[offset].xid]


def older(messages: list[Message], count: int) -> tuple[list[Message], int]:
    """The messages up to the END with that number a day older than the others, and without that and the ENDs before it;
    and where the transaction topic begins then."""
    ends = [m for m in messages if '"END"' in (m["value"] or "")]
    last = ends[count - 1]["at"]
    kept = [
        m | {"at": m["at"] - (86_400_000 if m["at"] <= last else 0)}
        for m in messages
        if m["topic"] != "transaction" or m["at"] > last
    ]
    return kept, min(m["offset"] for m in kept if m["topic"] == "transaction")


def test_events_that_ends_count_and_the_first_read_lacks_are_told() -> None:
    """Retention or compaction took them, and the read was as any other."""
    now = datetime.fromtimestamp(max(m["at"] for m in PLAIN) / 1000, UTC) + timedelta(minutes=10)
    [*_, gone] = [m for m in PLAIN if m["topic"] == "public.items" and '"op":"u"' in (m["value"] or "")]
    found = read([m for m in PLAIN if m is not gone], *TABLES, now=now)
    [says] = [says for says in found.noticed.warnings if "the ENDs of transactions count" in says]
    assert says.startswith("1 of ") and "events of public.items" in says and "compare with the database" in says
    assert not any("the ENDs of transactions" in says for says in read(PLAIN, *TABLES, now=now).noticed.warnings)


def bare(rows: list[dict[str, Any]]) -> list[Any]:
    """What does not depend on the numbers that rows get."""
    return [tuple(str(v) for n, v in row.items() if n not in ("_commit_lsn", "_seq")) for row in rows]


@pytest.mark.parametrize("count", [1, 3, 6, 9])
def test_the_rows_of_topics_are_all_there_whatever_the_transaction_topic_has_forgotten(count: int) -> None:
    messages, first = older(PLAIN, count)
    now = datetime.fromtimestamp(max(m["at"] for m in PLAIN) / 1000, UTC) + timedelta(minutes=10)
    found = read(messages, *TABLES, before=TransactionOffsets.of({("transaction", 0): first}), now=now)
    whole = read(PLAIN, *TABLES, now=now)
    for name in ("items", "pairs"):
        by_offset = [sorted(bare(of.rows[name])) for of in (found, whole)]
        assert by_offset[0] == by_offset[1]
        for key in {str((r.get("id"), r.get("a"), r.get("b"))) for r in whole.rows[name]}:
            mine = [
                [r["_offset"] for r in of.rows[name] if str((r.get("id"), r.get("a"), r.get("b"))) == key]
                for of in (found, whole)
            ]
            assert mine[0] == sorted(mine[0])
    assert any("ENDs are not in transaction any more" in says for says in found.noticed.warnings)
    ends = {part[0]: part[2] for part in found.position.parts}
    assert ends == {part[0]: part[2] for part in whole.position.parts}
