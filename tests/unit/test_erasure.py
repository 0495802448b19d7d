"""Whose rows are erased, in which tables, and what becomes of a record: without any server."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.expressions import And, EqualTo, IsNull, Or
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from erasure import steps
from erasure.key_periods import Event, Period, key_of, key_periods, linked_keys
from erasure.plan import Plan
from erasure.proof import Search, Trace
from erasure.records import SubjectRecords
from erasure.rows import SubjectRows, repeated
from erasure.subjects import EVENT_COLUMNS, _events
from erasure.targets import Target
from erasure.tombstones import tombstone
from ingestion.mirrors.refresh import RefreshReport
from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.pgoutput.tuples import joined, split
from ingestion.tasks.snapshot import Point, rows_at
from lakehouse_cli.lake.erase import _print
from orchestration.checks.erasures import check_result
from tests.unit import pgoutput_encode as wire

COLUMNS = (("id", True), ("name", False), ("tier", False))
KEPT = frozenset({"id", "tier"})


def moved(old: int, new: int, lsn: int) -> list[Event]:
    return [Event((old,), (0, lsn, 0), "d"), Event((new,), (0, lsn, 1), "c", (old,))]


def test_what_a_snapshot_writes_is_known_for_its_head_and_its_rows() -> None:
    """The stream's truncate has a transaction."""
    point = Point(Lsn(10), "", datetime.now(UTC))
    head, row = (rows_at(point, *given).to_pylist()[0] for given in (("t", -1, 1), ("r", 4, 1)))
    others = {"id": 7, "_epoch": 0, "_old_key": None, "_ingested_at": None}
    rows = pa.Table.from_pylist([{**head, **others}, {**row, **others}, {**head, **others, "_seq": 9, "_xid": 700}])
    marker, restated, truncate = _events(rows.select(("id", *EVENT_COLUMNS)), ("id",), lambda texts: ())
    assert [event.is_marker for event in (marker, restated, truncate)] == [True, False, False]
    events = [marker, restated, *moved(7, 8, 20)]
    assert Period((7,), (-1,), (0, 20, 1)) in key_periods((8,), events)
    assert Period((7,), (0, 9, 10), (0, 20, 1)) in key_periods((8,), [*events, truncate])


def test_a_key_may_be_nan() -> None:
    """It equals itself in Postgres, and in nothing else: no row of the subject was found."""
    nan, other = float("nan"), float("nan")
    columns = {"_epoch": [0] * 3, "_commit_lsn": [5, 50, 60], "_seq": [0] * 3, "name": ["a", "b", "c"]}
    rows = pa.table({"id": [nan, 1.0, None], **columns})
    target = Target(("raw_x", "t"), "empty", ("id",), frozenset({"name"}))
    subject = SubjectRows(target, (Period(key_of([other])),))
    assert subject.rows(rows) == [0] and SubjectRows(target, (Period((1.0,)),)).rows(rows) == [1]
    bound = bind(Schema(NestedField(1, "id", DoubleType())), subject.filter(), case_sensitive=True)
    assert rows.filter(expression_to_pyarrow(bound)).column("name").to_pylist() == ["a"]
    both = SubjectRows(target, (Period(key_of([other])), Period((1.0,)), Period((None,))))
    bound = bind(Schema(NestedField(1, "id", DoubleType())), both.filter(), case_sensitive=True)
    assert rows.filter(expression_to_pyarrow(bound)).num_rows == 3
    events = [Event(key_of([nan]), (0, 20, 0), "d"), Event((2.0,), (0, 20, 1), "c", key_of([other]))]
    assert {period.key for period in key_periods((2.0,), events)} == {(2.0,), key_of([nan])}


def test_rows_of_one_that_bore_the_key_at_another_time_stay() -> None:
    rows = pa.table(
        {"id": [7, 7, 8], "_epoch": [0] * 3, "_commit_lsn": [5, 50, 60], "_seq": [0] * 3, "name": ["a", "b", "c"]}
    )
    target = Target(("raw_x", "t"), "empty", ("id",), frozenset({"name"}))
    subject = SubjectRows(target, (Period((7,), (0, 1, 0), (0, 20, 1)),))
    assert subject.holding(rows) == [0]
    assert subject.after(rows).column("name").to_pylist() == [None, "b", "c"]


def test_rows_whose_key_is_null_in_the_lake_are_found() -> None:
    """As where `null` is declared for what the lake cannot hold."""
    target = Target(("raw_x", "t"), "empty", ("id", "day"), frozenset({"name"}))
    subject = SubjectRows(target, (Period((7, None)), Period((7, 2))))
    rows = pa.table({"id": [7, 7, 7, 8], "day": [None, 1, 2, None], "name": ["a", "b", "c", "d"]})
    assert subject.holding(rows) == [0, 2]
    day = Or(EqualTo(term="day", value=2), IsNull(term="day"))
    assert subject.filter() == And(EqualTo(term="id", value=7), day)


