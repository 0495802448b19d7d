"""Takes a source out of the project: its declaration, and the models of it that are as scaffold wrote them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings
from lakehouse.text.shown import say
from lakehouse_cli.source.declaring import show_change

if TYPE_CHECKING:
    from scaffold import Change


@dataclass(frozen=True)
class Undeclared:
    """What goes: the source's place in `file`, or the file, where `after` is None; and those models that are `gone`."""

    source: str
    file: Path
    after: str | None
    models: "tuple[Change, ...]"


def undeclared(settings: Settings, source: str) -> Undeclared:
    """Plans it. Raises LakehouseError where the declaration is for a person to edit."""
    from scaffold import declaring_file, plan, without_source

    project = settings.dbt_project_dir
    file = declaring_file(project, source)
    return Undeclared(source, file, without_source(file.read_text(), source), tuple(plan(project, source, ())))


def show(settings: Settings, found: Undeclared) -> None:
    """Prints what goes, and the edited models, which stay."""
    show_change(settings, found.file, found.after or "")
    for change in found.models:
        what = "gone" if change.kind == "gone" else "stays"
        say(f"{what:<8}{change.path.relative_to(settings.dbt_project_dir)}")


def undeclare(settings: Settings, found: Undeclared) -> None:
    """Does it. Raises LakehouseError, with all of it done, where models that stay read what is gone."""
    from lakehouse.declarations.manifest import ensure_manifest
    from scaffold import apply

    if found.after is None:
        found.file.unlink()
    else:
        write_atomically(found.file, found.after)
    apply(found.models)
    for folder in {change.path.parent for change in found.models}:
        if not any(folder.iterdir()):
            folder.rmdir()
    try:
        ensure_manifest(settings)
    except LakehouseError as error:
        raise LakehouseError(f"{found.source}: removed; models of yours still read it, correct them: {error}") from None
