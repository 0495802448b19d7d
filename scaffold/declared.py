"""Reads the declarations without the models: a model that refers to a missing one must not block the scaffold."""

import shutil
import tempfile
from pathlib import Path

from lakehouse.declarations import Declarations, declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.settings import Settings

_PARTS = (
    "dbt_project.yml", "profiles.yml", "packages.yml", "dbt_packages", "macros", "tests", "models/sources",
)  # fmt: skip


def declared_alone(settings: Settings) -> Declarations:
    """The declarations in models/sources/; raises LakehouseError with file and line of a mistake."""
    project = settings.dbt_project_dir
    with tempfile.TemporaryDirectory(prefix="lakehouse-scaffold-") as folder:
        alone = settings.model_copy(update={"project_dir": Path(folder), "home": Path(folder) / "home"})
        for part in _PARTS:
            source, target = project / part, alone.dbt_project_dir / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                shutil.copy(source, target)
        return declarations_from(load_manifest(alone), project)
