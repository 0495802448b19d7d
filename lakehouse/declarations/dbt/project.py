"""What dbt_project.yml says beside dbt: `vars.maintenance` and `vars.pins`. dbt's manifest has no variables."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from lakehouse.declarations.lines import PROJECT_FILE, line_in_project, mistakes_in, refuse
from lakehouse.declarations.policies import PinName, PinPolicy, Policy, ProjectMaintenance
from lakehouse.errors import LakehouseError
from lakehouse.text.spelling import close

M = TypeVar("M", bound=BaseModel)


class ProjectPins(Policy):
    """The cuts that are pinned by themselves, by the name of their kind."""

    pins: dict[PinName, PinPolicy]


def project_maintenance(project_dir: Path) -> ProjectMaintenance:
    """Maintenance as a whole; raises LakehouseError with file and line."""
    stated = _variables(project_dir).get("maintenance")
    if stated is None:
        raise LakehouseError(
            f"{line_in_project(project_dir, ('vars', 'maintenance'))}: vars.maintenance is missing; "
            f"state longest_write_hours, max_failed_share and groups (see docs/operations.md)"
        )
    return _checked(project_dir, ProjectMaintenance, stated, "maintenance")


def project_pins(project_dir: Path) -> Mapping[str, PinPolicy]:
    """The cuts that are to be pinned, none unless declared; raises LakehouseError with file and line."""
    variables = _variables(project_dir)
    refuse(list(_misspelled(project_dir, variables)))
    stated = variables.get("pins")
    return {} if stated is None else _checked(project_dir, ProjectPins, {"pins": stated}).pins


def _misspelled(project_dir: Path, variables: Mapping[str, Any]) -> Iterator[str]:
    """Variables that say when to pin, under a name that nobody reads; others may be read by a macro."""
    for name, stated in variables.items():
        kinds = list(stated.values()) if isinstance(stated, dict) else []
        says_when = bool(kinds) and all(isinstance(kind, dict) and "cron" in kind for kind in kinds)
        if says_when and name != "pins" and close(str(name), ["pins"]):
            where = line_in_project(project_dir, ("vars", str(name)))
            yield f"{where}: vars: unknown key `{name}`: did you mean `pins`?"


def _variables(project_dir: Path) -> dict[str, Any]:
    file = project_dir / PROJECT_FILE
    if not file.exists():
        raise LakehouseError(f"{file} is missing; set LAKEHOUSE_PROJECT_DIR to the checkout that holds it")
    return (yaml.safe_load(file.read_text()) or {}).get("vars") or {}


def _checked(project_dir: Path, model: type[M], stated: Any, *place: str) -> M:
    where = ("vars", *place)
    try:
        return model.model_validate(stated)
    except ValidationError as error:
        refuse(
            [
                f"{line_in_project(project_dir, (*where, *path))}: {text}"
                for path, text in mistakes_in(error, model, ".".join(where))
            ]
        )
        raise