def test_a_subject_that_had_thousands_of_keys_is_found() -> None:
    """As a place in a list that is sorted by hand. Both were as deep as there were keys, and Python gave up."""
    keys = 5000
    events = [event for key in range(1, keys) for event in moved(key, key + 1, key)]
    assert {period.key for period in key_periods((keys,), events)} == {(key,) for key in range(1, keys + 1)}
    assert len(linked_keys((1,), [((key,), (key + 1,)) for key in range(1, keys)])) == keys
    target = Target(("raw_shop", "items"), "empty", ("id", "part"), frozenset())
    subject = SubjectRows(target, tuple(Period((key, key + 1)) for key in range(keys)))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", LongType()))
    rows = pa.table({"id": [1, 1, keys], "part": [2, 3, 1]})
    assert rows.filter(expression_to_pyarrow(bind(schema, subject.filter(), True))).num_rows == 2, "a part of the keys"
    assert subject.rows(rows) == [0]


def test_a_satellite_row_that_says_what_the_one_before_it_said_goes() -> None:
    assert repeated([("k", "3", "x"), ("k", "1", "x"), ("k", "2", "y"), ("k", "4", "x"), ("l", "4", "x")]) == {
        ("k", "4")
    }


def records(*messages: bytes, columns: Any = COLUMNS) -> pa.Table:
    relation = wire.relation(1, columns)
    n = len(messages)
    told: dict[str, Any] = {
        "source": ["s"] * n,
        "table": ["t"] * n,
        "epoch": [0] * n,
        "commit_lsn": [9] * n,
        "seq": list(range(0, 2 * n, 2)),
    }
    return pa.table(told | {"relation": [relation] * n, "message": pa.array(messages, pa.binary())})


def in_records(key: int, *values: str) -> SubjectRecords:
    target = Target(("meta", "spool"), "empty", (), frozenset())
    typed = lambda texts: (int(texts["id"]),)  # noqa: E731
    return SubjectRecords(target, "s", "t", (Period((key,)),), ("id",), KEPT, typed, frozenset(values))


def test_a_record_keeps_its_key_and_operation_and_loses_what_is_personal() -> None:
    kept = records(
        wire.insert(1, ["4", "Ann", "GOLD"]), wire.update(1, ["4", ..., "TIN"]), wire.update(1, ["5", "Bo", "TIN"]),
        wire.update(1, ["6", "Cy", None], ["4", "Ann", "x"], b"O"), wire.delete(1, ["4", None, None]),
    )  # fmt: skip
    subject = in_records(4)
    assert subject.rows(kept) == [0, 1, 3, 4] and subject.holding(kept) == [0, 3]
    assert list(subject.texts(kept, [0, 3])) == ["Ann", "Ann", "Cy"]
    assert subject.after(kept).column("message").to_pylist() == [
        wire.insert(1, ["4", None, "GOLD"]), wire.update(1, ["4", ..., "TIN"]), wire.update(1, ["5", "Bo", "TIN"]),
        wire.update(1, ["6", None, None], ["4", None, "x"], b"O"), wire.delete(1, ["4", None, None]),
    ]  # fmt: skip
    assert joined(*split(kept.column("message")[3].as_py())) == kept.column("message")[3].as_py()
    assert [(e.key, e.op, e.old_key) for e in subject.events(kept)][-3:] == [
        ((4,), "d", None),
        ((6,), "c", (4,)),
        ((4,), "d", None),
    ]


def test_a_record_that_nobody_can_read_goes_only_if_it_names_the_subject() -> None:
    kept = records(b"I\0\0\0\1Nbroken Ann Smith", b"I\0\0\0\1Nbroken Bo Miller")
    subject = in_records(4, "Ann Smith", "M")
    assert subject.unreadable(kept) == 2 and subject.holding(kept) == [0]
    assert subject.after(kept).column("message").to_pylist() == [b"I\0\0\0\1Nbroken Bo Miller"]


def test_a_record_from_before_a_rename_of_the_key_is_the_subjects() -> None:
    """It was nobody's, was not counted either, and landed with the person in it."""
    renamed = (("number", True), *COLUMNS[1:])
    kept = records(wire.insert(1, ["4", "Ann", "GOLD"]), wire.insert(1, ["5", "Bo", "TIN"]), columns=renamed)
    subject = replace(in_records(4), called={"id": ("id", "number")})
    assert subject.unreadable(kept) == 0 and subject.holding(kept) == [0] and list(subject.texts(kept, [0])) == ["Ann"]
    assert [event.key for event in subject.events(kept)] == [(4,), (5,)]
    assert subject.after(kept).column("message")[0].as_py() == wire.insert(1, ["4", None, "GOLD"])


