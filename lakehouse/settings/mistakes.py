"""What is told of a wrong setting: its variable, or its line in lakehouse.toml."""

import os
from typing import Any

from pydantic import BaseModel, ValidationError

from lakehouse.settings.filling import read_toml
from lakehouse.settings.places import config_file
from lakehouse.settings.sources import UNKNOWN_KIND, WRONG_NAME
from lakehouse.text.spelling import Keys, close, keys_at, line_in_toml, unknown, without_kinds

NUMERIC = ("int_", "float_", "greater_", "less_", "finite_")  # what pydantic finds wrong with a number


def wrong_settings(error: ValidationError, model: type[BaseModel], prefix: str) -> str:
    """Each wrong setting by the name of its variable, or by its line in lakehouse.toml, and what is wrong.

    Only numbers are repeated: what was given for text may be a secret.
    """
    found = []
    for problem in error.errors():
        path = without_kinds(model, problem["loc"]) + (("kind",) if problem["type"] == UNKNOWN_KIND else ())
        if problem["type"] == "extra_forbidden":
            found.append(f"{_place(path, prefix)}{_unknown(path, model, prefix)}")
        elif problem["type"] == WRONG_NAME:
            *source, _ = path
            is_in_file = source[-1] in read_toml(config_file()).get("sources", ())
            place = _place(source, prefix) if is_in_file else f"{_variable(source, prefix)}: "
            found.append(f"{place}source {source[-1]!r}: {problem['msg']}")
        else:
            given = _given(problem["type"], problem["input"])
            found.append(f"{_place(path, prefix)}{_variable(path, prefix)}{given}: {problem['msg']}")
    return "; ".join(found)


def _variable(path: Keys, prefix: str) -> str:
    return f"{prefix}{'__'.join(str(part).upper() for part in path)}"


def _unknown(path: Keys, model: type[BaseModel], prefix: str) -> str:
    """A key that no setting has, spelled as it was given: in the environment, or in the file."""
    *outer, key = map(str, path)
    known = keys_at(model, path[:-1])
    if not _is_in_environment(path, prefix):
        return unknown(key, known)
    meant = close(key, known, 0.6)
    instead = f": did you mean {_variable((*outer, meant), prefix)}?" if meant else ""
    return f"{_variable(path, prefix)} is no setting{instead}"


def _place(path: Keys, prefix: str) -> str:
    file = config_file()
    if _is_in_environment(path, prefix) or not file.is_file():
        return ""
    line = line_in_toml(file.read_text(), path)
    return f"{file}:{line}: " if line else ""


def _is_in_environment(path: Keys, prefix: str) -> bool:
    """Whether a variable sets this, or a section around it as JSON."""
    given = {name.upper() for name in os.environ}
    return any(_variable(path[:depth], prefix) in given for depth in range(1, len(path) + 1))


def _given(kind: str, value: Any) -> str:
    return f" is {value!r}" if kind.startswith(NUMERIC) else ""
