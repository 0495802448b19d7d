"""What lands late, as dead letters that are replayed: parsed says what a load of the whole raw table would say."""

import random
from typing import Any

import pytest

from tests.marks import seeds
from tests.unit.embedded_parsed import Parsed

ROWS = "select id, _op, _commit_lsn, _loaded_at, a, b from parsed order by all"


def test_a_late_row_reaches_those_that_had_their_value_from_the_one_before_it() -> None:
    parsed = Parsed("a", "b")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="A", b="0")
    parsed.load(cut=10)
    parsed.land("u", 1, 30, "20 08:00", "20 08:01", b="2", _unchanged=["a"])
    parsed.load(cut=30)
    parsed.land("c", 3, 40, "20 08:10", "20 08:11", a="C", b="3")
    parsed.load(cut=40)
    parsed.replay("u", 1, 20, "20 07:30", "20 09:00", a="B", b="1")
    assert parsed.load(cut=40) and parsed.is_revised()
    assert parsed.current() == [(1, "B", "2"), (3, "C", "3")]
    assert not parsed.load(cut=40)


def test_a_late_row_is_deleted_by_a_truncate_that_was_loaded_before_it() -> None:
    parsed = Parsed("a")
    parsed.land("c", 2, 10, "20 07:00", "20 07:01", a="A")
    parsed.land("t", None, 30, "20 08:00", "20 08:01")
    parsed.load(cut=30)
    parsed.land("c", 3, 40, "20 08:10", "20 08:11", a="after")
    parsed.load(cut=40)
    parsed.replay("c", 1, 20, "20 07:30", "20 09:00", a="was a dead letter")
    assert parsed.load(cut=40) and parsed.is_revised()
    assert parsed.current() == [(3, "after")]


@pytest.mark.parametrize("column", [False, True], ids=["of itself", "for a column"])
def test_a_late_row_that_changes_no_loaded_one_is_loaded_as_any_other(column: bool) -> None:
    """Truncates and values that are left out stand before it, or come with it. Nothing below loads again."""
    parsed = Parsed("a", "b")
    parsed.declared = ("a",) if column else ("a", "b")
    parsed.land("t", None, 5, "20 06:00", "20 06:01")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="A", b="0")
    parsed.land("u", 1, 15, "20 07:10", "20 07:11", b="1", _unchanged=["a"])
    parsed.land("c", 2, 30, "20 08:00", "20 08:01", a="C", b="2")
    parsed.load(cut=30)
    parsed.declared = ("a", "b")
    parsed.replay("u", 1, 20, "20 07:30", "20 09:00", a="B", b="3")
    parsed.land("u", 1, 50, "20 09:30", "20 09:31", b="4", _unchanged=["a"])
    parsed.load(cut=50)
    assert parsed.current() == [(1, "B", "4"), (2, "C", "2")]
    assert not parsed.is_revised()


def test_a_late_row_of_another_key_than_those_that_left_a_value_out_changes_none() -> None:
    """Nor does it with new rows of that key, which stand after what is loaded."""
    parsed = Parsed("a", "b")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="A", b="0")
    parsed.land("u", 1, 30, "20 08:00", "20 08:01", b="2", _unchanged=["a"])
    parsed.load(cut=30)
    parsed.replay("c", 9, 20, "20 07:30", "20 09:00", a="was a dead letter", b="1")
    parsed.land("u", 1, 40, "20 09:30", "20 09:31", b="3", _unchanged=["a"])
    assert parsed.load(cut=40) and not parsed.is_revised()
    assert parsed.current() == [(1, "A", "3"), (9, "was a dead letter", "1")]


