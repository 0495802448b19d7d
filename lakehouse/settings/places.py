"""Where the product, a project and its lakehouse.toml are."""

import os
from pathlib import Path

from lakehouse.errors import LakehouseError

PROJECT_DIR = Path(__file__).resolve().parents[2]  # the checkout; site-packages where a wheel is installed
DBT_PACKAGE = PROJECT_DIR / "lakehouse_project" / "cdc_vault"
CONFIG_FILE = "lakehouse.toml"
HOME = ".lakehouse"
ENDPOINTS_FILE = "endpoints.toml"


def config_file() -> Path:
    """Where lakehouse.toml is, or would be; absolute. Raises LakehouseError when LAKEHOUSE_CONFIG names no file, or
    there is a folder in its place."""
    given = os.environ.get("LAKEHOUSE_CONFIG")
    path = absolute(given) if given else named_project() / CONFIG_FILE
    if given and not path.exists():
        raise LakehouseError(f"settings: LAKEHOUSE_CONFIG names {path}, which is no file: correct or unset it")
    if path.is_dir():  # as a container makes of a file that is to be mounted and is not there
        whose = "LAKEHOUSE_CONFIG names" if given else "settings are read from"
        raise LakehouseError(f"settings: {whose} {path}, which is a folder: put the file in its place")
    return path


def named_project() -> Path:
    """The folder of the project that LAKEHOUSE_PROJECT_DIR names from anywhere, else the working folder."""
    return absolute(os.environ.get("LAKEHOUSE_PROJECT_DIR") or ".")


def project_dir() -> Path:
    """The folder of lakehouse.toml, or else the working folder, whichever is a project's; the latter if none is."""
    here = Path.cwd()
    return next((folder for folder in (config_file().parent, here) if is_project(folder)), here)


def is_project(folder: Path) -> bool:
    """Whether a folder holds a project; the checkout holds that of the demo."""
    return (folder / "dbt_project" / "dbt_project.yml").exists()


def check_project(folder: Path) -> None:
    """Raises LakehouseError where a folder holds no project; names the one that it is in, if it is in one.

    No other folder is taken in its place: a command in the wrong one would change another lake than was meant.
    """
    if is_project(folder):
        return
    above = next((parent for parent in folder.parents if is_project(parent)), None)
    raise LakehouseError(
        f"{folder} holds no project (dbt_project/dbt_project.yml): "
        + (f"run this in {above}" if above else "run this in your project's folder; `lakehouse init FOLDER` makes one")
    )


def absolute(path: str | Path) -> Path:
    """Without `~` and symbolic links."""
    return Path(path).expanduser().resolve()
