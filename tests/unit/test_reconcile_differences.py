"""What is made of rows that belong together: counts, columns, examples that people can read."""

import struct

import pyarrow as pa

from ingestion.verify.compare import MAX_EXAMPLES, TableComparison
from ingestion.verify.differences import ComparedColumn, examine, readable

COLUMNS = (
    ComparedColumn("id", True, None, False),
    ComparedColumn("at", False, None, True),
    ComparedColumn("x", False, "d", False),
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


def test_a_row_that_lacks_a_value_which_an_update_left_out_differs_even_if_both_read_null() -> None:
    assert found((("1", None, None), ("1", None, None)), lacking=True).differing == 1


def test_examples_are_few() -> None:
    result = found(*(((str(i), "a", None), ("x", "b", None)) for i in range(100)))
    assert (result.differing, len(result.examples)) == (100, MAX_EXAMPLES)


def test_floats_are_shown_as_numbers() -> None:
    assert readable(COLUMNS[2], bits(0.1)) == "0.1" and readable(COLUMNS[2], "NaN") == "NaN"
    assert readable(COLUMNS[1], "12") == "12" and readable(COLUMNS[2], None) is None
