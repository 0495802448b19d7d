"""Which of the marts that dbt has built may be published."""

from typing import Any

import pytest

from orchestration.assets.next_tables import (
    built_whole,
    late_tests,
    sound_tables,
    unsound_tables,
)

DIM, FACT, REPORT = ("marts", "dim"), ("marts", "fact"), ("marts", "report")
BUILT = {"model.dim": "success", "model.fact": "success", "model.report": "success"}


def model(name: str, *reads: str, materialized: str = "rebuilt_table") -> dict[str, Any]:
    schema = "marts" if materialized == "rebuilt_table" else "vault"
    return {
        "resource_type": "model", "database": "lake", "schema": schema, "alias": name, "columns": {}, "name": name,
        "original_file_path": f"models/{name}.sql",
        "config": {"materialized": materialized}, "depends_on": {"nodes": list(reads)},
    }  # fmt: skip


def manifest() -> dict[str, Any]:
    """A report of a fact; one test reads the dimension and the fact, another the hub and the fact."""
    nodes = {
        "model.hub": model("hub", materialized="append_only"),
        "model.dim": model("dim", "model.hub"),
        "model.fact": model("fact", "model.hub"),
        "model.report": model("report", "model.fact"),
        "test.both": {"resource_type": "test", "depends_on": {"nodes": ["model.dim", "model.fact"]}},
        "test.total": {"resource_type": "test", "depends_on": {"nodes": ["model.hub", "model.report"]}},
    }
    children: dict[str, list[str]] = {key: [] for key in nodes}
    for key, node in nodes.items():
        for parent in node["depends_on"]["nodes"]:
            children[parent].append(key)
    return {"nodes": nodes, "child_map": children}


def test_tables_that_are_appended_to_are_not_built_whole() -> None:
    assert built_whole(manifest()) == {DIM: {}, FACT: {}, REPORT: {}}


def test_what_was_built_and_passed_is_sound_also_with_a_warning() -> None:
    statuses = {**BUILT, "test.both": "warn", "test.total": "pass"}
    assert sound_tables(manifest(), statuses) == {DIM, FACT, REPORT}
    assert not unsound_tables(manifest(), statuses)


def test_what_reads_a_table_that_a_test_of_two_has_refused_is_not_sound() -> None:
    """dbt builds it, because the test reads another table too."""
    statuses = {**BUILT, "test.both": "fail", "test.total": "pass"}
    assert sound_tables(manifest(), statuses) == set()
    assert unsound_tables(manifest(), statuses) == {DIM, FACT, REPORT}


def test_a_failed_test_of_a_table_that_is_appended_to_as_well_refuses_the_mart_alone() -> None:
    assert sound_tables(manifest(), {**BUILT, "test.both": "pass", "test.total": "error"}) == {DIM, FACT}


def test_a_table_whose_test_was_not_run_is_not_sound() -> None:
    """The test of two tables is skipped where one of them could not be built."""
    statuses = {**BUILT, "model.dim": "error", "test.both": "skipped", "test.total": "pass"}
    assert sound_tables(manifest(), statuses) == set()
    assert unsound_tables(manifest(), statuses) == {FACT, REPORT}


def test_what_was_not_built_is_not_published() -> None:
    assert sound_tables(manifest(), {"model.fact": "success"}) == {FACT}


@pytest.mark.parametrize("kind", ["view", "ephemeral"])
def test_a_test_that_sees_a_mart_through_a_view_is_run_once_that_is_published(kind: str) -> None:
    """It passed for the former state of the mart, whatever the new one was."""
    found = manifest()
    assert late_tests(found) == set()
    found["nodes"]["model.hub_v1"] = model("hub_v1", "model.hub", materialized="view")
    found["nodes"]["model.shown"] = model("shown", "model.fact", materialized=kind)
    for name, read in {
        "below": ["model.hub_v1"],
        "shown": ["model.shown"],
        "of_two": ["model.dim", "model.shown"],
    }.items():
        found["nodes"][f"test.{name}"] = {"resource_type": "test", "depends_on": {"nodes": read}}
    assert late_tests(found) == {"test.shown", "test.of_two"}
