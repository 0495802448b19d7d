"""Whose rows are erased, in which tables, and what becomes of a record: without any server."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest

from erasure import steps
from erasure.lives import NEVER, Event, Life, lives_of
from erasure.places import Place
from erasure.plan import Plan
from erasure.proof import Finding, Look
from erasure.records import MineInRecords
from erasure.rows import Mine, repeated
from erasure.subjects import EVENT_COLUMNS, _events
from erasure.tombstones import tombstone
from ingestion.sources.postgres.pgoutput.tuples import joined, split
from ingestion.tasks.shared_keys.positions import ranked
from ingestion.tasks.snapshot import Point, rows_at
from orchestration.checks.erasures import check_result
from tests.unit import pgoutput_encode as wire

COLUMNS = (("id", True), ("name", False), ("tier", False))
KEPT = frozenset({"id", "tier"})


def moved(old: int, new: int, lsn: int) -> list[Event]:
    return [Event((old,), (0, lsn, 0), "d"), Event((new,), (0, lsn, 1), "c", (old,))]


def test_a_key_that_never_changed_is_one_life() -> None:
    assert lives_of((1,), [Event((1,), (0, 5, 0), "u"), *moved(8, 9, 7)]) == (Life((1,)),)


def test_lives_follow_key_changes_both_ways_and_stop_at_births_and_deaths() -> None:
    """7 was somebody until 10, then the subject, who became 8 at 20 and 9 at 30; another was given 7 and 9 later."""
    events = [Event((7,), (0, 10, 0), "d"), *moved(7, 8, 20), *moved(8, 9, 30), Event((9,), (0, 40, 0), "d")]
    events += [Event((7,), (0, 50, 0), "c"), Event((9,), (0, 60, 0), "c"), *moved(9, 11, 70)]
    lives = set(lives_of((8,), events))
    assert lives == {Life((8,)), Life((7,), (0, 10, 1), (0, 20, 1)), Life((9,), (0, 30, 1), (0, 40, 1))}
    assert not any(life.is_open for life in lives if life.key != (8,))


def test_a_truncate_ends_a_life_and_an_unfinished_one_is_open() -> None:
    assert Life((8,), (0, 20, 1), (0, 25, 1)) in lives_of((7,), [*moved(7, 8, 20), Event(None, (0, 25, 0), "t")])
    assert Life((8,), (0, 20, 1), NEVER) in lives_of((7,), moved(7, 8, 20))


def test_lives_are_followed_through_keys_that_two_rows_exchanged() -> None:
    """Row A goes from 1 to 2 and row B from 2 to 1 in one transaction, so the events of 2 were put in order."""
    events = [
        Event((1,), (0, 20, 0), "d"), Event((2,), (0, 20, ranked(1, 2)), "d"),
        Event((2,), (0, 20, ranked(2, 1)), "c", (1,)), Event((1,), (0, 20, 3), "c", (2,)),
    ]  # fmt: skip
    of_a = lives_of((2,), events)
    assert set(of_a) == {Life((2,)), Life((1,), (-1,), (0, 20, 1)), Life((1,), (0, 20, 3), NEVER)}
    of_b = lives_of((1,), events)
    assert set(of_b) == {
        Life((1,)), Life((2,), (-1,), (0, 20, ranked(1, 2) + 1)), Life((2,), (0, 20, ranked(2, 1)), NEVER),
    }  # fmt: skip


def test_a_snapshot_of_all_rows_ends_the_lives_of_those_only_whom_it_does_not_show() -> None:
    marker = Event(None, (0, 10, -1), "t", is_marker=True)
    shown = [Event((7,), (0, 5, 0), "c"), marker, Event((7,), (0, 10, 3), "r"), *moved(7, 8, 20)]
    assert Life((7,), (-1,), (0, 20, 1)) in lives_of((8,), shown), "what it was called before the snapshot too"
    after = [*moved(7, 8, 5), marker, Event((8,), (0, 10, 3), "r")]
    assert Life((8,), (0, 5, 1), NEVER) in lives_of((7,), after), "the source may still hold it"
    assert Life((8,), (0, 5, 1), (0, 10, 0)) in lives_of((7,), after[:-1])
    another = [Event((7,), (0, 5, 0), "c"), marker, Event((7,), (0, 11, 0), "c"), *moved(7, 8, 20)]
    assert Life((7,), (0, 10, 0), (0, 20, 1)) in lives_of((8,), another)


def test_what_a_snapshot_writes_is_known_for_its_head_and_its_rows() -> None:
    """The stream's truncate has a transaction."""
    point = Point(10, "", datetime.now(UTC))
    head, row = (rows_at(point, *given).to_pylist()[0] for given in (("t", -1, 1), ("r", 4, 1)))
    others = {"id": 7, "_epoch": 0, "_old_key": None}
    rows = pa.Table.from_pylist([{**head, **others}, {**row, **others}, {**head, **others, "_seq": 9, "_xid": 700}])
    marker, restated, truncate = _events(rows.select(("id", *EVENT_COLUMNS)), ("id",), lambda texts: ())
    assert [event.is_marker for event in (marker, restated, truncate)] == [True, False, False]
    events = [marker, restated, *moved(7, 8, 20)]
    assert Life((7,), (-1,), (0, 20, 1)) in lives_of((8,), events)
    assert Life((7,), (0, 9, 10), (0, 20, 1)) in lives_of((8,), [*events, truncate])


