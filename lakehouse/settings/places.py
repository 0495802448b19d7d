"""Where the product, a project and its lakehouse.toml are."""

import os
from pathlib import Path

from lakehouse.errors import LakehouseError

PROJECT_DIR = Path(__file__).resolve().parents[2]  # the checkout; site-packages where a wheel is installed
DBT_PACKAGE = PROJECT_DIR / "lakehouse_project" / "cdc_vault"
CONFIG_FILE = "lakehouse.toml"
ENDPOINTS_FILE = "endpoints.toml"


def config_file() -> Path:
    """Where lakehouse.toml is, or would be; absolute. Raises LakehouseError when LAKEHOUSE_CONFIG names no file."""
    given = os.environ.get("LAKEHOUSE_CONFIG")
    path = absolute(given or CONFIG_FILE)
    if given and not path.exists():
        raise LakehouseError(f"settings: LAKEHOUSE_CONFIG names {path}, which is no file: correct or unset it")
    return path


def project_dir() -> Path:
    """The folder of lakehouse.toml if it is a project's; else the checkout, which is one, too."""
    here = config_file().parent
    found = (folder for folder in (here, PROJECT_DIR) if (folder / "dbt_project" / "dbt_project.yml").exists())
    return next(found, here)


def absolute(path: str | Path) -> Path:
    """Without `~` and symbolic links."""
    return Path(path).expanduser().resolve()
