"""Takes a source out of the project: its declaration, and the models of it that are as scaffold wrote them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings
from lakehouse.text.shown import say
from lakehouse_cli.source.declaring import refuse_changed as refuse_changed_file
from lakehouse_cli.source.declaring import show_change

if TYPE_CHECKING:
    from scaffold import Change, SourceFile


@dataclass(frozen=True)
class Undeclared:
    """What goes: the source's place in `file`, or the file, where `after` is None; and those models that are `gone`."""

    source: str
    file: "SourceFile"
    after: str | None
    models: "tuple[Change, ...]"


def undeclared(settings: Settings, source: str) -> Undeclared:
    """Plans it. Raises LakehouseError where the declaration is for a person to edit."""
    from scaffold import declaring_file, plan, without_source

    project = settings.dbt_project_dir
    file = declaring_file(project, source)
    return Undeclared(source, file, without_source(file, source), tuple(plan(project, source, ())))


def show(settings: Settings, found: Undeclared) -> None:
    """Prints what goes, and the edited models, which stay."""
    show_change(settings, found.file, found.after or "")
    for change in found.models:
        what = "gone" if change.kind == "gone" else "stays"
        say(f"{what:<8}{change.path.relative_to(settings.dbt_project_dir)}")


def refuse_changed(settings: Settings, found: Undeclared) -> None:
    """Raises LakehouseError where somebody has changed the declaration, or one of the models, since it was planned."""
    from scaffold import plan

    refuse_changed_file(found.file)
    now = plan(settings.dbt_project_dir, found.source, ())
    if changed := sorted({change.path for change in set(now) ^ set(found.models)}):
        raise LakehouseError(f"{changed[0]} was changed meanwhile: run this again")


def undeclare(settings: Settings, found: Undeclared) -> None:
    """Does it. Raises LakehouseError where something was changed meanwhile, and, with all of it done, where models that
    stay read what is gone."""
    from lakehouse.declarations.manifest import ensure_manifest
    from scaffold import apply

    refuse_changed(settings, found)
    if found.after is None:
        found.file.path.unlink()
    else:
        write_atomically(found.file.path, found.after)
    apply(found.models)
    for folder in {change.path.parent for change in found.models}:
        if not any(folder.iterdir()):
            folder.rmdir()
    try:
        ensure_manifest(settings)
    except LakehouseError as error:
        raise LakehouseError(f"{found.source}: removed; models of yours still read it, correct them: {error}") from None
