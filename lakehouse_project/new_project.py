"""Makes a project: a folder with settings, declarations, a dbt project and Dagster's workspace."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from text_unidecode import unidecode

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.files.private_files import write_private
from lakehouse.settings import DBT_PACKAGE

TEMPLATE = Path(__file__).with_name("template")
PLACES = {  # of files that would mean something where the template lies
    "settings.toml": "lakehouse.toml",
    "gitignore": ".gitignore",
    "ci.yml": ".github/workflows/lakehouse.yml",
}
PRIVATE = {"lakehouse.toml"}  # it may hold passwords
LAST = "dbt_project.yml"  # which makes a folder a project
PACKAGES = {"dbt", "dbt_trino", DBT_PACKAGE.name}  # which dbt puts beside a project, and their names have to differ
MAY_BE_THERE = {".git", ".venv", ".python-version", "LICENSE"}


def create_project(folder: Path) -> list[Path]:
    """Writes the files into `folder`, which is made where there is none; returns their paths in it.

    Raises LakehouseError, with nothing written, where the folder holds other files already, or its name gives none to
    dbt. Where it was interrupted, it goes on.
    """
    name = dbt_name(folder.resolve().name)
    if folder.exists() and not folder.is_dir():
        raise LakehouseError(f"{folder} is a file: name another folder")
    texts = dict(_texts(name))
    if found := _others(folder, texts):
        raise LakehouseError(f"{folder} holds {found} already: name a folder that is empty, or does not exist yet")
    for path, text in sorted(texts.items(), key=lambda item: item[0].name == LAST):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (write_private if path.name in PRIVATE else write_atomically)(folder / path, text)
    return [*texts]


def _texts(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a project by their paths in it."""
    for file in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        inside = file.relative_to(TEMPLATE).as_posix()
        text = file.read_text().replace("my_project", name).replace("my_version", version("lakehouse"))
        yield Path(PLACES.get(inside, inside)), text


def _others(folder: Path, texts: Mapping[Path, str]) -> str:
    """The first of what is in the folder and is not of a `create_project` that was interrupted; empty without any."""
    there = sorted(path for path in folder.glob("*") if path.name not in MAY_BE_THERE)
    is_whole = any(path.name == LAST for path in (folder / "dbt_project").glob("*"))
    is_ours = all(_is_ours(folder, file, texts) for path in there for file in (path, *path.rglob("*")))
    return "" if is_ours and not is_whole else there[0].name if there else ""


def _is_ours(folder: Path, file: Path, texts: Mapping[Path, str]) -> bool:
    """Whether it is a folder, one of the files with its text, or a part of one that was being written."""
    if part := re.fullmatch(r"\.(.+)\.\d+", file.name):
        return (file.parent / part[1]).relative_to(folder) in texts
    text = texts.get(file.relative_to(folder))
    return file.is_dir() or (text is not None and file.read_bytes() == text.encode())


def dbt_name(folder: str) -> str:
    """The name of a dbt project (letters, digits, underscores) for a folder; LakehouseError where nothing is left."""
    name = re.sub(r"\W+", "_", unidecode(folder), flags=re.ASCII).strip("_").lower()
    if not name:
        raise LakehouseError(f"{folder!r} has no letter that dbt allows in a project's name: name the folder otherwise")
    return f"lake_{name}" if name[0].isdigit() or name in PACKAGES else name
