"""Finds environment variables that look like settings but are not, so that a typing mistake is noticed."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakehouse.text.spelling import close

PREFIX = "LAKEHOUSE_"


def mistaken(variables: Iterable[str], fields: Mapping[str, FieldInfo], elsewhere: str) -> str | None:
    """What is wrong with the first variable of that kind, None where there is none.

    `fields` are those of the settings; names that begin with `elsewhere` are others'. Names of other programs pass.
    """
    settings = {path.replace("__", "_"): path for path in _paths(fields)}
    for variable in sorted(variables):
        name = variable.removeprefix(PREFIX)
        if name == variable or variable.startswith(elsewhere):
            continue
        section, nested, _ = name.partition("__")
        if nested and section.lower() not in fields:
            meant = settings.get(name.replace("__", "_")) or _with_section(name, fields)
            return f"{variable} is no setting: there is no section {section}{_instead(meant)}"
        if not nested and "__" in settings.get(name, ""):
            return f"{variable} is no setting: write {PREFIX}{settings[name]}"
        if not nested and name not in settings and (near := close(name, settings)):
            return f"{variable} is no setting{_instead(settings[near])}"
    return None


def _with_section(name: str, fields: Mapping[str, FieldInfo]) -> str | None:
    section, _, rest = name.partition("__")
    near = close(section.lower(), fields, 0.6)
    return f"{near.upper()}__{rest}" if near else None


def _instead(meant: str | None) -> str:
    return f": did you mean {PREFIX}{meant}?" if meant else ""


def _paths(fields: Mapping[str, FieldInfo]) -> list[str]:
    found = []
    for name, field in fields.items():
        kind = field.annotation
        inner = list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
        found += [f"{name}__{part}".upper() for part in inner] or [name.upper()]
    return found
