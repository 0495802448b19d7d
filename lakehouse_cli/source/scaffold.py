"""`lakehouse scaffold`: the dbt models that the declarations mean, and a declaration proposed from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations


@dataclass(frozen=True)
class _Wanted:
    """What a proposal is made of."""

    schemas: tuple[str, ...] = ("public",)
    tables: tuple[str, ...] = ()
    vault: bool = True


def scaffold(
    sources: Annotated[list[str] | None, typer.Argument(help="Sources; default: all declared ones.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file is out of date.")] = False,
    propose: Annotated[bool, typer.Option("--propose", help="Print a declaration proposed from the database.")] = False,
    schema: Annotated[
        list[str] | None,
        typer.Option(help="Schema to propose from; repeatable.  [default: public]"),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option(help="Table to propose, alone or as schema.table; repeatable.  [default: all]")
    ] = None,
    vault: Annotated[bool, typer.Option("--vault/--no-vault", help="Propose a vault, or raw and parsed alone.")] = True,
) -> None:
    """Write parsed, stage and vault models, with tests and descriptions, from the declarations in models/sources/.

    For a source without a declaration, proposes one from its database: things become hubs, what relates them links,
    their attributes satellites. Writes the models of other sources that this changes, too, as those of a shared hub.
    Never overwrites edited files.
    """
    from scaffold import declared_alone

    if propose and (check or not sources):
        raise typer.BadParameter("--propose prints a declaration per source: name one or more, without --check")
    settings = load_settings()
    declared = declared_alone(settings)
    wanted = _Wanted(tuple(schema or ["public"]), tuple(tables or ()), vault)
    undeclared = [name for name in sources or () if propose or name not in _names(declared)]
    if wanted != _Wanted() and not undeclared:
        raise typer.BadParameter("--schema, --tables and --no-vault are for a proposal: add --propose to print one")
    for name in undeclared:
        _check_name(name)
    if propose:
        for name in undeclared:
            for line in _proposal(settings, declared, name, wanted).splitlines():
                say(line)
        return
    for name in undeclared:
        _propose_file(settings, declared, name, wanted, check)
        if vault or name == undeclared[-1]:  # a vault takes names that the next proposal must not
            declared = declared_alone(settings)
    drifted = write_models(settings, declared, list(dict.fromkeys(sources or _names(declared))), check)
    if check and drifted:
        again = " ".join(["lakehouse scaffold", *(sources or ())])
        raise LakehouseError(f"{drifted} files differ from the declarations: run `{again}`")
    for name in undeclared:
        say(f"then, once the proposal is as you want it: `lakehouse prepare {name}`")


def _check_name(source: str) -> None:
    """Before anything is written: a project with a source of another name is refused as a whole."""
    from lakehouse.text.names import NAME

    if not NAME.fullmatch(source):
        raise LakehouseError(
            f"source {source!r} cannot be declared by this name, of which names in the lake are made: use a-z, 0-9 "
            "and _, beginning with a letter, also in its settings"
        )


def write_models(settings: Settings, declared: Declarations, sources: Sequence[str], check: bool = False) -> int:
    """Writes the sources' models, and what they change in those of others, or only says which; returns how many
    differ."""
    from scaffold import apply, elsewhere, models_of, not_written, plan

    project = settings.dbt_project_dir
    changes = [change for source in sources for change in plan(project, source, models_of(declared, source))]
    changes += elsewhere(project, declared, sources)
    for change in changes:
        if change.kind != "same":
            say(f"{change.kind:<8}{change.path.relative_to(project)}")
    behind = [not_written(project, change) for change in changes if change.kind == "behind"]
    for source in sorted(set[str]().union(*behind) - {*sources}):
        say(f"{source} differs from its declaration: `lakehouse scaffold {source}` writes what is behind")
    if not check:
        apply(changes)
    return sum(change.kind in ("new", "changed", "gone") for change in changes)


def _propose_file(settings: Settings, declared: Declarations, source: str, wanted: _Wanted, check: bool) -> None:
    if check:
        raise LakehouseError(f"source {source!r} is not declared: `lakehouse scaffold {source}` proposes a declaration")
    file = settings.dbt_project_dir / "models" / "sources" / f"{source}.yml"
    if file.exists():
        raise LakehouseError(f"{file}: declares no table of source {source!r}: add one, or remove the file")
    proposed = _proposal(settings, declared, source, wanted)
    write_atomically(file, proposed)
    say(f"proposed models/sources/{file.name}: check it and choose meaningful names")
    remarks = [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), proposed.splitlines())]
    for remark in remarks[1:]:  # the first one says what the file is
        say(remark)
    if any(remark.lstrip().startswith("schema ") for remark in remarks):
        say(f"`lakehouse add {source}.SCHEMA.TABLE` declares a table of another schema")


def _proposal(settings: Settings, declared: Declarations, source: str, wanted: _Wanted) -> str:
    from scaffold import propose
    from scaffold.entities import names_in_vault

    taken = names_in_vault(table for table in declared.tables if table.source != source)
    return propose(settings, source, wanted.schemas, taken, wanted.tables, wanted.vault)


def _names(declared: Declarations) -> list[str]:
    return [source.name for source in declared.sources]
