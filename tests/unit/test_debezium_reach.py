"""How far a read of Debezium's topics goes: which partitions it is of, and where they begin and end."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from debezium_recorded import ITEMS, RecordedReader, settings, shape, table

from ingestion.schema.offsets import Offsets, Partition
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import SourceNow
from ingestion.sources.debezium import source
from ingestion.sources.debezium.join.joined import SETTLED
from ingestion.sources.debezium.reading import EnvelopeReader, _Work
from ingestion.sources.debezium.shape import facts_of
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.kafka.connection import Topic
from ingestion.sources.kafka.reading import Range

TOPIC, NOW = "public.items", datetime(2026, 11, 30, tzinfo=UTC)
FACTS = facts_of(table("items", ITEMS), 7, settings())


class Brokers:
    """A topic of three partitions."""

    def __init__(self, starts: Mapping[int, int]) -> None:
        self._starts = starts

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {name: Topic(name, 7, (0, 1, 2)) for name in names}

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {of: self._starts.get(of[1], 0) for of in partitions}


def reader(
    monkeypatch: pytest.MonkeyPatch, before: Mapping[int, int], until: Mapping[int, int], end: Mapping[int, int], *,
    point: Mapping[int, int] | None = None, starts: Mapping[int, int] | None = None,
) -> EnvelopeReader:  # fmt: skip
    """What reads the topic from `before` up to `until`, where it has an `end`; by partition."""

    def at(offsets: Mapping[int, int]) -> TransactionOffsets:
        return TransactionOffsets.of({(TOPIC, number): offset for number, offset in offsets.items()})

    position = SimpleNamespace(facts=FACTS, point=at(point or {}), versions=(FACTS,))
    monkeypatch.setattr(source.store, "read_positions", lambda states, name: {"items": position})
    monkeypatch.setattr(source, "client_properties", lambda of: {})
    opened: Any = object.__new__(source.OpenDebezium)
    opened.__dict__ |= {
        "_name": "shop", "_of": settings(transactions=None), "_modes": shape(table("items", ITEMS), settings()).modes,
        "_brokers": Brokers(starts or {}), "_registry": None, "_states": None, "_end": at(end), "_asked": NOW,
        "_ends": source.Ends(), "_origins": {}, "_reached": lambda: at(before), "_tell_late": lambda *given: None,
        "_settings": SimpleNamespace(ingestion=SimpleNamespace(batch_bytes=1)),
    }  # fmt: skip
    opened._ends.note(NOW, at(end).by_partition)
    opened.remember(None, 1, {TOPIC: ("shop", "orders")})
    opened.remember(None, 1, None)  # nothing was read
    made = opened.change_reader(SourceNow[Offsets](at(until), NOW, 0), None, [FACTS])
    assert isinstance(made, EnvelopeReader)
    return made


def test_all_partitions_of_a_topic_are_of_a_read_with_what_is_read_up_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What had nothing in a read was no partition of its topic, so a TRUNCATE in another one waited for none of its
    rows."""
    made = reader(monkeypatch, {0: 3, 1: 5}, {0: 4, 1: 5}, {0: 9, 1: 5})
    assert made.ranges == (Range(TOPIC, 0, 3, 4, 0), Range(TOPIC, 1, 5, 5, 1), Range(TOPIC, 2, 0, 0, 1))
    assert made.behind == {(TOPIC, 0)} and made.asked == NOW and made.wide == {TOPIC} and not made.is_whole
    assert made.seen == {(TOPIC, 0): [(9, NOW)]} and made.origins == {TOPIC: ("shop", "orders")}
    settled = int((NOW - SETTLED).timestamp() * 1000)
    assert _Work(made, Spool())._whole_to() == [-1, settled, settled]
    assert reader(monkeypatch, {0: 3}, {0: 3}, {0: 3}).is_silent


@pytest.mark.parametrize(
    ("before", "starts", "is_fresh"),
    [({}, {}, True), ({1: 40}, {1: 40}, True), ({1: 40}, {1: 50}, True), ({1: 41}, {1: 40}, False),
     ({1: 40, 0: 1}, {1: 40}, False), ({1: 40}, {1: 30}, False)],
)  # fmt: skip
def test_a_topic_that_has_lost_its_beginning_is_read_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch, before: Mapping[int, int], starts: Mapping[int, int], is_fresh: bool
) -> None:
    """It begins at an offset above 0, and counted as read before: what came again of its history was dropped."""
    made = reader(monkeypatch, before, {0: 9, 1: 90}, {0: 9, 1: 90}, point={1: 40}, starts=starts)
    assert _Work(made, Spool())._fresh() == ({"public.items"} if is_fresh else frozenset())


@pytest.mark.parametrize(("starts", "is_fresh"), [({0: 100, 1: 200}, True), ({0: 100, 1: 190}, False)])
def test_so_is_one_of_which_a_partition_has_nothing_to_read(
    monkeypatch: pytest.MonkeyPatch, starts: Mapping[int, int], is_fresh: bool
) -> None:
    """Where that one begins was not asked for, so the whole topic counted as read before."""
    point, until = {0: 100, 1: 200}, {0: 150, 1: 200}
    made = reader(monkeypatch, point, until, until, point=point, starts=starts)
    assert made.beginnings == {(TOPIC, number): offset for number, offset in starts.items()}
    assert _Work(made, Spool())._fresh() == ({"public.items"} if is_fresh else frozenset())
    assert not reader(monkeypatch, point, point, point, point=point, starts=starts).beginnings, "nothing is to be read"


def test_without_beginnings_what_has_an_offset_was_read() -> None:
    made = RecordedReader(
        source="shop", properties={}, ranges=(), told=None, is_told=False, histories={}, shapes={},
        before=TransactionOffsets.of({("a", 0): 3}), exactly_once=True, is_whole=True, now=NOW, batch_bytes=1,
    )  # fmt: skip
    assert made.passed == {"a"}
