"""Makes a project: a folder with settings, declarations, a dbt project and Dagster's workspace."""

import re
from importlib.metadata import version
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.files.private_files import write_private

TEMPLATE = Path(__file__).with_name("template")
PLACES = {  # of files that would mean something where the template lies
    "settings.toml": "lakehouse.toml",
    "gitignore": ".gitignore",
    "ci.yml": ".github/workflows/lakehouse.yml",
}
PRIVATE = {"lakehouse.toml"}  # it may hold passwords
MAY_BE_THERE = {".git", ".venv", ".python-version", "LICENSE"}


def create_project(folder: Path) -> list[Path]:
    """Writes the files into `folder`, which is made where there is none; returns their paths in it.

    Raises LakehouseError, with nothing written, where the folder holds files already or its name gives none to dbt.
    """
    name = dbt_name(folder.resolve().name)
    if folder.exists() and not folder.is_dir():
        raise LakehouseError(f"{folder} is a file: name another folder")
    if found := sorted(path.name for path in folder.glob("*") if path.name not in MAY_BE_THERE):
        raise LakehouseError(f"{folder} holds {found[0]} already: name a folder that is empty, or does not exist yet")
    written = []
    for file in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        inside = file.relative_to(TEMPLATE).as_posix()
        path = Path(PLACES.get(inside, inside))
        text = file.read_text().replace("my_project", name).replace("my_version", version("lakehouse"))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (write_private if path.name in PRIVATE else write_atomically)(folder / path, text)
        written.append(path)
    return written


def dbt_name(folder: str) -> str:
    """The name of a dbt project (letters, digits, underscores) for a folder; LakehouseError where nothing is left."""
    name = re.sub(r"\W+", "_", folder, flags=re.ASCII).strip("_").lower()
    if not name:
        raise LakehouseError(f"{folder!r} has no letter that dbt allows in a project's name: name the folder otherwise")
    return f"lake_{name}" if name[0].isdigit() else name