def test_a_record_without_the_key_counts_as_one_that_cannot_be_read() -> None:
    """It is from before the column was, or was the key."""
    other = (("number", True), *COLUMNS[1:])
    kept = records(wire.insert(1, ["4", "Ann Smith", "GOLD"]), wire.insert(1, ["5", "Bo", "TIN"]), columns=other)
    subject = in_records(4, "Ann Smith")
    assert subject.unreadable(kept) == 2 and subject.holding(kept) == [0] and list(subject.events(kept)) == []
    assert subject.after(kept).num_rows == 1
    null = records(wire.insert(1, [None, "Ann Smith", "GOLD"]), wire.delete(1, [None, None, None]))
    assert subject.unreadable(null) == 2 and subject.holding(null) == [0]
    swapped = replace(subject, key=("number", "id"), called={"number": ("number", "id"), "id": ("id", "was")})
    assert swapped.unreadable(records(wire.insert(1, ["4", "Ann Smith", "GOLD"]))) == 1, "nothing tells which is which"


def test_tables_that_are_built_whole_are_built_anew_though_nothing_below_them_holds_the_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run before this one may have emptied the tables below and been killed then; its tombstone was proved once."""
    stone = tombstone("shop", "people", {"id": "4"})
    mart = SubjectRows(Target(("marts", "dim"), "rebuild", ("id",), frozenset()), (Period((4,)),))
    built: list[str] = []
    monkeypatch.setattr(steps, "open_io", lambda settings: None)
    monkeypatch.setattr(steps, "search", lambda *given: Search())
    monkeypatch.setattr(steps, "parts_of", lambda *given: [])
    monkeypatch.setattr(steps.tombstones, "read", lambda *given: (replace(stone, done_at="2026-01-01"),))
    monkeypatch.setattr(steps.tombstones, "keep", lambda *given: None)
    monkeypatch.setattr(steps.tombstones, "add", lambda settings, io, states, stones: tuple(stones))
    monkeypatch.setattr(steps.tombstones, "files_to_delete", lambda *given: set())
    monkeypatch.setattr(steps.expire, "check_copies", lambda *given: None)
    monkeypatch.setattr(steps.expire, "check_references", lambda table: None)
    monkeypatch.setattr(steps, "load_table", lambda *given: None)
    monkeypatch.setattr(steps, "await_readers", lambda settings: None)
    monkeypatch.setattr(steps.Erasing, "_prove", lambda *given: None)
    monkeypatch.setattr(
        steps.Erasing, "_whole", lambda self, parts, erasure: built.extend(str(p.target) for p in parts)
    )
    people: Any = SimpleNamespace(source="shop", name="people")
    plan = Plan(people, {(4,): (Period((4,)),)}, (), (mart,), 3, {})
    writer: Any = SimpleNamespace(catalog=None)
    erasing = steps.Erasing(cast(Any, None), writer, cast(Any, None), plan, lambda step: None, cast(Any, None))
    done = erasing.run([{"id": "4"}])
    assert done.left == [] and done.unreadable_records == 0, "those that are gone are not counted as kept"
    assert built == ["marts.dim"]


@pytest.mark.parametrize("aside", [(), ("people",)])
def test_a_mirror_is_rebuilt_only_where_its_table_is_in_the_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], aside: tuple[str, ...]
) -> None:
    """That of a parked table was dropped and not made anew, and the report said that it was rebuilt."""
    monkeypatch.setattr(steps, "await_readers", lambda settings: None)
    monkeypatch.setattr(steps, "drop_mirror", lambda *given: 7)
    monkeypatch.setattr(steps, "no_maintenance", lambda *given: nullcontext())
    monkeypatch.setattr(steps, "refresh", lambda *given: RefreshReport("shop", "0/1", None, (), (), aside))
    monkeypatch.setattr(steps, "replace", lambda writer, **given: writer)
    given: Any = None
    erasing = steps.Erasing(given, SimpleNamespace(catalog=None), given, given, lambda step: None, given)  # type: ignore[arg-type]
    erasure = steps.Erasure(["shop.people id=4"])
    erasing._mirror(Target(("mirror_shop", "people"), "drop", ("id",), frozenset()), erasure)
    (done,) = erasure.tables.values()
    assert (done.rebuilt, done.dropped, done.deleted) == (not aside, bool(aside), 7)
    _print([erasure])
    said = capsys.readouterr().out.splitlines()[0]
    wanted = "dropped; comes back once the table is in a cut again (`lakehouse status`)" if aside else "rebuilt"
    assert said.split(maxsplit=1)[1].startswith(f"{wanted}, 0 snapshots expired, 7 files deleted"), said


def test_the_check_fails_with_paths_and_never_with_values() -> None:
    key = dg.AssetCheckKey(dg.AssetKey(["raw_shop", "people"]), "erasures_hold")
    found = Search(objects=3, bytes=9, traces=[Trace("raw_shop.people", "s3://w/a.parquet", 1, "rows")], values={"Ann"})
    result = check_result(key, found)
    assert not result.passed and "Ann" not in json.dumps(str(result.metadata)) and "a.parquet" in str(result.metadata)
    assert check_result(key, Search(objects=3, bytes=9)).passed
