"""Writing models without ever taking a person's work: a generated file says so, with a checksum of what was written.

A file whose first line carries the checksum of the rest is the scaffold's and may be written again or removed. One that
has been edited since, or never had the line, is a person's and is left alone.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scaffold.text import Model

Kind = Literal["new", "changed", "gone", "yours", "same"]
_LINE = re.compile(r"^(?:\{#-|#) Written by `lakehouse scaffold`, its own while unchanged: ([0-9a-f]{16})(?: -#\})?\n")
_LAYERS = ("parsed", "current", "stage", "vault", "timelines")


@dataclass(frozen=True)
class Change:
    """What is done with a file: written (`new`, `changed`), removed (`gone`) or left alone (`yours`, `same`)."""

    path: Path
    kind: Kind
    text: str = ""


def stamped(name: str, body: str) -> str:
    """The text with its first line."""
    line = f"Written by `lakehouse scaffold`, its own while unchanged: {_checksum(body)}"
    return (f"{{#- {line} -#}}\n" if name.endswith(".sql") else f"# {line}\n") + body


def is_own(text: str) -> bool:
    """Whether the file is as the scaffold wrote it."""
    found = _LINE.match(text)
    return found is not None and found[1] == _checksum(text[found.end() :])


def plan(project: Path, source: str, models: Iterable[Model]) -> list[Change]:
    """What to do with each file of the source, by path; reads files, writes none."""
    wanted = {project / name: stamped(name, body) for model in models for name, body in model.files().items()}
    places = [project / "models" / layer / source for layer in _LAYERS]
    there = {file for place in places if place.is_dir() for file in place.iterdir() if file.suffix in (".sql", ".yml")}
    changes = [Change(path, _kind(path, text), text) for path, text in wanted.items()]
    changes += [Change(path, "gone" if is_own(path.read_text()) else "yours") for path in there - set(wanted)]
    return sorted(changes, key=lambda change: change.path)


def _kind(path: Path, text: str) -> Kind:
    if not path.exists():
        return "new"
    found = path.read_text()
    if found == text:
        return "same"
    return "changed" if is_own(found) else "yours"


def apply(changes: Iterable[Change]) -> None:
    """Writes and removes what the plan says."""
    for change in changes:
        if change.kind in ("new", "changed"):
            change.path.parent.mkdir(parents=True, exist_ok=True)
            change.path.write_text(change.text)
        elif change.kind == "gone":
            change.path.unlink()


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