def test_rows_of_one_that_bore_the_key_at_another_time_stay() -> None:
    rows = pa.table(
        {"id": [7, 7, 8], "_epoch": [0] * 3, "_commit_lsn": [5, 50, 60], "_seq": [0] * 3, "name": ["a", "b", "c"]}
    )
    place = Place(("raw_x", "t"), "empty", ("id",), frozenset({"name"}))
    mine = Mine(place, (Life((7,), (0, 1, 0), (0, 20, 1)),))
    assert mine.holding(rows) == [0]
    assert mine.after(rows).column("name").to_pylist() == [None, "b", "c"]


def test_a_satellite_row_that_says_what_the_one_before_it_said_goes() -> None:
    assert repeated([("k", "3", "x"), ("k", "1", "x"), ("k", "2", "y"), ("k", "4", "x"), ("l", "4", "x")]) == {
        ("k", "4")
    }


def records(*messages: bytes) -> pa.Table:
    relation = wire.relation(1, COLUMNS)
    n = len(messages)
    columns = {
        "source": ["s"] * n,
        "table": ["t"] * n,
        "epoch": [0] * n,
        "commit_lsn": [9] * n,
        "seq": list(range(0, 2 * n, 2)),
    }
    return pa.table(columns | {"relation": [relation] * n, "message": pa.array(messages, pa.binary())})


def in_records(key: int, *values: str) -> MineInRecords:
    place = Place(("meta", "spool"), "empty", (), frozenset())
    typed = lambda texts: (int(texts["id"]),)  # noqa: E731
    return MineInRecords(place, "s", "t", (Life((key,)),), ("id",), KEPT, typed, frozenset(values))


def test_a_record_keeps_its_key_and_operation_and_loses_what_is_personal() -> None:
    kept = records(
        wire.insert(1, ["4", "Ann", "GOLD"]), wire.update(1, ["4", ..., "TIN"]), wire.update(1, ["5", "Bo", "TIN"]),
        wire.update(1, ["6", "Cy", None], ["4", "Ann", "x"], b"O"), wire.delete(1, ["4", None, None]),
    )  # fmt: skip
    mine = in_records(4)
    assert mine.rows(kept) == [0, 1, 3, 4] and mine.holding(kept) == [0, 3]
    assert list(mine.texts(kept, [0, 3])) == ["Ann", "Ann", "Cy"]
    assert mine.after(kept).column("message").to_pylist() == [
        wire.insert(1, ["4", None, "GOLD"]), wire.update(1, ["4", ..., "TIN"]), wire.update(1, ["5", "Bo", "TIN"]),
        wire.update(1, ["6", None, None], ["4", None, "x"], b"O"), wire.delete(1, ["4", None, None]),
    ]  # fmt: skip
    assert joined(*split(kept.column("message")[3].as_py())) == kept.column("message")[3].as_py()
    assert [(e.key, e.op, e.old_key) for e in mine.events(kept)][-3:] == [
        ((4,), "d", None),
        ((6,), "c", (4,)),
        ((4,), "d", None),
    ]


def test_a_record_that_nobody_can_read_goes_only_if_it_names_the_subject() -> None:
    kept = records(b"I\0\0\0\1Nbroken Ann Smith", b"I\0\0\0\1Nbroken Bo")
    mine = in_records(4, "Ann Smith")
    assert mine.unreadable(kept) == 2 and mine.holding(kept) == [0]
    assert mine.after(kept).column("message").to_pylist() == [b"I\0\0\0\1Nbroken Bo"]


def test_tables_that_are_built_whole_are_built_anew_though_nothing_below_them_holds_the_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run before this one may have emptied the tables below and been killed then; its tombstone was proved once."""
    stone = tombstone("shop", "people", {"id": "4"})
    mart = Mine(Place(("marts", "dim"), "rebuild", ("id",), frozenset()), (Life((4,)),))
    built: list[str] = []
    monkeypatch.setattr(steps, "open_io", lambda settings: None)
    monkeypatch.setattr(steps, "look", lambda *given: Look())
    monkeypatch.setattr(steps, "parts_of", lambda *given: [])
    monkeypatch.setattr(steps.tombstones, "read", lambda *given: (replace(stone, done_at="2026-01-01"),))
    monkeypatch.setattr(steps.tombstones, "keep", lambda *given: None)
    monkeypatch.setattr(steps.tombstones, "condemned", lambda *given: set())
    monkeypatch.setattr(steps.forget, "check_copies", lambda *given: None)
    monkeypatch.setattr(steps.forget, "check_references", lambda table: None)
    monkeypatch.setattr(steps.Erasing, "_load", lambda *given: None)
    monkeypatch.setattr(steps.Erasing, "_prove", lambda *given: None)
    monkeypatch.setattr(steps.Erasing, "_whole", lambda self, parts, erasure: built.extend(str(p.place) for p in parts))
    people: Any = SimpleNamespace(source="shop", name="people")
    plan = Plan(people, {(4,): (Life((4,)),)}, (), (mart,), 0, {})
    writer: Any = SimpleNamespace(catalog=None)
    erasing = steps.Erasing(cast(Any, None), writer, cast(Any, None), plan, lambda step: None)
    assert erasing.run([{"id": "4"}]).left == []
    assert built == ["marts.dim"]


def test_the_check_fails_with_paths_and_never_with_values() -> None:
    key = dg.AssetCheckKey(dg.AssetKey(["raw_shop", "people"]), "erasures_hold")
    found = Look(
        objects=3, bytes=9, findings=[Finding("raw_shop.people", "s3://w/a.parquet", 1, "rows")], values={"Ann"}
    )
    result = check_result(key, found)
    assert not result.passed and "Ann" not in json.dumps(str(result.metadata)) and "a.parquet" in str(result.metadata)
    assert check_result(key, Look(objects=3, bytes=9)).passed
