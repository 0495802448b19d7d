"""`lakehouse mirror`: brings mirrors to the newest cut, once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.declarations import load_declarations
from lakehouse.settings import load_settings
from lakehouse.text.shown import busy, console, say, say_json

if TYPE_CHECKING:
    from ingestion.mirrors.refresh import RefreshReport


def mirror(
    sources: Annotated[list[str] | None, typer.Argument(help="Sources; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Bring the mirrors, mirror_<source>.<table>, to the newest cut of their source, all of them together.

    A follower does so by itself, on their interval. Exits 1 if a mirror stays as it was.
    """
    from ingestion import refresh_mirrors

    settings = load_settings()
    declarations = load_declarations(settings)
    names = [declarations.source(name).name for name in sources or [s.name for s in declarations.sources]]
    reports: list[RefreshReport] = []
    with busy(console(error=True), "refreshing mirrors") as now:
        for name in names:
            now(f"refreshing the mirrors of {name}")
            reports.append(refresh_mirrors(settings, declarations, name))
    if as_json:
        say_json([asdict(report) for report in reports])
    else:
        _print(reports)
    if any(report.aside for report in reports):
        raise typer.Exit(1)


def _print(reports: list[RefreshReport]) -> None:
    for report in reports:
        say(f"{report.source}: mirrors at {report.position or 'no cut yet'}")
        for made in report.written:
            what = "written anew" if made.anew else f"{made.changed:,} changed, {made.gone:,} gone"
            say(f"  {made.name:<30}{made.rows:>13,} rows, {what}, {made.seconds:.1f} s")
        for name in report.unchanged:
            say(f"  {name:<30}unchanged")
        for name, why in report.reasons.items():
            say(f"  {name:<30}stays as it was: {why}")
