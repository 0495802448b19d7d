"""An erasure from beginning to end.

1. The source must not hold the subject: an event or a new snapshot would bring it back.
2. A cycle brings the lake up to date, and the lease is kept from there on: nothing that is older can land any more.
3. Tombstones are written. Killed from here on, the same command, or `--repeat`, finishes.
4. Table by table, raw first: rows are rewritten, the past is cut off, files are deleted. Before the next layer the
   queries that run are waited for: they may still be copying. Tables that dbt builds whole are built anew.
5. Everything that lies there is looked at. What nothing refers to and holds the subject (a failed write, a restored
   copy) is deleted; anything else that is left is an error, tables and folders that nobody knows among it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from erasure import tombstones
from erasure.places import raw_place
from erasure.plan import Plan, make_plan
from erasure.proof import Look, look
from erasure.steps import Erasing, Erasure, Say, open_io, parts_of, strays_of
from erasure.subjects import as_printed, held_by_source, parse_key, source_texts, spelled
from erasure.tombstones import Tombstone
from ingestion import up_to_date_alone
from ingestion.sources.postgres.connection import connect_source
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import METADATA_COLUMNS, Declarations, RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ingestion.schema.facts import TableFacts

HOW_TO_END = "an erasure that is to hold no longer: `lakehouse erase --end SOURCE.TABLE COLUMN=VALUE`"
SourceKey = dict[str, str]  # texts by source column
SETTLED = ("streaming", "parked", "paused")


def erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str],
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> Erasure:  # fmt: skip
    """Erases the subject that `column=value` words name in `source.table`; raises LakehouseError where it refuses."""
    table = declarations.named(name)
    return _erase(settings, declarations, manifest, table, [parse_key(table, key)], session, say)


def repeat(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], source: str | None = None,
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> tuple[list[Erasure], list[str]]:  # fmt: skip
    """Does every erasure again that a tombstone remembers, of one source or of all.

    Returns what was done, and what was not and why: a subject or table that is refused is in nobody else's way.
    """
    tables = {table.identifier: table for table in declarations.tables}
    wanted: dict[tuple[str, str], list[dict[str, str]]] = {}
    for stone in remembered(settings, source):
        wanted.setdefault((f"raw_{stone.source}", stone.table), []).append(stone.key)
    done: list[Erasure] = []
    problems: list[str] = []
    for name, keys in wanted.items():
        if name not in tables:
            problems.append(f"{'.'.join(name)} is declared no longer: declare it, or drop it")
            continue
        try:
            done.append(_erase(settings, declarations, manifest, tables[name], keys, session, say))
        except LakehouseError as error:
            problems.append(str(error))
    problems += [reason for erasure in done for reason in erasure.refused]
    return done, [*problems, HOW_TO_END] if problems else []


def end(settings: Settings, name: str, key: Sequence[str]) -> Tombstone:
    """Forgets the erasure of a subject, who is lawfully back; raises LakehouseError where none is remembered.

    The table need not be declared any more.
    """
    given = {column: value for column, _, value in (word.partition("=") for word in key)}
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        io = open_io(settings)
        for stone in tombstones.read(settings, io, states):
            if (f"{stone.source}.{stone.table}", stone.key) == (name, given):
                tombstones.remove(settings, io, states, stone)
                return stone
    raise LakehouseError(
        f"{name} {' '.join(key)}: no such erasure; `lakehouse erase --list` shows them as to write them"
    )


def preview(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str]
) -> tuple[Plan, Look, str | None]:
    """Where the subject is now, and what stands in the way of erasing it; changes nothing, needs no lease."""
    table = declarations.named(name)
    given = parse_key(table, key)
    with closing(open_catalog(settings)) as catalog, connect_source(settings, table.source) as source:
        facts = _position(settings, table).facts
        keys = [as_printed(source, table, facts, given)]
        plan = make_plan(settings, catalog, manifest, table, facts, keys)
        io, held = open_io(settings), held_by_source(source, table, facts, keys, _kept(table))
        problems = [f"{stray.table}: {stray.why}" for stray in strays_of(settings, catalog, io, plan)]
        problems += [held] if held else []
        return plan, look(io, parts_of(catalog, plan.parts)), "; ".join(problems) or None


def verify(settings: Settings, manifest: Mapping[str, Any], table: RawTable) -> Look:
    """Whether the erasures of a table's subjects hold: looks at everything, changes nothing, needs no lease."""
    keys = [stone.key for stone in remembered(settings, table.source) if stone.table == table.name]
    if not keys:
        return Look()
    with closing(open_catalog(settings)) as catalog:
        plan = make_plan(settings, catalog, manifest, table, _position(settings, table).facts, keys)
        io = open_io(settings)
        found = look(io, parts_of(catalog, plan.parts))
        found.findings += strays_of(settings, catalog, io, plan)
        return found


