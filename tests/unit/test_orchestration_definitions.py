"""The definitions of the code location, built from the declarations without any server."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.declarations.policies import Cron, LoadPolicy, RawPolicy
from lakehouse.settings import PROJECT_DIR
from lakehouse_stack.home.instance import dagster_yaml
from maintenance.actions.registry import ACTIONS, BY_NAME
from orchestration.checks.erasures import CHECK, erasing_definitions
from orchestration.factory import source_definitions
from orchestration.jobs.loads import load_selection, loads_of

GRAPH = Path(__file__).with_name("graph.txt")
FIRST_DAY = date(2026, 1, 1)
PROBE = """
import socket, sys
def refuse(*arguments): raise AssertionError(f"a connection to {arguments[1:]} while loading")
socket.socket.connect = refuse
import orchestration.definitions
heavy = {"pyiceberg", "trino", "adbc_driver_postgresql", "pyarrow", "pandas", "sqlalchemy.engine.create"}
print(",".join(sorted(heavy & sys.modules.keys())))
"""


def table(name: str, load: LoadPolicy | None = None, freshness: int | None = None) -> RawTable:
    return RawTable(
        source="shop",
        name=name,
        description=f"All {name}.",
        columns=(Column(name="id", data_type="bigint", description="key"),),
        raw=RawPolicy(relation=f"public.{name}", key=("id",), freshness_minutes=freshness),
        load=load or LoadPolicy(),
        maintenance=None,
        owners=(),
    )


def shop(*tables: RawTable) -> Source:
    return Source(name="shop", description="A shop.", load=tables[0].load, tables=tables)


def test_the_graph_is_the_one_that_was_reviewed(defs: dg.Definitions) -> None:
    """After an intended change: `python -m orchestration.graph > tests/unit/graph.txt`."""
    from orchestration.graph import describe

    assert describe(defs) == GRAPH.read_text().splitlines()


def test_loading_connects_to_nothing_and_imports_no_driver(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        env={**_environment(), "LAKEHOUSE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == ""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}


def test_every_asset_has_a_layer_a_description_and_kinds(defs: dg.Definitions) -> None:
    for spec in defs.resolve_all_asset_specs():
        assert spec.group_name in {"raw", "parsed", "vault", "marts", "mirrors", "meta"}, spec.key
        assert spec.description and not spec.description.startswith("dbt model"), spec.key
        assert "iceberg" in spec.kinds, spec.key


def test_raw_models_and_marts_have_owners(defs: dg.Definitions) -> None:
    for spec in defs.resolve_all_asset_specs():
        if spec.group_name == "raw":
            assert spec.owners, spec.key


def test_tests_of_sources_are_checks_of_the_raw_assets(defs: dg.Definitions) -> None:
    checks = {key.name for key in defs.resolve_asset_graph().asset_check_keys if key.asset_key.path[0] == "raw_retail"}
    assert "columns_as_declared" in checks
    assert len(checks) > 1


def test_a_load_job_ends_before_the_marts_and_only_they_are_not_by_day(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    for job in defs.resolve_all_job_defs():
        groups = {graph.get(key).group_name for key in job.asset_layer.executable_asset_keys}
        if job.name.startswith("load_"):
            assert not {"marts", "mirrors"} & groups and job.partitions_def is not None
        if job.name == "build_marts":
            assert groups == {"marts"} and job.partitions_def is None


def test_checks_that_scan_whole_tables_are_in_no_load(defs: dg.Definitions) -> None:
    """Each load had a step for erasures, which did nothing but log that it was skipped."""
    apart = {"reconciles_with_source", "erasures_hold"}
    jobs = {job.name: job.asset_layer.asset_graph.asset_check_keys for job in defs.resolve_all_job_defs()}
    loads = {key.name for name, keys in jobs.items() if name.startswith("load_") for key in keys}
    assert "in_the_cut" in loads and not apart & loads
    assert {key.name for key in jobs["verify_erasures_retail"]} == {"erasures_hold"}


@pytest.mark.parametrize(("personal", "exclude"), [(("email",), ()), (("email",), ("email",)), ((), ())])
def test_the_check_of_erasures_stays_where_a_personal_column_is_excluded_later(
    personal: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    """Rows from before still have it. The check and its job went, so what a restore brought back was not told."""
    people = table("people")
    columns = (*people.columns, Column(name="email", data_type="text", description="address"))
    raw = people.raw.model_copy(update={"personal": personal, "exclude": exclude})
    people = people.model_copy(update={"columns": columns, "raw": raw})
    checks = list(erasing_definitions(shop(people)).asset_checks or ())
    (load,) = loads_of(shop(people))
    assert bool(checks) == bool(personal)
    assert {key.name for key in load.apart} >= {CHECK} if personal else CHECK not in {key.name for key in load.apart}


def test_a_column_is_traced_from_the_satellite_to_the_raw_table(defs: dg.Definitions) -> None:
    lineage = {spec.key: spec.metadata.get("dagster/column_lineage") for spec in defs.resolve_all_asset_specs()}
    key, column = dg.AssetKey(["vault", "sat_product_price_v1"]), "unit_price"
    path = []
    while (found := lineage[key]) is not None:
        (step,) = found.deps_by_column[column]
        key, column = step.asset_key, step.column_name
        path.append(key.to_user_string())
    assert path == [
        "vault/sat_product_price", "vault/stg_retail__products", "parsed/parsed_retail__products",
        "raw_retail/products",
    ]  # fmt: skip


def test_all_sensors_and_schedules_are_on_but_those_of_single_maintenance_actions(defs: dg.Definitions) -> None:
    """`maintain` runs the same actions; with both schedules, work would be done twice."""
    repository = defs.get_repository_def()
    assert {sensor.default_status for sensor in repository.sensor_defs} == {dg.DefaultSensorStatus.RUNNING}
    running = {s.job_name: s.default_status is dg.DefaultScheduleStatus.RUNNING for s in repository.schedule_defs}
    assert {job for job, runs in running.items() if not runs} == set(BY_NAME)
    assert {"maintain", "measure_table_health", "reconcile_retail"} <= {job for job, runs in running.items() if runs}


def test_each_schedule_group_in_use_is_maintained_by_its_declared_cron(defs: dg.Definitions) -> None:
    groups = project_maintenance(PROJECT_DIR / "dbt_project").groups
    found = {s.name: s.cron_schedule for s in defs.get_repository_def().schedule_defs if s.job_name == "maintain"}
    assert found == {f"maintain_{name}": groups[name].cron for name in ("hourly", "nightly")}


def test_every_job_runs_in_one_process(defs: dg.Definitions) -> None:
    """A run has one JVM and loads the definitions once, not per step."""
    jobs = [job for job in defs.resolve_all_job_defs() if not job.name.startswith("__")]
    assert {job.executor_def.name for job in jobs} == {"in_process"}


def test_no_two_schedules_start_at_the_same_minute() -> None:
    groups = project_maintenance(PROJECT_DIR / "dbt_project").groups.values()
    minutes = [action.cron(group.cron).split()[0] for action in ACTIONS for group in groups]
    minutes += [group.cron.split()[0] for group in groups]
    assert len(set(minutes)) == len(minutes)
    assert all(0 <= int(minute) < 60 for minute in minutes)


def test_an_action_starts_within_the_hour_of_its_group_and_at_a_cron_that_has_no_minute_alike() -> None:
    assert BY_NAME["clean_dbt_temporary"].cron("58 3 * * 0") == "8 3 * * 0"
    assert BY_NAME["compact"].cron("*/10 * * * *") == "*/10 * * * *"


def test_a_job_makes_the_views_that_a_hub_is_made_of_and_loads_nothing_else_of_other_sources() -> None:
    """After `normalize` had changed, the first job made the hub of the other source's former view."""
    crm, erp = dg.AssetKey(["vault", "stg_crm"]), dg.AssetKey(["vault", "stg_erp"])
    parsed = {stage: dg.AssetKey(["parsed", stage.path[1]]) for stage in (crm, erp)}
    specs = [
        dg.AssetSpec(["raw_shop", "a"]), dg.AssetSpec(["raw_erp", "a"]),
        dg.AssetSpec(parsed[crm], deps=[["raw_shop", "a"]]), dg.AssetSpec(parsed[erp], deps=[["raw_erp", "a"]]),
        dg.AssetSpec(crm, deps=[parsed[crm]]), dg.AssetSpec(erp, deps=[parsed[erp]]),
        dg.AssetSpec(["vault", "hub"], deps=[crm, erp, parsed[erp]]),
    ]  # fmt: skip
    models = dg.multi_asset(name="models", specs=specs, can_subset=True)(lambda: None)
    graph = dg.Definitions(assets=[models]).resolve_asset_graph()
    (load,) = loads_of(shop(table("a")))
    found = load_selection(load, [crm, erp]).resolve(graph)
    assert found == {specs[0].key, parsed[crm], crm, erp, specs[-1].key}


