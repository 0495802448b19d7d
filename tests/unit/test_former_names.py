"""What a row says of columns by name: only of those that land, and found again under names of today."""

from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType

from ingestion.repair.spelling import SpelledColumn
from ingestion.rows import _lake_names
from tests.unit.test_renames import A, B, facts


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


def test_an_old_key_is_read_by_every_name_of_its_column() -> None:
    key = SpelledColumn(facts(1).columns[0], IntegerType(), None, frozenset({"id", "number", "no"}))
    assert all(f", '{name}')" in key.in_old_key for name in ("id", "number", "no"))
    assert key.in_old_key.index("'id'") < key.in_old_key.index("'no'")
