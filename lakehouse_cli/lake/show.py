"""`lakehouse show`: what is where, from the catalog's metadata; no data file is read, but for what `--cut-of` asks."""

from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from lakehouse.catalog.open import newest_data_snapshot, open_catalog
from lakehouse.declarations.dbt.yaml_files import declared_sources
from lakehouse.migrations import refuse_former_state
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import print_table, say, say_json

LAYERS = ("raw", "parsed", "vault", "marts", "meta")


@dataclass(frozen=True)
class LakeTable:
    """One table: rows by its snapshot's summary, and when its data last changed."""

    layer: str
    namespace: str
    name: str
    rows: int
    changed_at: datetime | None


@dataclass(frozen=True)
class LakeCut:
    """The newest cut of a source."""

    source: str
    epoch: int
    cut_lsn: str
    cut_at: datetime
    age_seconds: float


def show(
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    cut_of: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE=WHAT",
            help="the first cut that has a transaction (retail=xid:7345), an LSN (retail=0/3C87757), or all that was "
            "committed until a time (retail=2026-11-20T10:00, in UTC; of topics, all that was read until then)",
        ),
    ] = None,
) -> None:
    """Show the lake: rows per table and layer, and the age of each source's cut.

    With --cut-of nothing but that cut; it ends with an error that says so if the lake has none, yet or any more.
    """
    settings = load_settings()
    refuse_former_state(settings)
    if cut_of is not None:
        _show_first(settings, cut_of, json)
        return
    tables, cuts = lake_tables(settings), newest_cuts(settings)
    if json:
        shown = {"tables": [asdict(t) for t in tables], "cuts": [asdict(c) for c in cuts]}
        say_json(shown, indent=2)
        return
    _print_tables(tables)
    _print_cuts(cuts)


def _show_first(settings: Settings, asked: str, json: bool) -> None:
    """The first cut of something that happened in a source."""
    from lakehouse_serve.past.commits import first_cuts
    from lakehouse_serve.past.states import said_of_later

    with closing(open_catalog(settings)) as catalog:
        found = first_cuts(catalog, asked)
    for f in found:
        if f.later:
            say(f"{f.cut.position}: {said_of_later(f.cut, f.later)}", error=True)
    if json:
        named = [{"cut": str(f.cut.position), "commit": f.commit and str(f.commit)} for f in found]
        whole = [asdict(f) for f in found]
        say_json([{**of, **name} for of, name in zip(whole, named, strict=True)], indent=2)
        return
    rows = [
        (
            str(f.cut.position), f.cut.said_at, str(f.cut.published_at or ""), str(f.commit or ""),
            str(f.committed_at or ""), ", ".join(f"{name} {count:,}" for name, count in sorted(f.rows.items())),
        )
        for f in found
    ]  # fmt: skip
    print_table(("cut", "is of", "published at", "commit", "committed at", "rows in raw"), rows)
    for f in found:
        if f.left_out:
            say(
                f"{f.cut.position} does not cover {', '.join(f.left_out)}, parked, paused or being resynced", error=True
            )


def lake_tables(settings: Settings) -> list[LakeTable]:
    """Every Iceberg table of the lake, by layer."""
    catalog = open_catalog(settings)
    try:
        found = [
            (namespace[0], identifier[-1])
            for namespace in catalog.list_namespaces()
            for identifier in catalog.list_tables(namespace)
        ]
        tables = []
        for namespace, name in found:
            fact = newest_data_snapshot(catalog, namespace, name)
            layer = "raw" if namespace.startswith("raw_") else namespace
            rows, changed = (fact.total_rows, fact.committed_at) if fact else (0, None)
            tables.append(LakeTable(layer, namespace, name, rows, changed))
    finally:
        catalog.close()
    order = {layer: index for index, layer in enumerate(LAYERS)}
    return sorted(tables, key=lambda t: (order.get(t.layer, len(order)), t.namespace, t.name))


def newest_cuts(settings: Settings) -> list[LakeCut]:
    """The newest cut of every source that has one, and that the project, as far as it can be read, declares."""
    from ingestion.state.store import connect_catalog, ensure_state, read_stream

    with connect_catalog(settings) as states:
        ensure_state(states)
        sources = states.execute("SELECT source FROM lakehouse.streams ORDER BY source").fetchall()
        streams = [stream for (source,) in sources if (stream := read_stream(states, source)) is not None]
    declared = declared_sources(settings.dbt_project_dir)  # the state outlasts `lakehouse remove`
    now = datetime.now(UTC)
    return [
        LakeCut(s.source, s.epoch, s.cut_position.text, s.cut_at, (now - s.cut_at).total_seconds())
        for s in streams
        if s.cut_position is not None and s.cut_at is not None and (declared is None or s.source in declared)
    ]


def _print_tables(tables: list[LakeTable]) -> None:
    rows = [
        (
            t.layer, f"{t.namespace}.{t.name}", f"{t.rows:,}",
            f"{t.changed_at:%Y-%m-%d %H:%M:%S}" if t.changed_at else "never",
        )
        for t in tables
    ]  # fmt: skip
    print_table(("layer", "table", "rows", "data changed at (UTC)"), rows, right=("rows",))


def _print_cuts(cuts: list[LakeCut]) -> None:
    print_table(
        ("source", "epoch", "cut", "cut at (UTC)", "age"),
        [(c.source, c.epoch, c.cut_lsn, f"{c.cut_at:%Y-%m-%d %H:%M:%S}", f"{c.age_seconds:.0f} s") for c in cuts],
    )