def test_tables_share_a_job_or_have_their_own() -> None:
    own = LoadPolicy(job="own")
    timed = LoadPolicy(job="own", trigger=Cron(cron="5 * * * *"))
    defs = source_definitions(shop(table("a"), table("b"), table("c", own), table("d", timed)), FIRST_DAY)
    jobs = {job.name for job in defs.jobs or []}
    assert jobs == {"load_shop", "load_shop_c", "load_shop_d", "mirror_shop", "reconcile_shop"}
    assert {sensor.name for sensor in defs.sensors or []} == {"new_data_shop", "new_data_shop_c"}
    assert {schedule.name for schedule in defs.schedules or []} == {"load_shop_d_schedule", "reconcile_shop_schedule"}


def test_all_raw_tables_of_a_source_are_one_step_in_one_pool() -> None:
    defs = source_definitions(shop(table("a"), table("b", LoadPolicy(job="own"))), FIRST_DAY)
    [assets, mirrors] = defs.assets or []
    assert isinstance(mirrors, dg.AssetsDefinition) and mirrors.op.pool == "mirrors_shop"
    assert isinstance(assets, dg.AssetsDefinition)
    assert assets.keys == {dg.AssetKey(["raw_shop", "a"]), dg.AssetKey(["raw_shop", "b"])}
    assert assets.op.pool == "raw_shop" and assets.can_subset


