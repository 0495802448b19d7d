"""What dbt_project.yml says about maintenance as a whole: `vars.maintenance`. dbt's manifest has no variables."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from lakehouse.declarations.lines import PROJECT_FILE, line_in_project, mistakes_in, refuse
from lakehouse.declarations.policies import ProjectMaintenance
from lakehouse.errors import LakehouseError

PLACE = ("vars", "maintenance")


def project_maintenance(project_dir: Path) -> ProjectMaintenance:
    """Reads and checks it; raises LakehouseError with file and line."""
    file = project_dir / PROJECT_FILE
    if not file.exists():
        raise LakehouseError(f"{file} is missing; set LAKEHOUSE_PROJECT_DIR to the checkout that holds it")
    stated = ((yaml.safe_load(file.read_text()) or {}).get("vars") or {}).get("maintenance")
    if stated is None:
        raise LakehouseError(
            f"{line_in_project(project_dir, PLACE)}: vars.maintenance is missing; "
            f"state longest_write_hours, max_failed_share and groups (see docs/operations.md)"
        )
    try:
        return ProjectMaintenance.model_validate(stated)
    except ValidationError as error:
        refuse(
            [
                f"{line_in_project(project_dir, (*PLACE, *path))}: {text}"
                for path, text in mistakes_in(error, ProjectMaintenance, "vars.maintenance")
            ]
        )
        raise