@pytest.mark.parametrize("late", ["before the key change", "the key change"])
def test_a_late_row_reaches_those_that_had_their_value_from_under_its_key(late: str) -> None:
    parsed = Parsed("a", "b")
    moved = {"b": "2", "_unchanged": ["a"], "_old_key": '{"id": "1"}'}
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="A", b="0")
    parsed.land("d", 1, 30, "20 08:00", "20 08:01")
    if late == "the key change":
        parsed.land("u", 2, 40, "20 08:10", "20 08:11", b="3", _unchanged=["a"])
        parsed.load(cut=40)
        parsed.replay("c", 2, 31, "20 08:00", "20 09:00", **moved)
        expected = (2, "A", "3")
    else:
        parsed.land("c", 2, 31, "20 08:00", "20 08:01", **moved)
        parsed.load(cut=40)
        parsed.replay("u", 1, 20, "20 07:30", "20 09:00", a="B", b="1")
        expected = (2, "B", "2")
    assert parsed.load(cut=40) and parsed.is_revised()
    assert parsed.current() == [expected]


def test_rows_that_change_with_a_table_that_is_made_anew_for_a_column_are_told_too() -> None:
    parsed = Parsed("a", "b")
    parsed.declared = ("a",)
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="A", b="0")
    parsed.land("u", 1, 30, "20 08:00", "20 08:01", b="2", _unchanged=["a"])
    parsed.load(cut=30)
    parsed.declared = ("a", "b")
    parsed.replay("u", 1, 20, "20 07:30", "20 09:00", a="B", b="1")
    parsed.load(cut=30)
    assert parsed.current() == [(1, "B", "2")] and parsed.is_revised()
    parsed.add("c")
    revised = parsed.rows("select * from parsed_properties where key like '%revised%'")
    assert parsed.load(cut=30)
    assert parsed.rows("select * from parsed_properties where key like '%revised%'") == revised, "for a column alone"


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_whatever_lands_late_parsed_is_what_a_load_of_the_whole_would_make(seed: int) -> None:
    rng = random.Random(seed)
    parsed, whole, at = Parsed("a", "b"), Parsed("a", "b"), 0
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    cuts = [0]

    def land(parts: tuple[Any, ...], values: dict[str, Any], late: bool) -> None:
        row = (*parts[:3], parts[3], f"21 {at // 60:02}:{at % 60:02}")
        (parsed.replay if late else parsed.land)(*row, **values)
        whole.land(*row, **values)

    for parts, values in history(rng):
        at += rng.random() < 0.7  # else in one cycle with the one before
        if rng.random() < 0.25:
            kept.append((parts, values))
        else:
            land(parts, values, late=False)
        cuts.append(parts[2])
        if kept and rng.random() < 0.2:
            at += 1
            rng.shuffle(kept)
            for _ in range(rng.randint(1, len(kept))):
                land(*kept.pop(), late=True)
            at += 1
        if rng.random() < 0.4:
            cuts = cuts[-rng.randint(1, min(4, len(cuts))) :]
            parsed.load(cut=cuts[0])
    at += 1
    for record in kept:
        land(*record, late=True)
    whole.load(cut=cuts[-1])
    for _ in range(2):
        parsed.load(cut=cuts[-1])
        assert parsed.rows(ROWS) == whole.rows(ROWS)
        assert parsed.current() == whole.current()


def history(rng: random.Random) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Events of a few keys in source order: operation, key, LSN and moment, and values."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    alive: set[int] = set()
    for lsn in range(1, 25):
        key, values = rng.randint(1, 4), {"a": f"a{lsn}", "b": f"b{lsn}"}
        left_out = rng.sample("ab", rng.randint(0, 2))
        lacking = {name: None if name in left_out else value for name, value in values.items()}
        if rng.random() < 0.1:
            event: tuple[str, int | None, dict[str, Any]] = ("t", None, {})
            alive.clear()
        elif key not in alive:
            event = ("c", key, values)
            alive.add(key)
        elif rng.random() < 0.15:
            event = ("d", key, {})
            alive.discard(key)
        elif rng.random() < 0.2 and len(alive) < 4:  # a key change, which is two events
            to = rng.choice([other for other in range(1, 5) if other not in alive])
            old = {"_unchanged": left_out, "_old_key": f'{{"id": "{key}"}}'} if left_out else {}
            found.append((("d", key, 10 * lsn, "20 00:00"), {}))
            event = ("c", to, {**lacking, **old})
            alive ^= {key, to}
        else:
            event = ("u", key, {**lacking, **({"_unchanged": left_out} if left_out else {})})
        op, key_of, more = event
        found.append(((op, key_of, 10 * lsn + 1, "20 00:00"), more))
    return found


