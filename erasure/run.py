"""An erasure from beginning to end.

1. The source must not hold the subject's personal data: an event or a new snapshot would bring it back. Then it waits
   for loads, and keeps the next ones out to the end: one that has read the subject's rows before writes them whenever
   it likes, in tables that were searched already. The lease comes second: a load may wait for it, and holds the lock.
2. A cycle brings the lake up to date. The lease is held from then on, so that no older change can land. By topics,
   what is older may come later: the subject's newest change has to have come. Of plain events it has to be a delete,
   where they have a key; where they have none, nothing tells that somebody is gone.
3. Tombstones are written. After a kill from here on, the same command, or `--repeat`, finishes.
4. Maintenance of these tables ends first, and waits: a compaction that has read the subject's rows writes them again.
   Table by table, raw first: rows are rewritten, old snapshots expired, files deleted. Before the next layer it waits
   for running queries, which may still copy old rows. The mirror is dropped with all its files and made anew. Tables
   that dbt builds whole are rebuilt.
5. Every stored object is searched. Unreferenced objects with the subject's data (a failed write, a restored copy) are
   deleted; anything else that is found is an error, including unknown tables and folders.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from erasure import tombstones
from erasure.origins import Origin, elsewhere, origin_of
from erasure.plan import Plan, make_plan
from erasure.proof import Search, Trace, search
from erasure.spellings import may_differ
from erasure.steps import Erasing, Erasure, Say, kept_back, no_maintenance, parts_of, strays_of
from erasure.subjects import named_by, named_now, parse_key, source_texts, spelled, typing_of
from erasure.targets import sources_to_lock
from erasure.tombstones import FOLDER, Tombstone
from ingestion import mirrors_held, up_to_date_alone
from ingestion.state import store
from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.writing.next_tables import drop_next, no_next_tables
from lakehouse.declarations import Declarations, RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.presence import writing
from lakehouse.servers.table_locks import KEEPALIVE
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from erasure.key_periods import Key
    from ingestion.schema.facts import TableFacts

HOW_TO_END = "an erasure that is to hold no longer: `lakehouse erase --end SOURCE.TABLE COLUMN=VALUE`"
SourceKey = dict[str, str]  # texts by source column
SETTLED = ("streaming", "parked", "paused")


def erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str],
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> Erasure:  # fmt: skip
    """Erases the subject that `column=value` words name in `source.table`; raises LakehouseError where it refuses."""
    table, given = _subject(declarations, name, key)
    earlier, _ = _named(settings, table, _stones_of(settings, table))
    return _erase(settings, declarations, manifest, table, [given], earlier, session, say)


def repeat(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], source: str | None = None,
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> tuple[list[Erasure], list[str]]:  # fmt: skip
    """Repeats every erasure that has a tombstone, of one source or of all.

    Returns the erasures and the problems: a subject or table that is refused does not stop the others.
    """
    tables = {table.identifier: table for table in declarations.tables}
    wanted: dict[tuple[str, str], list[Tombstone]] = {}
    for stone in remembered(settings, source):
        wanted.setdefault((f"raw_{stone.source}", stone.table), []).append(stone)
    done: list[Erasure] = []
    problems: list[str] = []
    for name, stones in wanted.items():
        if name not in tables:
            problems.append(f"{'.'.join(name)} is no longer declared: declare it, or drop it")
            continue
        for table, own in _by_names(tables[name], stones):
            try:
                named, foreign = _named(settings, table, own)
                problems += foreign.values()
                if named:
                    keys = [key for key, _ in named]
                    done.append(_erase(settings, declarations, manifest, table, keys, named, session, say))
            except LakehouseError as error:
                problems.append(str(error))
    problems += [reason for erasure in done for reason in erasure.refused]
    return done, [*problems, HOW_TO_END] if problems else []


def end(settings: Settings, name: str, key: Sequence[str]) -> Tombstone:
    """Forgets the erasure of a subject who is lawfully back; raises LakehouseError if there is none.

    The table need not be declared any more.
    """
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        io = open_io(settings)
        for stone in tombstones.read(settings, io, states):
            named = sorted(f"{column}={value}" for column, value in stone.key.items())  # a name may have a `=`, too
            if (f"{stone.source}.{stone.table}", named) == (name, sorted(key)):
                tombstones.end(settings, io, states, stone)
                return stone
    raise LakehouseError(f"{name} {' '.join(key)}: no such erasure; `lakehouse erase --list` lists them in this form")


def preview(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str]
) -> tuple[Plan, Search, str | None]:
    """The plan, where the subject's data is, and the reason why it cannot be erased now; changes nothing."""
    table, given = _subject(declarations, name, key)
    earlier, _ = _named(settings, table, _stones_of(settings, table))
    with closing(open_catalog(settings)) as catalog, origin_of(settings, table) as origin:
        position = _position(settings, table)
        facts = position.facts
        there = origin.there(facts)
        keys = [origin.printed(there, given)]
        asked = partial(_asked, origin, table, facts, earlier)
        plan = make_plan(settings, catalog, manifest, table, facts, keys, asked)
        io, held = open_io(settings), origin.held(there, keys)
        problems = [f"{stray.table}: {stray.why}" for stray in strays_of(settings, catalog, io, plan)]
        reasons = (held, *origin.awaited(catalog, plan, facts), *plan.unloaded(position.state), *plan.mixed)
        problems += [why for why in reasons if why]
        found = search(io, parts_of(catalog, plan.parts))
        problems += kept_back(catalog, plan, {trace.table for trace in found.traces})
        return plan, found, "; ".join(problems) or None


