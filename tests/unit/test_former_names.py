"""What a row says of columns by name: only of those that land, and found again under names of today."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType

from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.schema.former_names import FORMERLY, names_of, old_key_text, renamed
from ingestion.sink.rows import _lake_keys, _lake_names
from tests.unit.dbt_macros import Refused, macro
from tests.unit.test_renames import A, B, facts
from tests.unit.test_unrepresentable_keys import in_duckdb


@pytest.mark.parametrize(
    ("named", "landed"),
    [
        ([["a"], None, ["a", "b"]], [["a"], None, ["a", "document"]]),
        ([["document"], ["document", "a"], None], [None, ["a"], None]),
        ([["a"], None], [["a"], None]),
        ([None, None], [None, None]),
    ],
)
def test_a_row_lacks_only_columns_that_land(named: list[list[str] | None], landed: list[list[str] | None]) -> None:
    """`document` is left out of the lake, and `b` goes by its name there."""
    lake = {"b": "document"}
    columns = [replace(column, lake=lake.get(column.name, column.name)) for column in facts(1, A, B).columns]
    for unchanged in (pa.array(named, pa.list_(pa.string())), pa.chunked_array([named], pa.list_(pa.string()))):
        assert _lake_names(unchanged, columns).to_pylist() == landed


NOON = datetime(2026, 11, 22, 12, 0, 0, 7, UTC)
HOUR = timedelta(hours=1)


def column_called(*names: str) -> SpelledColumn:
    """`a`, with these names before, the latest first, an hour each before noon."""
    properties: dict[str, str] = {}
    chain = [*reversed(names), "a"]
    for i, (name, to) in enumerate(pairwise(chain)):
        properties |= renamed(name, to, NOON - HOUR * (len(names) - 1 - i), properties)
    return SpelledColumn(facts(1, A).columns[1], IntegerType(), None, names_of("a", properties))


@pytest.mark.parametrize(
    ("value", "unchanged", "after_noon", "left_out"),
    [
        (None, ["a"], 1, True),
        (None, ["a"], 0, True),
        (None, ["b"], -0.5, True),
        (None, ["c"], -1.5, True),
        (1, ["a"], 1, False),
        (None, ["b"], 1, False),  # another column's name by now
        (None, ["a"], -0.5, False),  # another column's name then
        (None, ["b"], -1.5, False),
        (None, ["z"], 1, False),
        (None, None, 1, False),
    ],
)
def test_a_row_lacks_a_column_by_the_name_that_it_had_then(
    value: int | None, unchanged: list[str] | None, after_noon: float, left_out: bool
) -> None:
    sql = column_called("b", "c").left_out("a").replace("array_contains", "list_contains")
    sql = sql.replace("timestamp_micros(", "make_timestamptz(")
    row: list[Any] = [value, unchanged, NOON + HOUR * after_noon]
    query = f"select {sql} from (select ?::int as a, ?::varchar[] as _unchanged, ?::timestamptz as _ingested_at)"
    assert duckdb.execute(query, row).fetchall() == [(left_out,)]


def test_names_without_a_moment_are_read() -> None:
    """An earlier version wrote none."""
    names = names_of("a", {FORMERLY + "a": "b\nc"})
    assert [(n.name, n.since, n.until) for n in names] == [("a", None, None), ("b", None, None), ("c", None, None)]
    later = names_of("x", renamed("a", "x", NOON, {FORMERLY + "a": "b"}))
    assert [(n.name, n.since, n.until) for n in later] == [("x", NOON, None), ("a", None, NOON), ("b", None, None)]


ODD = [
    "x\t2026-01-01' or true or '1'='1",
    "line\nbreak",
    "\u2028",
    "[{",
    '"quoted"',
    "a\t",
    "\t2026-01-01 00:00:00.000000 UTC",
]


@pytest.mark.parametrize("odd", ODD)
def test_a_name_of_any_characters_stays_a_name(odd: str) -> None:
    """Python and dbt read the same of the property; what was a name never becomes a moment in SQL."""
    properties = renamed("b", "a", NOON, renamed(odd, "b", NOON - HOUR, {}))
    assert [called.name for called in names_of("a", properties)] == ["a", "b", odd]
    read = macro("former_names")("a", properties[FORMERLY + "a"])
    assert [former["name"] for former in read] == ["b", odd]
    assert [former["until"] for former in read] == ["2026-11-22 12:00:00.000007 UTC", "2026-11-22 11:00:00.000007 UTC"]


def test_lines_of_an_earlier_version_are_read_and_what_is_no_moment_is_refused() -> None:
    read = macro("former_names")
    assert read("a", "b\t2026-01-01 00:00:00.000000 UTC\nc") == [
        {"name": "b", "until": "2026-01-01 00:00:00.000000 UTC"},
        {"name": "c", "until": ""},
    ]
    with pytest.raises(Refused, match="column a: its former names are damaged"):
        read("a", "x\t2026-01-01' or true or '1'='1\t2026-01-01 00:00:00.000000 UTC")


@pytest.mark.parametrize(
    ("old_key", "after_noon", "said"),
    [
        ({"a": "1", "b": "2"}, 1, "1"),
        ({"a": "1", "b": "2"}, -0.5, "2"),  # `a` was another column's name then
        ({"a": "1", "c": "3"}, -1.5, "3"),
        ({"a": None, "b": "2"}, 1, None),
        ({"c": "3"}, 1, "3"),
        ({"source": "4"}, 1, "4"),  # of an earlier version, which did not land the lake's name
    ],
)
def test_an_old_key_is_read_by_the_name_that_its_column_had_then(
    old_key: dict[str, str | None], after_noon: float, said: str | None
) -> None:
    """Whichever of its names was there first was taken, which may be another column's by now."""
    column = column_called("b", "c")
    column = replace(column, source=replace(column.source, name="source"))
    at, names = NOON + HOUR * after_noon, column.names
    assert old_key_text(old_key, "source", names, at) == said
    sql = in_duckdb(column.in_old_key).replace("timestamp_micros(", "make_timestamptz(")
    query = f"select {sql} from (select ?::varchar as _old_key, ?::timestamptz as _ingested_at)"
    assert duckdb.execute(query, [json.dumps(old_key), at]).fetchall() == [(said,)]
    with pytest.raises(KeyError):
        old_key_text({"z": "1"}, "source", names, at)


def test_an_old_key_lands_with_the_names_of_the_lake() -> None:
    """The source may give them to other columns later."""
    columns = [
        replace(column, lake={"b": "document"}.get(column.name, column.name)) for column in facts(1, A, B).columns
    ]
    old_keys = pa.array(['{"a":"1","b":"é\\"","gone":"x"}', None, '{"b":null}'])
    for said in (old_keys, pa.chunked_array([old_keys])):
        assert _lake_keys(said, columns).to_pylist() == ['{"a":"1","document":"é\\""}', None, '{"document":null}']
        assert _lake_keys(said, facts(1, A, B).columns) is said
