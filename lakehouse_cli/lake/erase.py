"""`lakehouse erase`: removes a data subject from the lake and proves it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import busy, console, say, say_json

if TYPE_CHECKING:
    from erasure.plan import Plan
    from erasure.proof import Search
    from erasure.steps import Erasure

SHOWN = 10
DROPPED = "dropped; comes back once the table is in a cut again (`lakehouse status`)"


def erase(
    table: Annotated[
        str | None, typer.Argument(metavar="SOURCE.TABLE", help="The table with the subject's row.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN=VALUE...", help="The row's key, or columns that name the person in events without a key."
        ),
    ] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="Repeat all erasures, after any restore.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show what was erased, when and by whom.")] = False,
    end: Annotated[
        bool, typer.Option("--end", help="Forget an erasure, for a person who is lawfully back: --repeat skips it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print where the subject's data is; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove one data subject's personal data from every layer, old snapshot and file, and prove that it is gone.

    Keys, counts and the history of all other persons are kept. Exits 1 if anything is left.
    """
    from erasure import run
    from lakehouse_serve.export import export_again

    if (table is not None) + repeat + list_ != 1 or (dry_run + end and table is None) or (dry_run and end):
        raise typer.BadParameter(
            "give SOURCE.TABLE and the row's key, optionally with --dry-run or --end, or one of --repeat and --list"
        )
    settings = load_settings()
    if table and end:
        return _end(settings, table, key or (), as_json)
    if list_:
        return _list(settings, as_json)
    manifest = load_manifest(settings)
    declarations = declarations_from(manifest, settings.dbt_project_dir)
    if table and dry_run:
        return _print_preview(*run.preview(settings, declarations, manifest, table, key or ()), as_json)
    if not (yes or repeat):
        _ask(f"{table} {' '.join(key or ())}")
    problems: list[str] = []
    try:
        with busy(on := console(error=True), "erasing") as now:
            step = now if on.is_terminal else partial(say, error=True)
            if table is None:
                done, problems = run.repeat(settings, declarations, manifest, say=step)
            else:
                done = [run.erase(settings, declarations, manifest, table, key or (), say=step)]
    finally:  # also one that broke off may have deleted files
        problem = export_again(settings)
        if problem and sys.exc_info()[0]:
            say(problem, error=True)
    say_json([erasure.as_dict() for erasure in done]) if as_json else _print(done)
    _refuse_left(done, [*problems, *([problem] if problem else [])])


def _refuse_left(done: Iterable[Erasure], problems: list[str]) -> None:
    if left := [trace for erasure in done for trace in erasure.left]:
        problems = [f"{len(left)} objects are left, first {left[0].path}: {left[0].why}", *problems]
    if problems:
        raise LakehouseError("; ".join(problems))


def _end(settings: Settings, table: str, key: Sequence[str], as_json: bool) -> None:
    from erasure import run

    stone = run.end(settings, table, key)
    if as_json:
        say_json(asdict(stone))
    else:
        say(f"{stone}: the erasure is forgotten; the removed data does not come back")


def _list(settings: Settings, as_json: bool) -> None:
    from erasure import run

    stones = run.remembered(settings)
    if as_json:
        return say_json([asdict(stone) for stone in stones])
    for stone in stones:
        say(f"{stone}: asked {stone.asked_at} by {stone.asked_by}, proved {stone.done_at or 'not yet'}")
    if not stones:
        say("nothing was erased")


def _ask(subject: str) -> None:
    if not sys.stdin.isatty():
        raise LakehouseError(f"erasing {subject} cannot be undone: add --yes, or check first with --dry-run")
    typer.confirm(f"Erase {subject}? This cannot be undone.", abort=True)


def _print_preview(plan: Plan, look: Search, problem: str | None, as_json: bool) -> None:
    from erasure.origins import elsewhere

    whole = [str(part.target) for part in plan.derived if part.target.treatment == "rebuild"]
    beyond = elsewhere(plan.table)
    if as_json:
        found = [asdict(trace) for trace in look.traces]
        say_json({"findings": found, "rebuilt": whole, "in_the_way": problem, "elsewhere": beyond})
        return
    for name in dict.fromkeys(trace.table for trace in look.traces):
        mine = [trace for trace in look.traces if trace.table == name]
        say(f"{name:<40} {sum(f.rows for f in mine):>8,} rows in {len(mine):,} files, its old snapshots are expired")
    for name in whole:
        say(f"{name:<40} is rebuilt, its old snapshots are expired")
    for name in (str(part.target) for part in plan.derived if part.target.treatment == "discard"):
        say(f"{name:<40} is dropped: a test stored rows there, and the next one does again")
    if not look.traces:
        say("the lake contains no personal data of the subject")
    if beyond:
        say(beyond)
    if problem:
        say(f"in the way: {problem}")


def _print(erasures: Iterable[Erasure]) -> None:
    for erasure in erasures:
        for done in erasure.tables.values():
            what = DROPPED if done.dropped else "rebuilt" if done.rebuilt else f"{done.rewritten:,} files rewritten"
            say(f"{done.table:<40} {what}, {done.expired:,} snapshots expired, {done.deleted:,} files deleted")
        if erasure.unreadable_records:
            say(f"{erasure.unreadable_records:,} unreadable records are kept: none was found to be the subject's")
        if erasure.nameless:
            say(f"{erasure.nameless:,} events are kept that do not say whose they are")
        verdict = f"{len(erasure.left)} STILL HOLD IT" if erasure.left else "nothing left"
        looked = f"{erasure.objects:,} objects, {erasure.bytes:,} bytes searched for rows and {erasure.values:,} values"
        common = f"{erasure.values_in_common:,} too short or not only the subject's"
        say(f"{'; '.join(erasure.subjects)}: {looked} ({common}): {verdict}")
        for trace in erasure.left[:SHOWN]:
            say(f"  {trace.table}: {trace.path}: {trace.why}")
        if erasure.elsewhere:
            say(erasure.elsewhere)
