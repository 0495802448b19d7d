"""Reconciling is the judge of everything else, so it must neither miss a difference nor invent one."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest

from ingestion.pipeline.repair.compare import DOUBLED, Comparison
from ingestion.schema.compared import stand_ins
from ingestion.schema.positions import Lsn
from ingestion.sources.base import Point
from ingestion.state.store import TablePosition, TableState
from ingestion.verify import raw
from ingestion.verify.canonical import lake_form, order_key, source_form
from ingestion.verify.compare import MAX_EXAMPLES, Layout, Row, TableComparison, compare
from ingestion.verify.differences import is_stand_in
from lakehouse.errors import LakehouseError

LAYOUT = Layout(("id", "name"), (0,), (int,))


def _compare(source: list[Row], lake: list[Row], layout: Layout = LAYOUT) -> TableComparison:
    return compare(TableComparison("shop", "things", layout.columns), layout, source, lake)


@pytest.mark.parametrize(
    ("lake_type", "source_type", "lake_value", "printed"),
    [
        ("integer", "int4", -7, "-7"),
        ("decimal(10,2)", "numeric", "-0.10", "-0.10"),
        ("boolean", "bool", True, "t"),
        ("boolean", "bool", False, "f"),
        ("date", "date", "0001-01-01", "0001-01-01"),
        ("timestamp(6)", "timestamp", "2026-11-21 04:05:06.000000", "2026-11-21 04:05:06"),
        ("timestamp(6)", "timestamp", "2026-11-21 04:05:06.120000", "2026-11-21 04:05:06.12"),
        ("timestamp(6) with time zone", "timestamptz", "2026-11-21 04:05:06.100000 UTC", "2026-11-21 04:05:06.1+00"),
        ("time(6)", "time", "04:05:00.500000", "04:05:00.5"),
        ("bigint", "time", 86_400_000_000, "24:00:00"),
        ("time(6)", "time", "00:00:00.000000", "24:00:00"),
        ("bigint", "time", 14_700_000_001, "04:05:00.000001"),
        ("varbinary", "bytea", "AP8=", "\\x00ff"),
        ("varchar", "bpchar", "ab  ", "ab  "),
        ("varchar", "_text", '{"a b",NULL}', '{"a b",NULL}'),
        ("double", "float8", 1e-7, "1e-07"),
        ("double", "float8", "Infinity", "Infinity"),
        ("real", "float4", 1.1, "1.1"),
        ("double", "float8", "NaN", "NaN"),
        ("double", "float8", -0.0, "-0"),
    ],
)
def test_the_two_sides_spell_a_value_alike(lake_type: str, source_type: str, lake_value: object, printed: str) -> None:
    assert lake_form(lake_type, source_type)(lake_value) == source_form(lake_type)(printed)


@pytest.mark.parametrize(
    ("lake_type", "printed"),
    [
        ("integer", ["-10", "-9", "2", "10"]),
        ("decimal(10,2)", ["-1.50", "0.90", "10.00"]),
        ("timestamp(6)", ["2026-01-01 00:00:00", "2026-01-01 00:00:00.5", "2026-01-01 00:00:01"]),
        ("varchar", ["B", "a", "aa", "é", "\U0001f600"]),
    ],
)
def test_python_orders_texts_as_both_servers_do(lake_type: str, printed: list[str]) -> None:
    assert sorted(printed, key=order_key(lake_type)) == printed


def test_equal_streams_are_equal() -> None:
    rows = [("1", "a"), ("2", None), ("10", "c")]
    result = _compare(rows, list(rows))
    assert result.equal and (result.source_rows, result.lake_rows) == (3, 3)


def test_missing_extra_and_differing_rows_are_told_apart() -> None:
    result = _compare([("1", "a"), ("2", "b"), ("4", "d")], [("2", "x"), ("3", "c"), ("4", "d")])
    assert (result.missing, result.extra, result.differing) == (1, 1, 1)
    assert not result.equal and result.differing_columns == {"name": 1}
    assert [(e.kind, e.key["id"]) for e in result.examples] == [("missing", "1"), ("differs", "2"), ("extra", "3")]
    assert result.examples[1].columns == {"name": ("b", "x")}


def test_null_is_not_the_empty_text() -> None:
    assert _compare([("1", None)], [("1", "")]).differing == 1


def test_a_row_that_is_in_the_lake_twice_is_found() -> None:
    result = _compare([("1", "a"), ("2", "b")], [("1", "a"), ("1", "a"), ("2", "b")])
    assert (result.extra, result.missing, result.differing) == (1, 0, 0)


def test_null_keys_sort_last() -> None:
    rows: list[Row] = [("1", "a"), (None, "b")]
    assert _compare(rows, list(rows)).equal


def test_rows_out_of_order_are_refused_rather_than_compared() -> None:
    with pytest.raises(LakehouseError, match="order"):
        _compare([("2", "a"), ("1", "b")], [("1", "b"), ("2", "a")])


def test_the_merge_agrees_with_sets_on_random_tables() -> None:
    rng = Random(5)
    for _ in range(300):
        source, lake = ({rng.randrange(30): rng.choice("ab") for _ in range(12)} for _ in range(2))
        result = _compare(*([(str(key), value) for key, value in sorted(side.items())] for side in (source, lake)))
        assert result.missing == len(source.keys() - lake.keys())
        assert result.extra == len(lake.keys() - source.keys())
        assert result.differing == sum(source[key] != lake[key] for key in source.keys() & lake.keys())


def test_examples_stop_at_twenty_and_counts_do_not() -> None:
    result = _compare([(str(number), "a") for number in range(100)], [])
    assert result.missing == 100 and len(result.examples) == MAX_EXAMPLES


def test_values_replaced_by_declared_policy_are_counted_and_are_no_difference() -> None:
    nulls = stand_ins("null", "date")
    layout = Layout(("id", "day"), (0,), (int,), lambda index, *both: index == 1 and is_stand_in(nulls, *both))
    source = [("1", "infinity"), ("2", "2026-01-01"), ("3", "infinity")]
    result = _compare(source, [("1", None), ("2", "2026-01-02"), ("3", "2020-01-01")], layout)
    assert (result.unrepresentable, result.differing) == (1, 2)


@pytest.mark.parametrize(
    ("state", "reason", "point", "aside"),
    [
        ("streaming", None, 100, None),
        ("streaming", None, 101, "loaded or resynced while this began: compare it again"),
        ("stale", "a row of no form", 90, "stale: a row of no form"),
        ("loading", None, 90, "loading"),
    ],
)
def test_a_table_that_a_follower_repaired_above_the_point_is_not_compared_at_it(
    monkeypatch: pytest.MonkeyPatch, state: TableState, reason: str | None, point: int, aside: str | None
) -> None:
    """Its rows of the repair are above the point, so it was called different."""
    position = TablePosition("orders", 1, Lsn(200), state, Lsn(point), reason)
    monkeypatch.setattr(raw.store, "connect_catalog", lambda _: nullcontext())
    monkeypatch.setattr(raw.store, "read_stream", lambda *_: SimpleNamespace(epoch=1))
    monkeypatch.setattr(raw.store, "read_positions", lambda *_: {"orders": replace(position, versions=(cast(Any, 0),))})
    monkeypatch.setattr(raw, "_wanted", lambda *_: pytest.fail("compared"))
    table: Any = SimpleNamespace(source="shop", name="orders")
    session: Any = SimpleNamespace(settings=None, name="shop")
    found = raw._reconcile_tables(session, [table], Point(Lsn(100), "", datetime.now(UTC)), None, False, False)
    if aside is None:
        with pytest.raises(pytest.fail.Exception, match="compared"):
            list(found)
    else:
        assert [(one.aside, one.verdict) for one in found] == [(aside, "not compared")]


@pytest.mark.parametrize(
    ("looks", "aside", "repaired"),
    [([(0, 0, 0)], False, {}), ([(0, 0, 1), (0, 0, 0)], True, {}), ([(1000, 2, 1), (1000, 2, 0)], False, {"r": 1000})],
    ids=["no key is doubled", "nothing else differs", "other rows differ"],
)
def test_what_differs_beside_a_doubled_key_is_told_and_repaired(
    looks: list[tuple[int, int, int]], aside: bool, repaired: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One doubled key hid a thousand rows that the lake lacked, and `--repair` did nothing."""
    [(missing, extra, _), *again] = looks
    doubles = len(again)

    def look_closer(_: object, __: object, found: Comparison, result: TableComparison) -> None:
        result.missing, result.extra, result.differing = looks[found.leaves_doubled]

    def publish(*given: object) -> object:
        assert cast(Comparison, given[-1]).leaves_doubled, "a doubled key is not repaired"
        return SimpleNamespace(operations=repaired)

    monkeypatch.setattr(raw, "_look_closer", look_closer)
    monkeypatch.setattr(raw, "_publish_repair", publish)
    nothing: Any = None
    rows = {"a": (5000 + missing - extra + doubles, 1)}
    found = Comparison((), (), rows, {"a": (5000, 2)}, nothing, nothing, nothing, (0, 0))
    table, point, facts = (SimpleNamespace(**given) for given in (
        {"source": "shop", "name": "things", "key": ("id",)}, {"check": lambda: None}, {"columns": ()},
    ))  # fmt: skip
    result = raw._reconcile_table(
        nothing, cast(Any, table), nothing, cast(Any, facts), cast(Any, point), found, True, 0.0
    )
    assert (result.missing, result.extra, result.repaired) == (missing, extra, repaired)
    told = "1 rows have the declared key (id) of another one"
    assert (told in str(result.aside), told in str(result.doubled)) == (aside, bool(repaired))
    assert result.equal == (not again)


def test_the_doubled_keys_are_those_of_several_rows_of_the_source_that_the_lake_has() -> None:
    """Of those that it lacks, one of the rows is better than none."""
    rows = (
        "('a', 'a', 'x', 'x'), ('b', 'b', 'x', 'y'), ('b', 'b', 'y', 'y'), ('c', null, 'x', null),"
        " ('c', null, 'y', null), (null, 'd', null, 'x'), (null, 'e', null, 'x')"
    )
    found = duckdb.sql(
        f"from (values {rows}) rows(key, lake_key, line, lake_line) select coalesce(key, lake_key), {DOUBLED}"
    )
    assert {key for key, is_doubled in found.fetchall() if is_doubled} == {"b"}
