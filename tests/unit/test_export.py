"""What an export does, by what both catalogs name."""

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_serve.export import plan

WAREHOUSE = "s3://lake/"
A, B, C = ("m", "a"), ("m", "b"), ("m", "c")


def test_tables_are_registered_refreshed_and_dropped_and_those_of_others_stay() -> None:
    here = {A: "s3://lake/m/a/2", B: "s3://lake/m/b/1", ("m", "same"): "s3://lake/s/1"}
    there = {A: "s3://lake/m/a/1", C: "s3://lake/m/c/1", ("m", "same"): "s3://lake/s/1", ("t", "x"): "s3://lakes/x"}
    found = plan(here, there, WAREHOUSE)
    assert (found.register, found.refresh, found.drop) == ({B: "s3://lake/m/b/1"}, {A: "s3://lake/m/a/2"}, (C,))
    assert str(found) == "1 registered, 1 refreshed, 1 dropped"
    assert not plan(here, here, WAREHOUSE)


def test_a_name_that_another_table_has_is_refused() -> None:
    with pytest.raises(LakehouseError, match=r"m\.a is another table in the second catalog"):
        plan({A: "s3://lake/m/a/2"}, {A: "s3://lake2/m/a/2"}, WAREHOUSE)
