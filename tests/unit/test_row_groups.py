"""Row groups have a million rows or so, whatever a row takes."""

from lakehouse.catalog.row_groups import DEFAULT_BYTES, LEAST_BYTES, OURS, PROPERTY, fitting

NARROW = (26_000_000, 10_000_000)
WIDE = (2_000_000_000, 10_000_000)


def of(size: int) -> dict[str, str]:
    """The properties of a table that has got row groups of this size from us."""
    return {PROPERTY: str(size), OURS: str(size)}


def test_those_of_narrow_rows_are_small() -> None:
    assert fitting({}, *NARROW) == of(2_600_000)
    assert fitting({}, 1_000, 10_000_000) == of(LEAST_BYTES)
    assert fitting({}, *WIDE) == fitting({}, 0, 10_000_000) == {}, "Iceberg's own size"
    assert fitting({}, 1_000, 1_000_000) == {}, "one row group at most"


def test_a_size_that_comes_near_is_left_as_it_is() -> None:
    assert fitting(of(2_600_000), 40_000_000, 10_000_000) == {}
    assert fitting(of(2_600_000), *WIDE) == of(DEFAULT_BYTES), "columns have come"
    assert fitting(of(2_600_000), 900_000_000, 900_000) == of(DEFAULT_BYTES), "and rows have gone"


def test_the_size_that_somebody_else_has_set_stays() -> None:
    assert fitting({PROPERTY: str(4 * DEFAULT_BYTES)}, *NARROW) == {}
    assert fitting(of(2_600_000) | {PROPERTY: "5000"}, *WIDE) == {}
