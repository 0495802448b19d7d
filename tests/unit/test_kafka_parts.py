"""A read of events in several tasks: what lands, and what is kept aside, is what one task makes of them."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from held_topics import PARTITIONS, Lake, declared, make_lake

from ingestion.sources.kafka import reading
from ingestion.sources.kafka.fetching import Range, some_at_once
from ingestion.sources.kafka.reading import EVENTS, spread
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.settings import Settings


def test_every_range_is_read_by_one_task_and_tasks_are_as_many_as_the_events_pay_for() -> None:
    chance = random.Random(1)
    for _ in range(200):
        ranges, place = [], 0
        for partition in range(chance.randrange(12)):
            first, count = chance.randrange(9), chance.choice((1, EVENTS // 3, EVENTS, 3 * EVENTS))
            ranges.append(Range("t", partition, first, first + count, place))
            place += count
        parts = spread(ranges)
        assert sorted((r for part in parts for r in part), key=lambda r: r.partition) == ranges
        assert len(parts) == min(len(ranges), -(-place // EVENTS)) and all(parts)
        assert all(list(part) == sorted(part, key=lambda r: r.partition) for part in parts)
        sizes = sorted(sum(r.end - r.first for r in part) for part in parts)
        assert not parts or sizes[-1] - sizes[0] <= max(r.end - r.first for r in ranges)


@pytest.fixture
def lake(catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    yield make_lake(catalog_settings, postgres_catalog, monkeypatch)


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    found = lake.catalog.load_table(("raw_web", name)).scan().to_arrow().to_pylist()
    return sorted(({k: v for k, v in row.items() if k != "_ingested_at"} for row in found), key=lambda r: r["_seq"])


@pytest.mark.stack
def test_what_is_begun_before_it_is_taken_weighs_no_more_than_so_much() -> None:
    chance = random.Random(1)
    for _ in range(200):
        weights = [chance.choice((1, 2, 9)) for _ in range(chance.randrange(12))]
        most, begun = chance.choice((1, 3, 6)), list[int]()

        def items(weights: list[int] = weights, begun: list[int] = begun) -> Iterator[tuple[int, int]]:
            for number, weight in enumerate(weights):
                begun.append(number)
                yield weight, number

        for taken, item in enumerate(some_at_once(items(), most)):
            assert item == taken
            assert sum(weights[taken : len(begun) - 1]) <= most, "all but the newest fitted"
            assert len(begun) == len(weights) or sum(weights[taken : len(begun)]) > most, "as many as fit"
        assert len(begun) == len(weights)


@pytest.mark.parametrize("events", [1, EVENTS])
def test_rows_are_numbered_as_by_one_task(lake: Lake, monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    monkeypatch.setattr(reading, "EVENTS", events)
    lake.source = declared("clicks", "views", flush=None)
    lake.broker.create("views")
    for name in ("clicks", "views"):
        lake.broker.send(name, 40)
    lake.once()
    for name, first in (("clicks", 0), ("views", 40)):
        files = list(lake.catalog.load_table(("raw_web", name)).scan().plan_files())
        assert len(files) == (2 if events == 1 else 1), "a file of each task"
        places = [(p, offset, first + 2 * offset + p) for p in range(PARTITIONS) for offset in range(20)]
        found = rows(lake, name)
        assert [(r["_topic_partition"], r["_offset"], r["id"]) for r in found] == places
        assert [r["_seq"] for r in found] == list(range(2 * first, 2 * first + 80, 2))
        assert len({r["_commit_lsn"] for r in found}) == 1


@pytest.mark.stack
def test_a_table_that_one_task_parks_has_all_its_events_landed_or_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "EVENTS", 1)
    lake.source = declared("clicks", flush=None, columns={"id": "bigint", "page": "date"})
    lake.broker.send("clicks", 4)
    lake.once()
    lake.broker.send("clicks", 6)
    lake.broker.logs["clicks", 1][-1]["page"] = "infinity"  # which the lake's type cannot hold
    lake.broker.logs["clicks", 1][-2]["page"] = "no date"
    lake.broker.logs["clicks", 0][-1]["page"] = "no date"
    lake.once()
    with store.connect_catalog(lake.settings) as states:
        parked = store.read_positions(states, "web")["clicks"]
    assert parked.state == "parked" and "infinity" in str(parked.reason)
    kept = {n: lake.catalog.load_table(("meta", n)).scan().to_arrow().to_pylist() for n in ("spool", "quarantine")}
    assert [(r["partition"], r["offset"]) for r in kept["quarantine"]] == [(0, 4)]
    assert sorted((r["partition"], r["offset"]) for r in kept["spool"]) == [(1, 2), (1, 3), (1, 4)]
    assert len(rows(lake, "clicks")) == 6
