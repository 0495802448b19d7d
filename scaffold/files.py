"""Writes generated models without overwriting edits: the first line of a generated file has a checksum of the rest.

A file with a matching checksum may be rewritten or removed. A file that was edited, or that has no such line, belongs
to the user and is not changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lakehouse.files.atomic import write_atomically
from lakehouse.text.generated import is_own, stamped
from scaffold.text import Model

Kind = Literal["new", "changed", "gone", "yours", "same", "behind"]
_LAYERS = ("parsed", "current", "stage", "vault", "timelines")


@dataclass(frozen=True)
class Change:
    """The action on a file: write (`new`, `changed`), remove (`gone`) or keep (`yours`, `same`, `behind`)."""

    path: Path
    kind: Kind
    text: str = ""


def plan(project: Path, source: str, models: Iterable[Model]) -> list[Change]:
    """The action on each file of the source, by path; read-only."""
    wanted = {project / name: stamped(name, body) for model in models for name, body in model.files().items()}
    folders = [project / "models" / layer / source for layer in _LAYERS]
    existing = {file for folder in folders if folder.is_dir() for file in folder.iterdir()}
    existing = {file for file in existing if file.suffix in (".sql", ".yml")}
    changes = [Change(path, _kind(path, text), text) for path, text in wanted.items()]
    changes += [Change(path, "gone" if is_own(path.read_text()) else "yours") for path in existing - set(wanted)]
    return sorted(changes, key=lambda change: change.path)


def _kind(path: Path, text: str) -> Kind:
    if not path.exists():
        return "new"
    found = path.read_text()
    if found == text:
        return "same"
    return "changed" if is_own(found) else "yours"


def apply(changes: Iterable[Change]) -> None:
    """Writes and removes files according to the plan."""
    for change in changes:
        if change.kind in ("new", "changed"):
            change.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(change.path, change.text)
        elif change.kind == "gone":
            change.path.unlink()
