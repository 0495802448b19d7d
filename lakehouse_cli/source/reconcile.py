"""`lakehouse reconcile`: is the lake what the source is?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.declarations import load_declarations
from lakehouse.settings import load_settings
from lakehouse.text.shown import busy, cell, console, say, say_json

if TYPE_CHECKING:
    from ingestion.pipeline.repair import KeyRange
    from ingestion.verify import TableComparison
    from ingestion.verify.run import Chosen
    from lakehouse.declarations import Declarations
    from lakehouse.settings import Settings


def reconcile(
    tables: Annotated[list[str] | None, typer.Argument(help="Sources or source.table names; default: all.")] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="FIRST..END", help="Only this range of one table's first key column, without END."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the differences to the raw layer, as events; still exits 1.")
    ] = False,
    views: Annotated[
        bool, typer.Option("--views", help="Refresh the current_ views; compare them with the source of now.")
    ] = False,
    mirrors: Annotated[
        bool, typer.Option("--mirrors", help="Compare the mirrors, refreshed at the cut; stop the follower first.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare every column of every row of the source with the raw layer, at one cut.

    Exits 1 if a table differs or could not be compared (it has no key, or is not streaming).

    Brings the lake up to a consistent point and compares at exactly that point, so both sides may be busy. Excluded
    columns are not compared. With --views the lake is brought up to the source and mirrors are refreshed. Then the
    source must not change; a view that reads no mirror needs that since the last load.
    """
    from ingestion import verify

    if views and (repair or keys):
        raise typer.BadParameter("--views compares whole tables and repairs nothing: omit --keys and --repair")
    if mirrors and (views or repair or keys):
        raise typer.BadParameter("--mirrors compares whole mirrors and repairs nothing: omit --views, --keys, --repair")
    if keys and (len(tables or ()) != 1 or "." not in (tables or [""])[0]):
        raise typer.BadParameter("--keys needs exactly one table, as SOURCE.TABLE")
    settings = load_settings()
    declarations, chosen = load_declarations(settings), tables or ()
    if views:
        _refresh(settings, declarations, verify.select(declarations, chosen))
        found = verify.reconcile(settings, declarations, chosen)
    else:
        found = verify.reconcile_raw(
            settings, declarations, chosen, key_range=_key_range(keys), repair=repair, mirrors=mirrors
        )
    results = _watched(found, sum(len(tables) for _, tables in verify.select(declarations, chosen)))
    if as_json:
        say_json([result.as_dict() for result in results])
    else:
        _print(results)
    if not all(result.equal for result in results):
        raise typer.Exit(1)


def _refresh(settings: Settings, declarations: Declarations, chosen: Chosen) -> None:
    """Brings what views read to now: until the next refresh some wait before a change that they cannot follow."""
    from ingestion import bring_up, refresh_mirrors
    from ingestion.sources.kinds import source_of

    with busy(console(error=True), "refreshing mirrors") as now:
        for source, tables in chosen:
            holds_tables = source_of(settings, source.name).holds_tables
            if holds_tables and any(table.is_mirrored for table in tables):
                now(f"refreshing the mirrors of {source.name}")
                bring_up(settings, declarations, source.name)
                refresh_mirrors(settings, declarations, source.name)


def _watched(found: Iterable[TableComparison], total: int) -> list[TableComparison]:
    out = console(error=True)
    results: list[TableComparison] = []
    with busy(out, "comparing") as now:
        out.print(f"comparing {total} tables")
        for result in found:
            results.append(result)
            out.print(cell(_progress(result, len(results), total)), soft_wrap=True)
            now(f"comparing, {len(results)} of {total} tables done")
    return results


def _progress(result: TableComparison, done: int, total: int) -> str:
    rows = "" if result.aside else f", {result.source_rows:,} rows"
    return f"{done}/{total} {result.source}.{result.table}: {result.verdict}{rows}"


def _key_range(keys: str | None) -> KeyRange | None:
    from ingestion.pipeline.repair import KeyRange

    if keys is None:
        return None
    first, dots, end = keys.partition("..")
    if not dots:
        raise typer.BadParameter(f"{keys!r} is not FIRST..END; one of the two may be omitted")
    return KeyRange(first or None, end or None)


def _print(results: list[TableComparison]) -> None:
    headings = ("source rows", "lake rows", "missing", "extra", "differing", "columns", "seconds")
    say(f"{'table':<30}" + "".join(f"{heading:>13}" for heading in headings))
    for result in results:
        counts = (result.source_rows, result.lake_rows, result.missing, result.extra, result.differing)
        cells = [f"{count:,}" for count in (*counts, len(result.columns))] + [f"{result.seconds:.1f}"]
        say(f"{f'{result.source}.{result.table}':<30}" + "".join(f"{cell:>13}" for cell in cells), result.verdict)
    for result in results:
        _print_differences(result)


def _print_differences(result: TableComparison) -> None:
    where = f"{result.source}.{result.table}"
    if result.aside:
        say(f"{where}: not compared, it is {result.aside}")
    if result.doubled:
        say(f"{where}: beside these differences it is {result.doubled}")
    if result.absent_columns:
        say(f"{where}: the lake has no column {', '.join(result.absent_columns)}")
    if result.unrepresentable:
        say(f"{where}: {result.unrepresentable:,} values replaced by the table's on_unrepresentable policy")
    for example in result.examples:
        key = ", ".join(f"{name}={value}" for name, value in example.key.items())
        say(f"{where}: {_WORDS[example.kind]} ({key}){_columns(example.columns)}")
    if result.repaired:
        counts = ", ".join(f"{op} {count:,}" for op, count in sorted(result.repaired.items()))
        say(f"{where}: repaired, as new raw events: {counts}")


_WORDS = {"missing": "not in the lake", "extra": "only in the lake", "differs": "differs"}


def _columns(columns: dict[str, tuple[str | None, str | None]]) -> str:
    texts = [f"{name}: source {ours!r}, lake {theirs!r}" for name, (ours, theirs) in columns.items()]
    return f": {'; '.join(texts)}" if texts else ""
