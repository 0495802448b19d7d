"""`lakehouse reconcile`: is the lake what the source is?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lakehouse.declarations import load_declarations
from lakehouse.settings import load_settings

if TYPE_CHECKING:
    from ingestion.reconcile import TableComparison


def reconcile(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Sources or source.table names; all when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare every column of every row of the source with the lake's current view; exits 1 on a difference.

    Changes that came after the lake was last built count as differences: compare while the source is quiet, or
    ingest and load again first. Columns that the declaration excludes or masks are left out.
    """
    from ingestion.reconcile import reconcile as run

    settings = load_settings()
    console = Console(stderr=True)
    results: list[TableComparison] = []
    with console.status("comparing", spinner="line") as status:
        for result in run(settings, load_declarations(settings), tables or ()):
            results.append(result)
            status.update(f"compared {result.source}.{result.table}")
    if as_json:
        print(json.dumps([result.as_dict() for result in results]))
    else:
        _print(results)
    if not all(result.equal for result in results):
        raise typer.Exit(1)


def _print(results: list[TableComparison]) -> None:
    headings = ("source rows", "lake rows", "missing", "extra", "differing", "columns", "seconds")
    print(f"{'table':<30}" + "".join(f"{heading:>13}" for heading in headings))
    for result in results:
        counts = (result.source_rows, result.lake_rows, result.missing, result.extra, result.differing)
        cells = [f"{count:,}" for count in (*counts, len(result.columns))] + [f"{result.seconds:.1f}"]
        verdict = "equal" if result.equal else "DIFFERENT"
        print(f"{f'{result.source}.{result.table}':<30}" + "".join(f"{cell:>13}" for cell in cells), verdict)
    for result in results:
        _print_differences(result)


def _print_differences(result: TableComparison) -> None:
    where = f"{result.source}.{result.table}"
    if result.absent_columns:
        print(f"{where}: the lake has no column {', '.join(result.absent_columns)}")
    if result.unrepresentable:
        print(f"{where}: {result.unrepresentable:,} values replaced by the table's on_unrepresentable policy")
    for example in result.examples:
        key = ", ".join(f"{name}={value}" for name, value in example.key.items())
        print(f"{where}: {_WORDS[example.kind]} ({key}){_columns(example.columns)}")


_WORDS = {"missing": "not in the lake", "extra": "only in the lake", "differs": "differs"}


def _columns(columns: dict[str, tuple[str | None, str | None]]) -> str:
    texts = [f"{name}: source {ours!r}, lake {theirs!r}" for name, (ours, theirs) in columns.items()]
    return f": {'; '.join(texts)}" if texts else ""
