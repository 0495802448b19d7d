"""Jobs that load: two of one name, and two triggers of one, were refused by Dagster alone, without file or line."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations import declarations_from
from lakehouse.errors import LakehouseError

OWN = {"job": "own"}
TIMED = {"trigger": {"cron": "5 * * * *"}}


def read(place: Path, *tables: tuple[str, str, dict[str, Any]], marts: bool = False) -> str:
    """What is told of these tables, each with its source and its `load`; empty if they are taken."""
    files: dict[str, str] = {}
    nodes = {}
    for source, name, load in tables:
        file = f"models/sources/{source}.yml"
        files.setdefault(file, f"sources:\n  - name: {source}\n    schema: raw_{source}\n    tables:\n")
        meta = {"raw": {"relation": f"public.{name}"}, "vault": {"none": "a log"}, "load": load}
        files[file] += f"      - name: {name}\n        config:\n          meta:\n            load: {load}\n"
        nodes[f"{source}.{name}"] = {
            "source_name": source, "name": name, "schema": f"raw_{source}", "columns": {}, "original_file_path": file,
            "config": {"meta": meta},
        }  # fmt: skip
    for file, text in files.items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(text)
    models = {"model.report": {"resource_type": "model", "schema": "marts"}} if marts else {}
    try:
        declarations_from({"sources": nodes, "nodes": models}, place)
    except LakehouseError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    ("eu", "other"), [(("shop", "eu", OWN), ("shop_eu", "orders", {})), (("a", "b_c", OWN), ("a_b", "c", OWN))]
)
def test_two_jobs_of_one_name_are_refused(tmp_path: Path, eu: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    told = read(tmp_path, ("shop", "orders", {}), eu, other)
    assert (
        f"table {other[1]!r} of source {other[0]!r} and {eu[1]!r} of {eu[0]!r} have two jobs of the name load_" in told
    )
    assert f"{other[0]}.yml:8: meta.load.job: " in told
    assert told.endswith("rename one, or leave out `job: own`")


def test_jobs_of_names_of_their_own_are_taken(tmp_path: Path) -> None:
    shared = [("shop", "eu", {}), ("shop", "us", {}), ("shop_eu", "orders", {}), ("shop", "own", OWN)]
    assert read(tmp_path, *shared, ("shop", "timed", {**OWN, **TIMED})) == ""


def test_a_source_whose_sensor_would_be_that_of_the_marts_is_refused(tmp_path: Path) -> None:
    told = read(tmp_path, ("marts", "orders", {}), marts=True)
    assert told.endswith("marts.yml:7: source 'marts' would have the sensor of the marts, new_data_marts: rename it")
    assert read(tmp_path, ("marts", "orders", {})) == "", "there are no marts"


def test_tables_that_share_a_job_cannot_disagree_on_its_trigger(tmp_path: Path) -> None:
    told = read(tmp_path, ("shop", "a", {}), ("shop", "b", TIMED))
    assert told.endswith(
        "shop.yml:12: meta.load.trigger: tables that share the job load_shop declare different triggers: give them "
        "one, or `job: own`"
    )
