"""A move to topics is refused where the text of a key or of a masked value would be another one."""

from dataclasses import replace
from typing import Any

import pytest
from debezium_recorded import settings
from debezium_recorded import table as topic

from ingestion.run.move import _check_forms
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.sources.debezium.shape import facts_of
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

LIKE_TEXT: dict[str, Any] = {"numeric": (1700, -1), "timetz": (1266, -1), "interval": (1186, -1), "_int4": (1007, -1),
                             "hstore": (16999, -1), "text": (25, -1), "citext": (16998, -1), "bpchar": (1042, 9),
                             "uuid": (2950, -1), "int4": (23, -1), "timestamptz": (1184, -1), "bytea": (17, -1),
                             "varchar": (1043, -1), "ltree": (16997, -1)}  # fmt: skip


def by_slot(kind: str) -> TableFacts:
    oid, typmod = LIKE_TEXT[kind]
    columns = (
        ColumnFacts("id", 1, "integer", 23, "int4", "b", -1, 23, -1, "", lake="id"),
        ColumnFacts("v", 2, kind, oid, kind, "b", typmod, oid, typmod, "", lake="v"),
    )
    return TableFacts(oid=1, filenode=1, relkind="r", replica_identity="d", key=("id",), columns=columns)


def by_topic(declared: str, *, is_key: bool = False, mask: str = "") -> tuple[RawTable, TableFacts]:
    table = topic("items", {"id": "integer", "v": declared}, ("id", "v") if is_key else ("id",))
    facts = facts_of(table, 1, settings())
    columns = tuple(replace(c, mask=mask if c.name == "v" else "") for c in facts.columns)
    return table, replace(facts, columns=columns)


REFUSED = [
    ("numeric", "numeric", "without trailing zeros"), ("timetz", "timetz", "without its offset"),
    ("interval", "interval", "by ISO 8601"), ("_int4", "text", "as JSON"), ("hstore", "text", "as JSON"),
    ("citext", "text", "declare the type"), ("text", "citext", "declare the type"),
    ("bpchar", "text", "declare the type"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "declared", "says"), REFUSED)
@pytest.mark.parametrize("use", [{"is_key": True}, {"mask": "sha256"}])
def test_a_key_or_a_digest_whose_text_topics_have_otherwise_is_refused(
    kind: str, declared: str, says: str, use: dict[str, Any]
) -> None:
    """A row that did not change since the move and one that did had two keys, and a value two digests."""
    table, facts = by_topic(declared, **use)
    with pytest.raises(LakehouseError, match=f"table 'items': column v .*{says}.*; nothing has changed"):
        _check_forms(table, by_slot(kind), facts)


def test_a_key_that_rows_were_told_apart_by_before_is_refused_too() -> None:
    table, facts = by_topic("numeric")
    with pytest.raises(LakehouseError, match="column v"):
        _check_forms(table, replace(by_slot("numeric"), keyed_by=(1, 2)), facts)


def test_a_masked_value_that_is_declared_as_another_type_is_refused() -> None:
    """The lake has text in any case: by that nobody sees the type."""
    table, facts = by_topic("text", mask="sha256")
    with pytest.raises(LakehouseError, match=r"v \(timestamptz\) is declared as text: declare the type"):
        _check_forms(table, by_slot("timestamptz"), facts)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("citext", "app.citext"), ("ltree", "ltree"), ("ltree", "text"), ("uuid", "uuid"), ("int4", "integer"),
        ("timestamptz", "timestamptz"), ("bytea", "bytea"), ("varchar", "text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("use", [{"is_key": True}, {"mask": "sha256"}, {}])
def test_what_is_the_same_by_topics_is_moved(kind: str, declared: str, use: dict[str, Any]) -> None:
    table, facts = by_topic(declared, **use)
    _check_forms(table, by_slot(kind), facts)


@pytest.mark.parametrize("kind", [kind for kind, _, _ in REFUSED])
def test_a_column_that_is_in_no_key_and_not_masked_is_moved(kind: str) -> None:
    table, facts = by_topic("text")
    _check_forms(table, by_slot(kind), facts)
