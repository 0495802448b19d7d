"""Which Postgres type becomes which Iceberg type, and that the page about it is current."""

from pathlib import Path

import pytest

from ingestion.schema.types import SourceType, target_type
from ingestion.schema.types.docs import types_markdown
from ingestion.schema.types.table import NUMERIC_OID, RULES, numeric_digits

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


def numeric(precision: int, scale: int) -> SourceType:
    return SourceType(NUMERIC_OID, "numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == types_markdown(), "run: python -m ingestion.schema.types.docs > docs/types.md"


def test_every_rule_has_its_own_oid_and_name() -> None:
    assert len({rule.oid for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (12, 2, "decimal(12, 2)"),
        (38, 0, "decimal(38, 0)"),
        (38, 38, "decimal(38, 38)"),
        (39, 0, "string"),
        (3, -2, "decimal(5, 0)"),  # 99900 has five digits
        (37, -2, "string"),
        (3, 5, "decimal(5, 5)"),  # 0.00999
        (1000, 1000, "string"),
        (1, -1000, "string"),
    ],
)
def test_numeric_by_precision_and_scale(precision: int, scale: int, expected: str) -> None:
    source = numeric(precision, scale)
    assert numeric_digits(source.typmod) == (precision, scale)
    assert str(target_type(source).iceberg) == expected


def test_numeric_without_precision_is_text() -> None:
    assert str(target_type(SourceType(NUMERIC_OID, "numeric")).iceberg) == "string"


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (SourceType(1007, "_int4"), "array"),
        (SourceType(70001, "mood", kind="e"), "enum"),
        (SourceType(70002, "pair", kind="c"), "composite"),
        (SourceType(3904, "int4range", kind="r"), "range"),
        (SourceType(4451, "int4multirange", kind="m"), "multirange"),
        (SourceType(70003, "hstore"), "without a rule"),
    ],
)
def test_types_without_a_rule_are_text_and_say_why(source: SourceType, word: str) -> None:
    target = target_type(source)
    assert str(target.iceberg) == "string"
    assert word in target.note


def test_a_users_type_named_like_a_builtin_is_not_taken_for_it() -> None:
    assert str(target_type(SourceType(70004, "int4", kind="e")).iceberg) == "string"


def test_a_domain_must_be_resolved_first() -> None:
    with pytest.raises(ValueError, match="domain price: give its base type"):
        target_type(SourceType(70005, "price", kind="d"))
