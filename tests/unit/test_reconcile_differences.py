"""What is made of rows that belong together: counts, columns, examples that people can read."""

import struct

import pyarrow as pa
import pytest
from pyiceberg.types import DateType, DecimalType, IcebergType, StringType, TimestampType, TimestamptzType

from ingestion.schema.compared import StandIns, stand_ins
from ingestion.schema.types import Policy
from ingestion.verify.compare import MAX_EXAMPLES, TableComparison
from ingestion.verify.differences import ComparedColumn, examine, is_stand_in, readable

COLUMNS = (
    ComparedColumn("id", True, None, ()),
    ComparedColumn("at", False, None, stand_ins("null", "date")),
    ComparedColumn("x", False, "d", ()),
)
Side = tuple[str | None, str | None, str | None] | None


def found(*pairs: tuple[Side, Side], lacking: bool = False) -> TableComparison:
    columns: dict[str, list[str | None]] = {
        "line": [None if ours is None else "a" for ours, _ in pairs],
        "lake_line": [None if theirs is None else "lacking" if lacking else "b" for _, theirs in pairs],
    }
    for i in range(len(COLUMNS)):
        columns[f"s{i}"] = [None if ours is None else ours[i] for ours, _ in pairs]
        columns[f"l{i}"] = [None if theirs is None else theirs[i] for _, theirs in pairs]
    batch = pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in columns.items()})
    result = TableComparison("shop", "things", tuple(column.name for column in COLUMNS))
    examine(result, COLUMNS, [batch])
    return result


def bits(value: float) -> str:
    return str(struct.unpack("q", struct.pack("d", value))[0])


def test_null_and_empty_differ_and_both_sides_alone_are_told_apart() -> None:
    result = found((("1", "", None), ("1", None, None)), (("2", "a", None), None), (None, ("3", "a", None)))
    assert (result.missing, result.extra, result.differing) == (1, 1, 1)
    assert {(e.kind, e.key["id"]) for e in result.examples} == {("missing", "2"), ("extra", "3"), ("differs", "1")}
    assert result.differing_columns == {"at": 1}


def test_a_value_that_the_policy_replaced_is_counted_apart_and_the_rest_of_its_row_is_not() -> None:
    result = found(
        (("1", "infinity", bits(-0.0)), ("1", None, bits(0.0))), (("2", "0044-03-15 BC", None), ("2", None, None))
    )
    assert (result.unrepresentable, result.differing, result.differing_columns) == (2, 1, {"x": 1})
    assert result.examples[0].columns == {"x": ("-0.0", "0.0")}


def test_an_update_to_a_value_that_the_lake_cannot_hold_differs_where_the_lake_has_not_got_it() -> None:
    """Whatever the lake had was taken for what the policy makes of such a value, and `--repair` left it."""
    result = found((("1", "infinity", None), ("1", "2020-01-01", None)), (("2", "infinity", None), ("2", None, None)))
    assert (result.unrepresentable, result.differing, result.differing_columns) == (1, 1, {"at": 1})
    assert result.examples[0].columns == {"at": ("infinity", "2020-01-01")}


DAY, ZONED, AMOUNT = DateType(), TimestamptzType(), DecimalType(6, 2)


@pytest.mark.parametrize(
    ("policy", "type_", "of_trino", "ours", "instead"),
    [
        ("null", DAY, "date", "infinity", None),
        ("null", AMOUNT, "decimal(6,2)", "NaN", None),
        ("clamp", AMOUNT, "decimal(6,2)", "NaN", None),
        ("clamp", DAY, "date", "infinity", "9999-12-31"),
        ("clamp", DAY, "date", "10000-01-01", "9999-12-31"),
        ("clamp", DAY, "date", "-infinity", "0001-01-01"),
        ("clamp", DAY, "date", "10000-01-01 BC", "0001-01-01"),
        ("clamp", TimestampType(), "timestamp(6)", "infinity", "9999-12-31 23:59:59.999999"),
        ("clamp", TimestampType(), "timestamp(6)", "0044-03-15 00:00:00 BC", "0001-01-01 00:00:00"),
        ("clamp", ZONED, "timestamp(6) with time zone", "10000-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
        ("clamp", ZONED, "timestamp(6) with time zone", "-infinity", "0001-01-01 00:00:00+00"),
    ],
)
def test_only_what_the_policy_makes_of_a_value_is_taken_for_it(
    policy: Policy, type_: IcebergType, of_trino: str, ours: str, instead: str | None
) -> None:
    for known in (stand_ins(policy, str(type_)), stand_ins(policy, of_trino)):
        for theirs in (None, "0001-01-01", "9999-12-31", "2020-01-01", instead):
            assert is_stand_in(known, ours, theirs) == (theirs == instead)
            assert _examined(known, ours, theirs) == (theirs == instead)
        assert not is_stand_in(known, "2020-01-01", instead) and not _examined(known, "2020-01-01", instead)
    assert stand_ins("error", of_trino) == () == stand_ins(policy, str(StringType()))


def _examined(known: StandIns, ours: str, theirs: str | None) -> bool:
    columns = {"line": ["a"], "lake_line": ["b"], "s0": [ours], "l0": [theirs]}
    batch = pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in columns.items()})
    result = TableComparison("shop", "things", ("at",))
    examine(result, [ComparedColumn("at", False, None, known)], [batch])
    return result.equal and result.unrepresentable == 1


def test_a_row_that_lacks_a_value_which_an_update_left_out_differs_even_if_both_read_null() -> None:
    assert found((("1", None, None), ("1", None, None)), lacking=True).differing == 1


def test_examples_are_few() -> None:
    result = found(*(((str(i), "a", None), ("x", "b", None)) for i in range(100)))
    assert (result.differing, len(result.examples)) == (100, MAX_EXAMPLES)


def test_floats_are_shown_as_numbers() -> None:
    assert readable(COLUMNS[2], bits(0.1)) == "0.1" and readable(COLUMNS[2], "NaN") == "NaN"
    assert readable(COLUMNS[1], "12") == "12" and readable(COLUMNS[2], None) is None
