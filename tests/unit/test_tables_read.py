"""What a mart is made of, beside rows of appended tables: the macros that say so, over a small graph."""

from types import SimpleNamespace
from typing import Any

from tests.unit.dbt_macros import macro


def node(name: str, materialized: str | None, *reads: str, kind: str = "model") -> dict[str, Any]:
    return {
        "resource_type": kind, "database": "lake", "schema": "marts", "alias": name, "raw_code": f"code of {name}",
        "config": {"materialized": materialized}, "depends_on": {"nodes": list(reads)},
    }  # fmt: skip


NODES = {
    "report": node("report", "rebuilt_table", "shown", "fact", "codes", "other.noted", "made"),
    "shown": node("shown", "view", "hub_v1", "dim", "current_shop__items"),
    "current_shop__items": node("current_shop__items", "view", "parsed"),
    "parsed": node("parsed", "append_only"),
    "hub_v1": node("hub_v1", "view", "hub"),
    "hub": node("hub", "append_only", "stage"),
    "stage": node("stage", "view"),
    "fact": node("fact", "rebuilt_table", "short"),
    "short": node("short", "ephemeral", "hub", "below"),
    "below": node("below", "rebuilt_table", "hub"),
    "dim": node("dim", "rebuilt_table", "hub"),
    "codes": node("codes", "seed", kind="seed"),
    "made": node("made", "table", "hub"),
}
SOURCES = {
    "other.noted": {
        "resource_type": "source", "database": "lake", "schema": "other", "identifier": "noted",
        "config": {"enabled": True},
    }
}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    relation = SimpleNamespace(create=lambda *parts: ".".join(parts[1:]))
    tables_read = macro(
        "tables_read",
        graph={"nodes": NODES, "sources": SOURCES},
        api=SimpleNamespace(Relation=relation),
        next_of=lambda relation: f"next {relation}",
        is_current_view=lambda node: node["alias"].startswith("current_"),
    )
    found: dict[str, Any] = tables_read(name)
    return {key: value if key == "whole" else sorted(value) for key, value in found.items()}


def test_all_that_a_mart_is_made_of_is_found_through_views_and_other_marts() -> None:
    found = read("report")
    assert found["tables"] == ["marts.hub", "marts.parsed"] and found["current"] == ["current_shop__items"]
    assert found["code"] == ["code of current_shop__items", "code of hub_v1", "code of shown"]
    assert found["marts"] == ["marts.dim", "next marts.fact"], "what it names itself is read as it will be"
    assert found["others"] == ["marts.codes", "marts.made", "other.noted"]
    assert not found["whole"]


def test_a_stage_over_views_alone_reads_appended_tables_and_nothing_else() -> None:
    nothing = {"code": [], "current": [], "marts": [], "others": []}
    assert read("hub_v1") == {"tables": ["marts.hub"], "whole": True, **nothing}
    assert read("shown")["whole"] is False, "it reads a mart, too"
    assert read("fact")["code"] == ["code of short"]
