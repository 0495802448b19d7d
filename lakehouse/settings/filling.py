"""What fills the settings beside the environment, before any of them is known."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr
from pydantic_settings import PydanticBaseSettingsSource

from lakehouse.errors import LakehouseError
from lakehouse.settings.places import HOME, absolute, config_file, named_project
from lakehouse.text.spelling import Keys, keys_at, kinds_at, line_in_toml


def sections(name: str, given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A section as each of them has it; what is none is told where the settings are made."""
    return [part[name] for part in given if isinstance(part.get(name), Mapping)]


def is_another(embedded: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the settings lead to another Trino than the embedded one; the first that has a value wins."""
    told = {name: next((str(part[name]) for part in given if name in part), None) for name in ("host", "port")}
    if told["host"] == "localhost":
        told["host"] = "127.0.0.1"
    return any(value not in (None, str(embedded.get(name))) for name, value in told.items())


def is_another_store(embedded: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the settings lead to another object store than the embedded one: by its address, or by the bucket."""
    endpoint = next((part["endpoint"] for part in sections("s3", given) if part.get("endpoint")), None)
    warehouse = next((str(part["warehouse"]) for part in given if part.get("warehouse")), None)
    store, here = embedded.get("s3", {}), embedded.get("warehouse", "")
    return (
        (endpoint is not None and _address(endpoint) != _address(store.get("endpoint", "")))
        or (warehouse is not None and urlsplit(warehouse)[:2] != urlsplit(here)[:2])
    )  # fmt: skip


def without_namesakes(sources: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The embedded sources but those in whose name the settings lead to another source."""
    layers = sections("sources", given)
    return {
        name: embedded for name, embedded in sources.items()
        if not is_another_source(embedded, [each[name] for each in layers if isinstance(each.get(name), Mapping)])
    }  # fmt: skip


def is_another_source(embedded: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the settings lead to another source than the embedded one; the first that has a value wins."""
    told = {key: next((part[key] for part in given if part.get(key)), None) for key in ("kind", *ADDRESSES)}
    if told["kind"] not in (None, embedded.get("kind", "postgres")):
        return True
    return any(
        told[key] is not None and (key not in embedded or is_there(_text(told[key])) != is_there(_text(embedded[key])))
        for key, is_there in ADDRESSES.items()
    )


def _database(url: str) -> tuple[str, int, str] | str:
    from lakehouse.text.urls import parse_url

    try:
        return parse_url(url).place
    except LakehouseError:  # told where it is used
        return url


def _brokers(servers: str) -> str:
    return servers.replace("localhost:", "127.0.0.1:").replace(" ", "")


def _text(value: Any) -> str:
    return str(value.get_secret_value() if isinstance(value, SecretStr) else value)


ADDRESSES: dict[str, Callable[[str], object]] = {"url": _database, "bootstrap_servers": _brokers}


def _address(url: str) -> str:
    return str(url).replace("//localhost", "//127.0.0.1").rstrip("/")


def endpoints(model: type[BaseModel], file: Path) -> dict[str, Any]:
    """What `lakehouse up` wrote, of this release or another one: what this one has no setting for is passed over."""

    def known(values: dict[str, Any], path: Keys) -> dict[str, Any]:
        names = keys_at(model, path)
        return {
            name: known(value, (*path, name)) if isinstance(value, dict) else value
            for name, value in values.items()
            if name in names or not names
        }

    return known(read_toml(file), ())


def read_toml(file: Path) -> dict[str, Any]:
    """What a file of settings says; nothing where there is none. Raises LakehouseError that names it."""
    try:
        text = file.read_bytes().decode() if file.is_file() else ""
        if text.startswith("\ufeff"):
            raise LakehouseError(f"settings: {file} begins with a byte order mark: save it as UTF-8 without one")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LakehouseError(f"settings: {file}:{line} is not UTF-8: save the file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise LakehouseError(f"settings: {file} is not TOML: {error}") from None
    except OSError as error:
        raise LakehouseError(f"settings: {file} cannot be read: {error.strerror}") from None


def placed(values: Mapping[str, Any], model: type[BaseModel], folder: Path) -> dict[str, Any]:
    """What a file says, with paths as from the folder that it is in, wherever a command runs."""

    def within(values: Mapping[str, Any], path: Keys) -> dict[str, Any]:
        return {name: at(value, (*path, name)) for name, value in values.items()}

    def at(value: Any, path: Keys) -> Any:
        if isinstance(value, dict):
            return within(value, path)
        is_path = isinstance(value, str) and value and Path in kinds_at(model, path) and path != ("home",)
        return str(folder / Path(value).expanduser()) if is_path else value

    return within(values, ())


def home(config: PydanticBaseSettingsSource, *given: PydanticBaseSettingsSource) -> Path:
    """The home of this installation: what is given, else that of the project."""
    here = first("home", given)
    return absolute(here) if here else absolute(named_project() / Path(first("home", (config,)) or HOME).expanduser())


def cache(*sources: PydanticBaseSettingsSource) -> Path:
    """The folder of downloads."""
    return absolute(first("cache", sources) or "~/.cache/lakehouse")


def first(key: str, sources: tuple[PydanticBaseSettingsSource, ...]) -> Any:
    """The path that the first source says that says anything."""
    found = next((values[key] for values in (source() for source in sources) if values.get(key)), None)
    if found is not None and not isinstance(found, str | Path):
        file = config_file()
        line = line_in_toml(file.read_text(), (key,)) if file.is_file() else None
        raise LakehouseError(f"settings: {f'{file}:{line}: ' if line else ''}{key}: a path is wanted, in quotes")
    return found