def remembered(settings: Settings, source: str | None = None) -> tuple[Tombstone, ...]:
    """The tombstones of one source, or of all."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        return tuple(s for s in tombstones.read(settings, open_io(settings), states) if source in (None, s.source))


def _erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], table: RawTable,
    keys: list[dict[str, str]], session: SparkSession | None, say: Say,
) -> Erasure:  # fmt: skip
    started = time.monotonic()
    refused: list[str] = []
    facts = _position(settings, table).facts
    with connect_source(settings, table.source) as source:
        keys = _printed(source, table, facts, keys, refused)
        keys = _free(source, table, facts, ((key, [key]) for key in keys), refused)
        say("bringing the lake up to date")
        with up_to_date_alone(settings, declarations, table.source, session) as writer:
            facts = _position(settings, table).facts
            plan = make_plan(settings, writer.catalog, manifest, table, facts, keys)
            borne = ([source_texts(table, facts, key) for key in found] for found in plan.open_keys)
            if (still := _free(source, table, facts, zip(keys, borne, strict=True), refused)) != keys:
                keys, plan = still, make_plan(settings, writer.catalog, manifest, table, facts, still)
            with store.connect_catalog(settings) as states:
                erasure = Erasing(settings, writer, states, plan, say).run(keys)
    erasure.refused = refused
    erasure.seconds = time.monotonic() - started
    return erasure


def _printed(
    source: SourceConnection, table: RawTable, facts: TableFacts, keys: Iterable[SourceKey], refused: list[str]
) -> list[SourceKey]:
    """The keys as the stream prints them, each once; of those that are none, the reasons go to `refused`."""
    found: list[SourceKey] = []
    for key in keys:
        try:
            if (printed := as_printed(source, table, facts, key)) not in found:
                found.append(printed)
        except LakehouseError as error:
            refused.append(str(error))
    return found


def _free(
    source: SourceConnection,
    table: RawTable,
    facts: TableFacts,
    subjects: Iterable[tuple[SourceKey, Iterable[SourceKey]]],
    refused: list[str],
) -> list[SourceKey]:
    """Those of the subjects, each with the keys that it bears, whom the source does not hold; of the others, the
    reasons go to `refused`. Raises LakehouseError where nobody is left."""
    found: list[SourceKey] = []
    for key, borne in subjects:
        if (reason := held_by_source(source, table, facts, borne, _kept(table))) is None:
            found.append(key)
        else:
            refused.append(f"{table.source}.{table.name} {spelled(key)}: {reason}")
    if not found:
        raise LakehouseError("; ".join(refused))
    return found


def _position(settings: Settings, table: RawTable) -> store.TablePosition:
    """Where the table stands; raises LakehouseError where it has not settled."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        position = store.read_positions(states, table.source).get(table.name)
    if position is None or not position.versions:
        raise LakehouseError(f"{table.source}.{table.name} has not been ingested yet: there is nothing to erase")
    if position.state not in SETTLED:
        raise LakehouseError(
            f"{table.source}.{table.name} is {position.state}: "
            f"`lakehouse ingest --once {table.source}` first, then run this again"
        )
    return position


def _kept(table: RawTable) -> frozenset[str]:
    return raw_place(table, METADATA_COLUMNS).kept or frozenset()