def test_a_quiet_source_is_confirmed_twice_within_its_declared_freshness() -> None:
    [load] = loads_of(shop(table("a", freshness=60), table("b", freshness=1440)))
    assert load.confirm_after is not None and load.confirm_after.total_seconds() == 1800
    [load] = loads_of(shop(table("a")))
    assert load.confirm_after is None


def test_all_that_a_person_can_turn_on_or_launch_says_what_it_is_for(defs: dg.Definitions) -> None:
    repository = defs.get_repository_def()
    told: list[Any] = [*repository.schedule_defs, *repository.sensor_defs]
    told += [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    assert [item.name for item in told if not item.description] == []
    assert [op.name for op in defs.resolve_job_def("maintain").nodes if not op.definition.description] == []


def test_what_can_wait_leaves_a_place_to_loads_and_is_launched_after_them(defs: dg.Definitions) -> None:
    """A maintenance of hours beside a daily check took both places, and no load was launched meanwhile."""
    jobs = {job.name: job.tags for job in defs.get_repository_def().get_all_jobs() if not job.name.startswith("__")}
    waiting = {name for name, found in jobs.items() if ".dagster/lakehouse_background" in found}
    assert {"maintain", "compact", "measure_table_health", "reconcile_retail", "verify_erasures_retail"} <= waiting
    assert not [name for name in waiting if name.startswith(("load_", "build_"))]
    assert all(int(jobs[name]["dagster/priority"]) < 0 for name in waiting)
    runs = yaml.safe_load(dagster_yaml('"postgresql://x"', Path("/logs")))["concurrency"]["runs"]
    assert {"key": ".dagster/lakehouse_background", "limit": 1} in runs["tag_concurrency_limits"]
    assert runs["max_concurrent_runs"] > 1


def test_no_load_waits_for_a_load_of_another_source(defs: dg.Definitions) -> None:
    """All loads had one pool, and two places: a long one of the payroll and a rerun that waited for it kept all out."""
    repository = defs.get_repository_def()
    nodes: list[Any] = [node for job in repository.get_all_jobs() for node in job.graph.node_defs]
    steps = {op.name: op.pool for op in nodes if op.pool}
    pools = {name: steps[f"load_models_{name}"] for name in ("retail", "bank", "payroll")}
    assert pools == {name: f"vault_{name}" for name in pools}
    assert steps["marts_models"] not in pools.values()
    loads = {job.name: job.tags.get(".dagster/lakehouse_loads") for job in repository.get_all_jobs()}
    assert (loads["load_retail"], loads["load_bank"]) == ("retail", "bank")
    runs = yaml.safe_load(dagster_yaml('"postgresql://x"', Path("/logs")))["concurrency"]["runs"]
    one_each = {"key": ".dagster/lakehouse_loads", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    assert one_each in runs["tag_concurrency_limits"]
    assert runs["max_concurrent_runs"] > len(pools)


def test_private_modules_of_dagster_are_used_only_where_nothing_public_does_the_same() -> None:
    """See docs/adr/0018: an upgrade of Dagster has to look at each of these."""
    root = Path(__file__).parents[2]
    shipped = [f for f in root.glob("*/**/*.py") if not {"tests", ".venv", "build"} & set(f.relative_to(root).parts)]
    importing = re.compile(r"^\s*(?:from|import) dagster\w*(?:\.\w+)*\._|import_module\(.dagster\w*(?:\.\w+)*\._", re.M)
    found = {str(file.relative_to(root)) for file in shipped if importing.search(file.read_text())}
    assert found == {
        "orchestration/daemon.py",
        "orchestration/runner.py",
        "orchestration/runs/incremental.py",
        "orchestration/runs/pool_limits.py",
        "orchestration/runs/pools.py",
        "orchestration/runs/step_processes.py",
        "orchestration/web/__main__.py",
    }
    page = (root / "docs" / "adr" / "0018-private-modules-of-dagster.md").read_text()
    assert not [name for name in found if f"`{name.removeprefix('orchestration/')}`" not in page]
    assert not [test for test in re.findall(r"`(tests/[\w/]+\.py)`", page) if not (root / test).exists()]
    assert importing.search("    import dagster._core.events") and importing.search("from dagster._core import events")
    assert importing.search("from dagster_dbt._x import y") and not importing.search("from dagster import _y")
