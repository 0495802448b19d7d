"""What a mart is made of, beside rows of appended tables: the macros that say so, over a small graph."""

import json
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
    assert found["views"] == ["marts.current_shop__items", "marts.hub_v1", "marts.shown"]
    assert found["marts"] == ["marts.dim", "next marts.fact"], "what it names itself is read as it will be"
    assert found["others"] == ["marts.codes", "marts.made", "other.noted"]
    assert not found["whole"]


def test_a_stage_over_views_alone_reads_appended_tables_and_nothing_else() -> None:
    nothing = {"views": [], "code": [], "current": [], "marts": [], "others": []}
    assert read("hub_v1") == {"tables": ["marts.hub"], "whole": True, **nothing}
    assert read("shown")["whole"] is False, "it reads a mart, too"
    assert read("fact")["code"] == ["code of short"]


def test_a_view_counts_as_it_was_made_whoever_looks_and_one_without_a_checksum_by_its_code() -> None:
    """A mart was signed with the project's code of a view that was still made of the former."""
    made, asked = {"marts.shown": "[definition 1a]", "marts.foreign": None}, list[str]()

    def run_query(sql: str) -> SimpleNamespace:
        asked.append(sql)
        return SimpleNamespace(rows=[(view, text) for view, text in made.items() if f"'{view}'" in sql])

    def views_as_made(views: dict[str, str], given: dict[str, str]) -> str:
        stubs = {"run_query": run_query, "target": SimpleNamespace(database="lake")}
        return str(macro("views_as_made", env_var=lambda *_: json.dumps(given), **stubs)(views))

    code = {"marts.shown": "its code", "marts.foreign": "other code"}
    expected = "marts.foreign:other code marts.shown:[definition 1a]"
    assert views_as_made(code, {}) == expected and len(asked) == 1, "all in one statement"
    assert views_as_made({**code, "marts.shown": "edited"}, {"marts.foreign": ""}) == expected
    assert "marts.foreign" not in asked.pop()
    assert views_as_made(code, {"marts.foreign": "", "marts.shown": "[definition 1a]"}) == expected and len(asked) == 1
    assert views_as_made({}, {}) == "" and len(asked) == 1
