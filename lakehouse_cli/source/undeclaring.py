"""Takes a source out of the project: its declaration, and what scaffold wrote of it and nobody has edited."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings
from lakehouse.text.shown import say, waiting
from lakehouse_cli.source.declaring import accepted, show_change
from lakehouse_cli.source.declaring import refuse_changed as refuse_changed_file

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations
    from scaffold import Change, SourceFile


@dataclass(frozen=True)
class Undeclared:
    """What goes: the source's place in `file`, or the file, where `after` is None. What `left` then declares decides on
    the models: those of the source, and those of others that name it."""

    source: str
    file: "SourceFile"
    after: str | None
    left: "Declarations"
    models: "tuple[Change, ...]"


def undeclared(settings: Settings, source: str) -> Undeclared:
    """Plans it. Raises LakehouseError where the declaration is for a person to edit, or the others would be refused."""
    from scaffold import declaring_file, without_source

    file = declaring_file(settings.dbt_project_dir, source)
    after = without_source(file, source)
    left = accepted(settings, file, after)
    return Undeclared(source, file, after, left, _models(settings, source, left))


def _models(settings: Settings, source: str, left: "Declarations") -> "tuple[Change, ...]":
    from scaffold import elsewhere, not_written, plan

    project = settings.dbt_project_dir
    others = elsewhere(project, left, [source])
    for change in others:
        if change.kind == "behind":
            first = " ".join(sorted(not_written(project, change) - {source}))
            raise LakehouseError(
                f"{change.path.relative_to(project)} cannot be written without {source}: models differ from their "
                f"declarations, run `lakehouse scaffold {first}` first"
            )
    return (*plan(project, source, ()), *others)


def show(settings: Settings, found: Undeclared) -> None:
    """Prints what goes and changes, and the edited models, which stay."""
    show_change(settings, found.file, found.after or "")
    for change in found.models:
        what = "stays" if change.kind == "yours" else change.kind
        say(f"{what:<8}{change.path.relative_to(settings.dbt_project_dir)}")


def readers(settings: Settings, source: str, gone: Iterable["Change"], table: str | None = None) -> list[str]:
    """The files of models that people have written and that read what goes: raw tables of the source, or that one, and
    models that are `gone`. Raises LakehouseError where the project does not parse."""
    from lakehouse.declarations.dbt.manifest import load_manifest
    from scaffold import is_own

    project, manifest = settings.dbt_project_dir, load_manifest(settings)
    files = {str(change.path.relative_to(project)) for change in gone if change.kind == "gone"}
    goes = {key for key, node in manifest["nodes"].items() if node["original_file_path"] in files}
    goes |= {
        key
        for key, node in manifest["sources"].items()
        if node["source_name"] == source and table in (None, node["name"])
    }
    left = (node for key, node in manifest["nodes"].items() if key not in goes)
    found = {n["original_file_path"] for n in left if not goes.isdisjoint(n["depends_on"].get("nodes", ()))}
    texts = {file: (project / file).read_text() for file in found if file.endswith((".sql", ".py"))}
    return sorted(file for file, text in texts.items() if not is_own(text))


def show_readers(
    settings: Settings, source: str, gone: Iterable["Change"], drop_tables: bool, dry_run: bool,
    table: str | None = None,
) -> None:  # fmt: skip
    """Prints the readers. Raises LakehouseError where they would lose the tables with their history."""
    name = source if table is None else f"{source}.{table}"
    try:
        with waiting(f"asking dbt what reads {name}"):
            found = readers(settings, source, gone, table)
    except LakehouseError as error:
        if drop_tables:
            raise LakehouseError(f"{name}: nothing was dropped, as nobody knows what reads it: {error}") from None
        return  # without --drop-tables nothing is lost, and the end says what is wrong
    for file in found:
        say(f"{'reads':<8}{file}")
    if found and drop_tables and not dry_run:
        raise LakehouseError(
            f"{name}: nothing was dropped, because {', '.join(found)} would read what is gone: change them first, or "
            "leave --drop-tables out"
        )


def refuse_changed(settings: Settings, found: Undeclared) -> None:
    """Raises LakehouseError where somebody has changed the declaration, or one of the models, since it was planned."""
    refuse_changed_file(found.file)
    now = _models(settings, found.source, found.left)
    if changed := sorted({change.path for change in set(now) ^ set(found.models)}):
        raise LakehouseError(f"{changed[0]} was changed meanwhile: run this again")


def undeclare(settings: Settings, found: Undeclared) -> None:
    """Does it. Raises LakehouseError where something was changed meanwhile, and, with all of it done, where models that
    stay read what is gone."""
    from scaffold import apply

    refuse_changed(settings, found)
    apply(found.models)
    for folder in {change.path.parent for change in found.models}:
        if not any(folder.iterdir()):
            folder.rmdir()
    if found.after is None:  # last: whoever is interrupted can run all of it again
        found.file.path.unlink()
    else:
        write_atomically(found.file.path, found.after)
    refuse_readers(settings, found.source)


def refuse_readers(settings: Settings, removed: str) -> None:
    """Raises LakehouseError where models that stay read what was removed."""
    from lakehouse.declarations.dbt.manifest import ensure_manifest

    try:
        with waiting(f"asking dbt whether the project goes together without {removed}"):
            ensure_manifest(settings)
    except LakehouseError as error:
        raise LakehouseError(f"{removed}: removed; models of yours still read it, correct them: {error}") from None
