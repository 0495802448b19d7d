"""The check `columns_as_declared`: landed names and types against the declared ones."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ingestion.run.api import _table_report
from ingestion.run.reports import TableReport
from ingestion.state.store import TablePosition
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.metadata_columns import METADATA
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from orchestration.factory import check_columns

DECLARED = {
    "id": "bigint", "Price": "numeric(8,2)", "mail": "integer", "opens": "time", "mood": "mood",
    "body_redacted": "text", "body": "bytea", "note": None, "_Flag": "boolean",
}  # fmt: skip
LANDED = {
    "id": "long", "price": "decimal(8, 2)", "mail": "string", "opens": "long", "mood": "string", "body": "string",
    "note": "double", "_Flag": "boolean", **{name: kind for name, (kind, _) in METADATA.items()},
}  # fmt: skip
TABLE = RawTable(
    source="shop", name="things", description="", load=LoadPolicy(), maintenance=None, owners=(),
    columns=tuple(Column(name=name, data_type=kind, description="") for name, kind in DECLARED.items()),
    raw=RawPolicy(
        relation="public.things", key=("id",), mask={"mail": "sha256"}, exclude=("body",),
        alias={"Price": "price", "body_redacted": "body"},
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("altered", "told"),
    [
        ({}, "none"),
        ({"id": "int", "price": "decimal(6, 2)"}, "none"),
        ({"price": "decimal(10, 2)"}, "price (numeric(8,2)) is decimal(10, 2)"),
        ({"mood": "binary", "opens": "string"}, "mood (mood) is binary, opens (time) is string"),
    ],
)
def test_types_are_the_declared_ones_or_narrower(altered: dict[str, str], told: str) -> None:
    columns = tuple((LANDED | altered).items())
    found = check_columns(TABLE, TableReport("things", 1, {}, 1, 0, columns))
    assert found.metadata["other_types"].value == told
    assert found.metadata["missing"].value == found.metadata["not_declared"].value == "none"
    assert found.passed == (told == "none")


def test_a_column_that_is_called_as_metadata_are_is_one_of_the_source() -> None:
    """A declared `_note` was missing for ever, and one that came with the source was not told of."""
    columns = (*LANDED.items(), ("_note", "string"))
    assert check_columns(TABLE, TableReport("things", 1, {}, 1, 0, columns)).metadata["not_declared"].value == "_note"
    topics = TABLE.model_copy(update={"kind": "debezium"})
    events = TableReport("things", 1, {}, 1, 0, (*LANDED.items(), ("_topic", "string")))
    assert check_columns(topics, events).passed and not check_columns(TABLE, events).passed


def test_what_the_source_has_no_more_need_not_be_declared() -> None:
    """Raw keeps a dropped column, and the values of a former type, so that it warned for ever."""
    columns = (*LANDED.items(), ("weight", "double"), ("Note__int", "int"))
    report = TableReport("things", 1, {}, 1, 0, columns, left=("weight", "Note__int"))
    assert check_columns(TABLE, report).passed
    told = check_columns(TABLE, replace(report, left=("weight", "Note__int", "price")))
    assert told.passed, "what is declared is looked for by its name"
    assert check_columns(TABLE, replace(report, left=("weight",))).metadata["not_declared"].value == "note__int"


def test_what_the_source_has_no_more_is_told_whatever_it_is_called() -> None:
    facts: Any = SimpleNamespace(
        columns=(SimpleNamespace(name="id", lake="id"), SimpleNamespace(name="_Flag", lake=""))
    )
    at = TablePosition("things", 1, None, "streaming", None, versions=(facts,))
    fields = [SimpleNamespace(name=name, field_type="string") for name in ("id", "_Flag", "_note", "weight", *METADATA)]
    raw: Any = SimpleNamespace(current_snapshot=lambda: None, schema=lambda: SimpleNamespace(fields=fields))
    assert _table_report(TABLE, at, raw, {}, 0).left == ("_note", "weight")
    assert _table_report(TABLE, at.forgotten, raw, {}, 0).left == ()
