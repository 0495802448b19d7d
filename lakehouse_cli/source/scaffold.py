"""`lakehouse scaffold`: the dbt models that the declarations mean, and a declaration proposed from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations


def scaffold(
    sources: Annotated[list[str] | None, typer.Argument(help="Sources; default: all declared ones.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file is out of date.")] = False,
    propose: Annotated[bool, typer.Option("--propose", help="Print a declaration proposed from the database.")] = False,
    schema: Annotated[
        list[str] | None,
        typer.Option(help="Schema to propose from; repeatable.  [default: public]"),
    ] = None,
) -> None:
    """Write parsed, stage and vault models, with tests and descriptions, from the declarations in models/sources/.

    For a source without a declaration, proposes one from its database: keys become hubs, foreign keys links, other
    columns satellites. Never overwrites edited files.
    """
    from scaffold import declared_alone

    if propose and (check or not sources):
        raise typer.BadParameter("--propose prints a declaration per source: name one or more, without --check")
    settings = load_settings()
    declared, schemas = declared_alone(settings), schema or ["public"]
    if propose:
        for name in sources or ():
            for line in _proposal(settings, declared, name, schemas).splitlines():
                say(line)
        return
    for name in sources or ():
        if name not in _names(declared):
            _propose_file(settings, declared, name, schemas, check)
            declared = declared_alone(settings)
    drifted = sum(_scaffold(settings, declared, name, check) for name in sources or _names(declared))
    if check and drifted:
        again = " ".join(["lakehouse scaffold", *(sources or ())])
        raise LakehouseError(f"{drifted} files differ from the declarations: run `{again}`")


def _scaffold(settings: Settings, declared: Declarations, source: str, check: bool) -> int:
    from scaffold import apply, models_of, plan

    project = settings.dbt_project_dir
    changes = plan(project, source, models_of(declared, source))
    for change in changes:
        if change.kind != "same":
            say(f"{change.kind:<8}{change.path.relative_to(project)}")
    if not check:
        apply(changes)
    return sum(change.kind in ("new", "changed", "gone") for change in changes)


def _propose_file(settings: Settings, declared: Declarations, source: str, schemas: list[str], check: bool) -> None:
    if check:
        raise LakehouseError(f"source {source!r} is not declared: `lakehouse scaffold {source}` proposes a declaration")
    file = settings.dbt_project_dir / "models" / "sources" / f"{source}.yml"
    if file.exists():
        raise LakehouseError(f"{file}: declares no table of source {source!r}: add one, or remove the file")
    file.write_text(_proposal(settings, declared, source, schemas))
    say(f"proposed models/sources/{file.name}: check it and choose meaningful names")


def _proposal(settings: Settings, declared: Declarations, source: str, schemas: list[str]) -> str:
    from scaffold import propose

    others = [table.vault.hub for table in declared.tables if table.source != source and table.vault]
    return propose(settings, source, schemas, [hub.name for hub in others if hub])


def _names(declared: Declarations) -> list[str]:
    return [source.name for source in declared.sources]