def verify(settings: Settings, manifest: Mapping[str, Any], table: RawTable) -> Search:
    """Searches for erased subjects of a table; changes nothing and needs no lease."""
    found = Search()
    for named_table, stones in _by_names(table, _stones_of(settings, table)):
        named, foreign = _named(settings, named_table, stones)
        if named:
            with closing(open_catalog(settings)) as catalog:
                facts = _position(settings, table).facts
                keys = {spelled(key): key for key, _ in named}
                others = partial(_spellings, settings, named_table, facts, named)
                plan = make_plan(settings, catalog, manifest, named_table, facts, list(keys.values()), others)
                io = open_io(settings)
                found.add(search(io, parts_of(catalog, plan.parts)))
                found.traces += [t for t in strays_of(settings, catalog, io, plan) if t not in found.traces]
        place = ".".join(table.identifier)
        found.traces += [Trace(place, f"{FOLDER}/{id}.json", 0, why) for id, why in foreign.items()]
    return found


def _spellings(
    settings: Settings, table: RawTable, facts: TableFacts, named: Iterable[tuple[SourceKey, Tombstone]],
    raw: Table, keys: Collection[Key], kept: Collection[Key],
) -> Mapping[Key, Collection[Key]]:  # fmt: skip
    """Those that the source calls equal. Where it does not answer, or the table is gone there, those that the
    tombstones remember; raises LakehouseError for a tombstone that does not.

    Nobody is asked where the types of the key have one text for each value, and no other one is remembered.
    """
    known = _remembered(table, facts, named, raw)
    if table.kind != "kafka" and not may_differ(table, facts) and not any(known.values()):
        return dict.fromkeys(keys, ())
    try:
        with origin_of(settings, table) as origin:
            return _asked(origin, table, facts, named, raw, keys, kept)
    except (LakehouseError, psycopg.Error):
        if not known.keys() >= set(keys):
            raise
        return {key: known[key] for key in keys}


def _asked(
    origin: Origin, table: RawTable, facts: TableFacts, named: Iterable[tuple[SourceKey, Tombstone]],
    raw: Table, keys: Collection[Key], kept: Collection[Key],
) -> Mapping[Key, Collection[Key]]:  # fmt: skip
    """The spellings that the origin calls equal, also of those that tombstones remember: no row may have them any more
    while a file has, and a column of another type or collation may tell them apart now."""
    others = [other for found in _remembered(table, facts, named, raw).values() for other in found]
    return origin.spellings(origin.there(facts), raw, keys, {*kept, *others})


def _remembered(
    table: RawTable, facts: TableFacts, named: Iterable[tuple[SourceKey, Tombstone]], raw: Table
) -> dict[Key, tuple[Key, ...]]:
    """By key the spellings that its tombstone remembers, without those that the key's types do not have any more."""
    typed = typing_of(table, facts, raw.properties)
    known: dict[Key, tuple[Key, ...]] = {}
    for key, stone in named:
        if stone.spellings is not None:
            at = datetime.fromisoformat(stone.asked_at)
            with suppress(LakehouseError):
                own = typed(key)
                found: list[Key] = []
                for other in stone.spellings:
                    with suppress(LakehouseError):
                        found.append(typed(named_now(table, facts, raw.properties, other, at)))
                known[own] = tuple(found)
    return known


