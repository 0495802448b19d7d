"""What run config can set: a user of the UI must not be able to choose the programs that run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._config import ConfigType, ConfigTypeKind
from dagster._core.errors import DagsterInvalidConfigError

from lakehouse.settings import PROJECT_DIR
from orchestration.jobs.config import scoped
from orchestration.jobs.maintain_job import PlanConfig

NUMBERS = {"Float", "Int", "Bool"}
REVIEWED = {
    "ops|resources": "of what is behind the button Materialize: a name that is none of the job's is passed over",
    r"loggers\.console\.config\.log_level": "Dagster refuses what is no level",
    r"loggers\.console\.config\.name": "a label in the log; no {env: ...}",
}
MODELS = [dg.AssetKey(["parsed", "parsed_bank__users"])]


def fields_of(config: ConfigType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ConfigType]]:
    """Every field of a config schema."""
    if ConfigTypeKind.has_fields(config.kind):
        for name, field in config.fields.items():  # type: ignore[attr-defined]
            yield from fields_of(field.config_type, (*path, name))
        if config.kind is ConfigTypeKind.PERMISSIVE_SHAPE:
            yield ".".join(path), config
    elif config.kind in (ConfigTypeKind.NONEABLE, ConfigTypeKind.ARRAY):
        yield from fields_of(config.inner_type, path)  # type: ignore[attr-defined]
    else:
        yield ".".join(path), config


def is_closed(config: ConfigType) -> bool:
    """Whether the type is an enum or a number."""
    if config.kind is ConfigTypeKind.SCALAR:
        return config.given_name in NUMBERS
    return config.kind is ConfigTypeKind.ENUM


def test_a_run_can_set_nothing_but_numbers_choices_and_what_was_reviewed(defs: dg.Definitions) -> None:
    found = {
        f"{job.name}: {path} is {config.given_name or config.kind.name}"
        for job in defs.get_repository_def().get_all_jobs()
        for path, config in fields_of(job.run_config_schema.config_type)
        if not is_closed(config) and not any(re.fullmatch(reviewed, path) for reviewed in REVIEWED)
    }
    assert found == set(), "close it, or review it and say why it may be set"


def attacks(proof: Path) -> dict[str, dict[str, Any]]:
    """Config that formerly gave access to other programs, files and secrets."""
    project = str(PROJECT_DIR / "dbt_project")
    shell = {"project_dir": project, "dbt_executable": "/bin/bash", "global_config_flags": ["-c", f"id > {proof}"]}
    return {
        "a shell instead of dbt": {"dbt": {"config": shell}},
        "profiles of another place": {"dbt": {"config": {"project_dir": project, "profiles_dir": "/tmp"}}},
        "pickles of another place": {"io_manager": {"config": {"base_dir": "/tmp"}}},
    }


@pytest.mark.parametrize("attack", attacks(Path()))
def test_a_run_cannot_choose_what_is_executed(defs: dg.Definitions, tmp_path: Path, attack: str) -> None:
    """The first of them made the file: a run that succeeded, launched with one GET of any page in a browser."""
    proof = tmp_path / "proof"
    job = defs.resolve_implicit_global_asset_job_def()
    with pytest.raises(DagsterInvalidConfigError, match="unexpected config entr"):
        job.execute_in_process(
            run_config={"resources": attacks(proof)[attack]}, asset_selection=MODELS, raise_on_error=False
        )
    assert not proof.exists()


@pytest.mark.parametrize("field", ["group", "tables"])
def test_a_run_cannot_have_a_variable_of_the_environment_told_by_an_error(defs: dg.Definitions, field: str) -> None:
    """The value of `{env: ...}`, such as a URL with its password, stood in `no table of that name`."""
    told: Any = {"env": "LAKEHOUSE_CATALOG_URL"}
    config = {"ops": {"plan_maintenance": {"config": {field: [told] if field == "tables" else told}}}}
    with pytest.raises(DagsterInvalidConfigError, match=r"ScheduleGroup|MaintainedTable"):
        defs.resolve_job_def("maintain").execute_in_process(run_config=config)


def test_declared_groups_and_tables_can_still_be_chosen(defs: dg.Definitions) -> None:
    chosen = {"group": "nightly", "tables": ["raw_retail.stores"], "budget_minutes": 1}
    assert dg.validate_run_config(defs.resolve_job_def("maintain"), {"ops": {"plan_maintenance": {"config": chosen}}})


def test_two_code_locations_of_one_process_keep_their_own_choices() -> None:
    def chosen(group: str) -> Any:
        config = scoped(PlanConfig, [group], [])

        @dg.op(config_schema=config.to_fields_dict())
        def plan() -> None: ...

        @dg.job
        def maintain() -> None:
            plan()

        return dg.validate_run_config(maintain, {"ops": {"plan": {"config": {"group": group}}}})

    assert chosen("first") and chosen("second")


def test_what_was_chosen_arrives_as_plain_text() -> None:
    config = scoped(PlanConfig, ["nightly"], ["raw_retail.stores"])(group="nightly", tables=["raw_retail.stores"])  # type: ignore[call-arg]
    assert [type(value) for value in (config.group, *config.tables)] == [str, str]
