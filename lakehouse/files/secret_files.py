"""Secrets in files: a folder with one file per setting, and a lakehouse.toml that others must not read."""

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings, EnvSettingsSource

from lakehouse.errors import LakehouseError

DATABASE = re.compile(r"postgres(ql)?://")  # of another URL, such as a webhook, the path may be the secret
PASSWORD = re.compile(
    r"://[^/?@]*:[^/?]*@|[?&](ssl)?password="
)  # in a database's URL; one without it finds its password elsewhere
NAMED = re.compile(r"secret|password|token|access\.?key", re.IGNORECASE)  # properties that Spark takes for secrets


class SecretFiles(EnvSettingsSource):
    """Settings from files that are named as their variables: as Docker and Kubernetes hand secrets to a container."""

    def __init__(self, settings_cls: type[BaseSettings], folder: Path | None) -> None:
        self._folder = folder
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): text for name, text in read_folder(self._folder).items()} if self._folder else {}


def read_folder(folder: Path) -> dict[str, str]:
    """The content of each file below `folder` by its name; raises LakehouseError when one cannot be read."""
    try:
        files = [path for path in folder.iterdir() if path.is_file() and path.name.startswith("LAKEHOUSE_")]
        return {path.name: path.read_text().strip("\r\n") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise LakehouseError(
            f"settings: LAKEHOUSE_SECRETS_DIR names {folder}, which cannot be read ({error}): correct or unset it"
        ) from None


def refuse_open(file: Path, model: type[BaseModel], values: Mapping[str, Any]) -> None:
    """Raises LakehouseError if the file contains a secret and other users may read or change it."""
    if not file.is_file():
        return
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o007 and _is_secret(model, values):
        raise LakehouseError(f"settings: {file} holds secrets and has mode {mode:04o}: run `chmod 600 {file}`")


def _is_secret(kind: Any, value: Any) -> bool:
    """Whether a value of this type, or a part of it, must be kept from others."""
    if kind is SecretStr:
        text = str(value)
        return bool(text) and not (DATABASE.match(text) and not PASSWORD.search(text))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields
        return isinstance(value, dict) and any(
            _is_secret(fields[name].annotation, part) for name, part in value.items() if name in fields
        )
    if get_origin(kind) is dict:
        return isinstance(value, dict) and any(
            _is_secret(get_args(kind)[1], part) or (isinstance(part, str) and bool(NAMED.search(name)))
            for name, part in value.items()
        )
    return any(_is_secret(part, value) for part in get_args(kind))