@pytest.mark.parametrize("is_late", [True, False], ids=["by a late row", "for a column"])
def test_rows_from_before_raw_was_begun_again_stay_where_parsed_is_made_anew(is_late: bool) -> None:
    """Raw was dropped by hand and landed again: nothing but parsed says any more what it had."""
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="before")
    parsed.land("d", 2, 20, "20 07:30", "20 07:31")
    parsed.load(cut=20)
    parsed.rows("delete from raw")
    parsed.land("r", 1, 30, "20 08:00", "20 08:01", a="A")
    parsed.land("u", 1, 50, "20 08:30", "20 08:31", _unchanged=["a"])
    parsed.load(cut=50)
    if is_late:
        parsed.replay("u", 1, 40, "20 08:10", "20 09:00", a="B")
    else:
        parsed.add("b")
    assert parsed.load(cut=50) and parsed.is_revised() == is_late
    value = "B" if is_late else "A"
    late = [(1, "u", 40, "B")] if is_late else []
    expected = [(1, "c", 10, "before"), (2, "d", 20, None), (1, "r", 30, "A"), *late, (1, "u", 50, value)]
    assert parsed.rows("select id, _op, _commit_lsn, a from parsed order by _commit_lsn") == expected
    assert not parsed.load(cut=50)


@pytest.mark.parametrize("is_truncated_twice", [False, True])
def test_a_truncate_deletes_keys_that_raw_has_no_more_also_where_parsed_is_made_anew(is_truncated_twice: bool) -> None:
    """They came back: raw had been dropped and landed again, and the key's row had been deleted in between."""
    parsed = Parsed("a")
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="x")
    parsed.land("c", 2, 20, "20 07:00", "20 07:01", a="y")
    if is_truncated_twice:
        parsed.land("t", None, 25, "20 07:10", "20 07:11")
        parsed.land("c", 2, 26, "20 07:20", "20 07:21", a="z")
    parsed.load(cut=30)
    parsed.rows("delete from raw")
    parsed.land("r", 1, 30, "20 08:00", "20 08:01", a="x")
    parsed.land("t", None, 40, "20 09:00", "20 09:01")
    parsed.load(cut=40)
    before = parsed.rows("select * from parsed order by all")
    assert parsed.current() == []
    parsed.add("b")
    assert parsed.load(cut=40) and parsed.is_made_anew()
    assert parsed.rows("select * exclude b from parsed order by all") == before
    assert parsed.current() == []


@pytest.mark.parametrize(("of", "to", "kept"), [("text", "integer", None), ("integer", "text", "7")])
def test_values_from_before_raw_was_begun_again_stay_where_the_columns_new_type_has_them(
    of: str, to: str, kept: str | None
) -> None:
    parsed = Parsed("a")
    parsed.retype("a", of)
    parsed.land("c", 1, 10, "20 07:00", "20 07:01", a="7")
    parsed.load(cut=10)
    parsed.rows("delete from raw")
    parsed.land("r", 1, 30, "20 08:00", "20 08:01", a="7")
    parsed.load(cut=30)
    parsed.retype("a", to)
    parsed.land("u", 1, 40, "20 09:00", "20 09:01", a="8")
    assert parsed.load(cut=40) and not parsed.is_revised()
    assert parsed.rows("select cast(a as varchar) from parsed order by _commit_lsn") == [(kept,), (None,), ("8",)]
