"""Envelopes that several tasks read: what lands is what one task lands, or one task reads all again."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from debezium_recorded import ITEMS, PAIRS, Message, Read, read, recorded, table
from test_debezium_random import COLUMNS, Database, Rows, sent

from ingestion.sources.debezium import in_parts
from ingestion.sources.debezium.in_parts import divided
from ingestion.sources.kafka.fetching import Range

LATE = datetime(2027, 1, 1, tzinfo=UTC)


class Plain(Database):
    """Without truncates, and without keys that change."""

    def _change(self, rows: Rows) -> list[tuple[str, Any, Any]]:
        before = {number: dict(row) for number, row in rows.items()}
        while True:
            found = super()._change(rows)
            if found and found[0][0] != "t" and len(found) == 1:
                return found
            rows.clear()
            rows.update({number: dict(row) for number, row in before.items()})


def test_ranges_are_divided_into_groups_of_as_many_events() -> None:
    chance = random.Random(1)
    for _ in range(300):
        ranges, place = [], 0
        for partition in range(chance.randrange(1, 6)):
            first, count = chance.randrange(9), chance.choice((0, 1, 7, 100))
            ranges.append(Range("t", partition, first, first + count, place))
            place += count
        groups = list(divided(ranges, count := chance.randrange(1, 9)))
        events = [(r.partition, offset) for r in ranges for offset in range(r.first, r.end)]
        found = [(r.partition, offset) for group in groups for r in group for offset in range(r.first, r.end)]
        assert found == events
        bases = {r.partition: r.place - r.first for r in ranges}
        assert all(r.place - r.first == bases[r.partition] for group in groups for r in group)
        sizes = [sum(r.end - r.first for r in group) for group in groups]
        assert len(groups) <= count and max(sizes, default=0) <= -(-place // count)
        assert all(len({r.partition for r in group}) == len(group) for group in groups)


def in_steps(
    messages: list[Message], lasts: list[dict[str, int]], several: bool, *tables: Any, **given: Any
) -> list[Read]:
    """The reads up to each of these ends, one after the other."""
    found: list[Read] = []
    before = None
    for ends in lasts:
        found.append(read(messages, *tables, before=before, ends=ends, in_parts=several, **given))
        before = found[-1].position if found[-1].noticed.reached else before
    return found


def assert_same(one: Read, other: Read) -> None:
    assert one.rows == other.rows and one.unread == other.unread and one.parked == other.parked
    assert one.noticed.reached == other.noticed.reached and one.noticed.warnings == other.noticed.warnings


@pytest.mark.parametrize("kind", [Plain, Database])
@pytest.mark.parametrize("seed", range(6))
def test_several_tasks_land_what_one_does(monkeypatch: pytest.MonkeyPatch, seed: int, kind: type[Database]) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(in_parts, "EVENTS", chance.choice((1, 5, 20)))
    database = kind(chance)
    for xid in range(700, 730):
        database.transact(xid)
    messages = sent(database.steps, chance, chance.choice((1, 3)), chance.choice((0.0, 0.0, 0.02)))
    tables = [table(name, COLUMNS) for name in "ab"]
    lasts, ends = [], dict[str, int]()
    for last in sorted(chance.sample(range(len(messages)), 3)):
        for topic in ("public.a", "public.b", "transaction"):
            behind = chance.choice((0, chance.randint(0, 9)))
            visible = [m["offset"] for m in messages[: max(0, last - behind)] if m["topic"] == topic]
            ends[topic] = max([ends.get(topic, 0), *(offset + 1 for offset in visible)])
        lasts.append(dict(ends))
    alone, several = (in_steps(messages, [*lasts, {}], is_several, *tables) for is_several in (False, True))
    for one, other in zip(alone, several, strict=True):
        assert_same(one, other)
    FELL[kind].append(sum(other.parts > 0 for other in several))


FELL: dict[type[Database], list[int]] = {Plain: [], Database: []}


def test_parts_hold_where_all_is_plain() -> None:
    """Of the reads above."""
    assert sum(FELL[Plain]) > len(FELL[Plain]), FELL
    assert sum(FELL[Plain]) > sum(FELL[Database]) > 0, FELL


@pytest.mark.parametrize("name", ["plain", "schemas"])
def test_a_recording_is_read_in_parts_as_by_one_task(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Snapshots, TOAST, truncates, dead letters, from each transaction on."""
    monkeypatch.setattr(in_parts, "EVENTS", 2)
    messages, tables = recorded(name), (table("items", ITEMS), table("pairs", PAIRS, ("a", "b")))
    for first in (1, 4, 7, 10):
        lasts = [{"transaction": 2 * first}, {}]
        alone, several = (in_steps(messages, lasts, is_several, *tables, now=LATE) for is_several in (False, True))
        for one, other in zip(alone, several, strict=True):
            assert_same(one, other)