def remembered(settings: Settings, source: str | None = None) -> tuple[Tombstone, ...]:
    """The tombstones of one source, or of all."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        return tuple(s for s in tombstones.read(settings, open_io(settings), states) if source in (None, s.source))


def _subject(declarations: Declarations, name: str, words: Sequence[str]) -> tuple[RawTable, SourceKey]:
    """The table, as its subjects are named, and what names the one of these words."""
    table = declarations.named(name)
    given = parse_key(table, words)
    return named_by(table, given), given


def _by_names(table: RawTable, stones: Iterable[Tombstone]) -> list[tuple[RawTable, list[Tombstone]]]:
    """The tombstones by the columns that name their subjects, with the table as these do."""
    found: dict[tuple[str, ...], tuple[RawTable, list[Tombstone]]] = {}
    for stone in stones:
        named = named_by(table, stone.key)
        found.setdefault(named.key, (named, []))[1].append(stone)
    return list(found.values())


def _stones_of(settings: Settings, table: RawTable) -> list[Tombstone]:
    return [stone for stone in remembered(settings, table.source) if stone.table == table.name]


def _named(
    settings: Settings, table: RawTable, stones: Iterable[Tombstone]
) -> tuple[list[tuple[SourceKey, Tombstone]], dict[str, str]]:
    """The tombstones, each with the key as its columns are named now; by id of the others why there is none."""
    facts = _position(settings, table).facts
    with closing(open_catalog(settings)) as catalog:
        properties = catalog.load_table(table.identifier).properties
    named, foreign = list[tuple[SourceKey, Tombstone]](), dict[str, str]()
    for stone in stones:
        try:
            asked_at = datetime.fromisoformat(stone.asked_at)
            named.append((named_now(table, facts, properties, stone.key, asked_at), stone))
        except LakehouseError as error:
            foreign[stone.id] = str(error)
    return named, foreign


def _erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], table: RawTable,
    keys: list[dict[str, str]], earlier: Sequence[tuple[SourceKey, Tombstone]], session: SparkSession | None, say: Say,
) -> Erasure:  # fmt: skip
    started = time.monotonic()
    refused: list[str] = []
    facts = _position(settings, table).facts
    with origin_of(settings, table) as origin:
        there = origin.there(facts)
        keys = _printed(origin, table, there, keys, refused)
        keys = _allowed(table, keys, (origin.held(there, [key]) for key in keys), refused)
        stones = {spelled(key): stone for key, stone in earlier}
        with (
            no_loads(settings, manifest, table.source, say) as states,
            up_to_date_alone(settings, declarations, table.source, session) as writer,
        ):
            position = _position(settings, table)
            facts = position.facts
            there = origin.there(facts)
            planned = partial(make_plan, settings, writer.catalog, manifest, table, facts)
            asked = partial(_asked, origin, table, facts, earlier)
            plan = planned(keys, asked)
            borne = ([source_texts(table, facts, key) for key in found] for found in plan.open_keys)
            unloaded_ones = plan.unloaded(position.state)
            why = zip(borne, origin.awaited(writer.catalog, plan, facts), unloaded_ones, plan.mixed, strict=True)
            reasons = (origin.held(there, own) or waits or unloaded or mixed for own, waits, unloaded, mixed in why)
            if (still := _allowed(table, keys, reasons, refused)) != keys:
                keys, plan = still, planned(still, asked)
            kept = [part.target.identifier for part in plan.parts if part.target.treatment != "drop"]
            with (
                mirrors_held(settings, table.source) as mirrors,
                no_next_tables(writer.catalog) as others,
                no_maintenance(settings, kept, say),
            ):
                drop_next(others, writer.catalog.name, [part.target.identifier for part in plan.parts])
                erasure = Erasing(settings, writer, states, replace(plan, stones=stones), say, mirrors).run(keys)
    erasure.refused, erasure.elsewhere = refused, elsewhere(table)
    erasure.seconds = time.monotonic() - started
    return erasure


@contextmanager
def no_loads(settings: Settings, manifest: Mapping[str, Any], source: str, say: Say) -> Iterator[CatalogConnection]:
    """No run and no worker loads the source, or builds marts of it, while the block runs; waits for those that do.

    Yields the session that keeps them out. Whoever writes by it in the end knows that it was never lost.
    """
    name = f"lakehouse erasure {socket.gethostname()[:30]} {os.getpid()}"
    sources = sources_to_lock(source, manifest)
    with (
        store.connect_catalog(settings, application_name=name, options=KEEPALIVE) as states,
        writing(states, settings.catalog_name, {source: sources}, say),
    ):
        say(f"bringing the lake up to date; loads and marts of {source} wait until the erasure ends")
        yield states


def _printed(
    origin: Origin, table: RawTable, facts: TableFacts, keys: Iterable[SourceKey], refused: list[str]
) -> list[SourceKey]:
    """The distinct keys in the form in which they come; adds to `refused` why a key is invalid."""
    found: list[SourceKey] = []
    for key in keys:
        try:
            printed = origin.printed(facts, key)
            typing_of(table, facts, {})(printed)  # one that the lake cannot hold is in nobody else's way
            if printed not in found:
                found.append(printed)
        except LakehouseError as error:
            refused.append(str(error))
    return found


def _allowed(
    table: RawTable, keys: Iterable[SourceKey], reasons: Iterable[str | None], refused: list[str]
) -> list[SourceKey]:
    """The subjects against whom there is no reason; adds to `refused` why others are left out. Raises LakehouseError if
    none remains."""
    found: list[SourceKey] = []
    for key, reason in zip(keys, reasons, strict=True):
        if reason is None:
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
