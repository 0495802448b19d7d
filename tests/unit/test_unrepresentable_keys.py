"""Keys that the lake cannot hold: the old key of a key change leads to what landed, and one that may be two is told."""

import re

import duckdb
import pyarrow as pa
import pytest

from ingestion.pipeline.repair.small_side import spelled
from ingestion.pipeline.repair.spelling import SpelledColumn, old_keys
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.former_names import Called
from ingestion.schema.types import Policy, convert, target_type
from ingestion.sources.postgres.setup.columns import one_key_of_two
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy

NUMERIC = ((6 << 16) | 2) + 4
POLICIES = ["clamp", "null"]
VALUES = [
    (1082, "date", -1, "infinity"), (1082, "date", -1, "-infinity"), (1082, "date", -1, "0044-03-15 BC"),
    (1082, "date", -1, "10000-01-01"), (1082, "date", -1, "10000-01-01 BC"), (1082, "date", -1, "2024-02-29"),
    (1114, "timestamp", -1, "infinity"), (1114, "timestamp", -1, "-infinity"),
    (1114, "timestamp", -1, "4713-01-01 00:00:00 BC"), (1114, "timestamp", -1, "294276-12-31 23:59:59.999999"),
    (1114, "timestamp", -1, "2024-02-29 01:02:03.5"), (1184, "timestamptz", -1, "infinity"),
    (1184, "timestamptz", -1, "-infinity"), (1184, "timestamptz", -1, "0001-12-31 23:00:00+00 BC"),
    (1184, "timestamptz", -1, "10000-01-01 00:00:00+00"), (1184, "timestamptz", -1, "2024-02-29 01:02:03+00"),
    (1700, "numeric", NUMERIC, "NaN"), (1700, "numeric", NUMERIC, "12.50"), (25, "text", -1, "infinity"),
    (1700, "numeric", -1, "NaN"),
]  # fmt: skip


def key_column(oid: int, kind: str, typmod: int = -1, policy: Policy = "error") -> SpelledColumn:
    facts = ColumnFacts("k", 1, kind, oid, kind, "b", typmod, oid, typmod, "", lake="k")
    return SpelledColumn(facts, target_type(source_type(facts)).iceberg, None, (Called("k"),), policy)


def in_duckdb(sql: str) -> str:
    """Spark's words in DuckDB's."""
    sql = sql.replace("\\\\", "\\")
    sql = sql.replace("coalesce(concat(length(", "coalesce((length(").replace(", ':', ", " || ':' || ")
    sql = re.sub(r"\[(\d)\]", lambda index: f"[{int(index[1]) + 1}]", sql.replace("timestamp_ntz", "timestamp"))
    sql = re.sub(
        r"map_contains_key\(from_json\((\w+), 'map<string,string>'\), '(\w+)'\)", r"json_exists(\1, '$.\2')", sql
    )
    sql = re.sub(r"try_element_at\(from_json\((\w+), 'map<string,string>'\), '(\w+)'\)", r"(\1->>'$.\2')", sql)
    return re.sub(r"WHEN ((?:(?!WHEN |THEN ).)+) RLIKE ('[^']*') THEN", r"WHEN regexp_matches(\1, \2) THEN", sql)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("oid", "kind", "typmod", "text"), VALUES)
def test_what_was_printed_is_spelled_as_what_landed(
    oid: int, kind: str, typmod: int, text: str, policy: Policy
) -> None:
    """The mirror looked for `infinity`, where the row had landed as 9999-12-31 or as null, and wrote null."""
    column = key_column(oid, kind, typmod)
    (landed,) = convert(pa.array([text]), source_type(column.source), policy).array.to_pylist()
    sql = in_duckdb(f"SELECT {column.printed_text('k', policy)} FROM (SELECT ? AS k)")
    assert duckdb.execute(sql, [text]).fetchall() == [(None if landed is None else spelled(landed, column.lake_type),)]


@pytest.mark.parametrize(
    ("oid", "kind", "text", "found"),
    [
        (16, "bool", "true", "t"), (16, "bool", "f", "f"), (1083, "time", "36000000000", "36000000000"),
        (1083, "time", "10:00:00", "36000000000"), (1083, "time", "24:00:00", "86400000000"),
        (1114, "timestamp", "2024-01-01 00:00:00.500000", "2024-01-01 00:00:00.5"),
        (1114, "timestamp", "2024-01-01T00:00:00", "2024-01-01 00:00:00"),
        (1184, "timestamptz", "2024-01-01T00:00:00.500000Z", "2024-01-01 00:00:00.5+00"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["error", *POLICIES])
def test_what_an_earlier_version_landed_of_a_topic_is_spelled_as_what_landed(
    oid: int, kind: str, text: str, found: str, policy: Policy
) -> None:
    """A value that an update did not carry was not found under such a key: a mirror refused the table."""
    sql = in_duckdb(f"SELECT {key_column(oid, kind).printed_text('k', policy)} FROM (SELECT ? AS k)")
    assert duckdb.execute(sql, [text]).fetchall() == [(found,)]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("clamp", ["10:9999-12-31", "n"]),
        ("null", ["n", "10:9999-12-31"]),
        ("error", ["10:9999-12-31", "n"]),
    ],
)
def test_a_row_is_looked_for_by_the_policy_of_now_and_then_by_others(policy: Policy, found: list[str]) -> None:
    """A row keeps what a former policy made of a value."""
    column = key_column(1082, "date", policy=policy)
    assert looked_for(column, '{"k":"infinity"}') == found
    assert looked_for(column, None) is None


def test_a_key_that_the_lake_always_holds_is_looked_for_once() -> None:
    assert looked_for(key_column(25, "text", policy="clamp"), '{"k":"infinity"}') == ["8:infinity"]


def looked_for(column: SpelledColumn, old_key: str | None) -> list[str] | None:
    sql = in_duckdb(old_keys([column])).replace("array(", "list_value(")
    ((keys,),) = duckdb.execute(f"SELECT {sql} FROM (SELECT ?::varchar AS _old_key)", [old_key]).fetchall()
    return keys


@pytest.mark.parametrize(
    ("oid", "kind", "typmod", "policy", "told"),
    [
        (1082, "date", -1, "clamp", True), (1114, "timestamp", -1, "null", True),
        (1700, "numeric", NUMERIC, "null", True),
        (1082, "date", -1, "error", False), (1700, "numeric", -1, "clamp", False), (23, "int4", -1, "clamp", False),
    ],
)  # fmt: skip
def test_a_key_column_in_which_two_values_may_be_one_is_told(
    oid: int, kind: str, typmod: int, policy: Policy, told: bool
) -> None:
    """Rows of `infinity` and of 9999-12-31 are one row in the lake under `clamp`."""
    column = key_column(oid, kind, typmod).source
    table = RawTable(
        source="shop", name="prices", description="", columns=(), load=LoadPolicy(), maintenance=None, owners=(),
        raw=RawPolicy(relation="public.prices", key=("k",), on_unrepresentable=policy),
    )  # fmt: skip
    facts = TableFacts(oid=1, filenode=1, relkind="r", replica_identity="d", key=("k",), columns=(column,))
    found = list(one_key_of_two(table, facts))
    assert [(f.weight, f"key column k is {kind}" in f.says) for f in found] == ([("warning", True)] if told else [])
    unkeyed = table.model_copy(update={"raw": table.raw.model_copy(update={"key": ()})})
    assert not list(one_key_of_two(unkeyed, facts))
