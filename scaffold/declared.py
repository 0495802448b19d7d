"""Reads the declarations without the models: a model that refers to a missing one must not block the scaffold."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakehouse.declarations import Declarations, RawTable, declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.lines import line_in_source, refuse
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings, check_project
from scaffold.entities import Entity, entities, key_types
from scaffold.key_types import UNLIKE, is_comparable

_PARTS = (
    "dbt_project.yml", "profiles.yml", "packages.yml", "dbt_packages", "macros", "tests", "models/sources",
)  # fmt: skip


def declared_alone(settings: Settings, changed: Mapping[Path, str | None] | None = None) -> Declarations:
    """The declarations in models/sources/, as they would be with these files `changed`, or gone (None).

    Raises LakehouseError with file and line of a mistake, or without a project.
    """
    check_project(settings.project_dir)
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
        for path, text in (changed or {}).items():
            target = alone.dbt_project_dir / path.relative_to(project)
            target.unlink() if text is None else write_atomically(target, text)
        manifest = load_manifest(alone)
        return checked(declarations_from(manifest, alone.dbt_project_dir), manifest, alone.dbt_project_dir)


def checked(declared: Declarations, manifest: dict[str, Any], project: Path) -> Declarations:
    """The declarations, if all references can be compared with the keys they name; raises LakehouseError."""
    nodes = {(node["source_name"], node["name"]): node for node in manifest["sources"].values()}
    refuse(
        [
            f"{line_in_source(project, nodes[table.source, table.name], path)}: {text}"
            for table, path, text in _unlike_keys(list(entities(declared.tables).values()))
        ]
    )
    return declared


def _unlike_keys(everything: Sequence[Entity]) -> Iterator[tuple[RawTable, tuple[str, ...], str]]:
    """References, and keys of tables that extend a hub, that cannot be compared; each with its path below `meta`."""
    for entity in everything:
        for path, columns, hub in _named(entity):
            for column, own, key in key_types(entity, columns, hub, everything):
                if not is_comparable(own, key):
                    yield entity.table, path, f"V5: {column} is {own}, and the key of hub {hub!r} is {key}: {UNLIKE}"


def _named(entity: Entity) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """The columns that name keys of a hub, with their path and the hub."""
    vault = entity.vault
    for role, reference in vault.references.items():
        yield ("vault", "references", role), entity.in_lake(reference.columns), vault.hub_of(role)
    if vault.hub:
        yield ("vault", "hub"), entity.key, vault.hub.name
