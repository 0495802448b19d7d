"""The plan of an erasure: the subjects' key periods, and the tables that hold their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from erasure.envelopes import SubjectEnvelopes
from erasure.kept_events import SubjectEvents
from erasure.key_periods import Event, Key, Period, key_of
from erasure.records import SubjectRecords, SubjectTexts
from erasure.rewrite import SubjectData
from erasure.rows import POSITION, SubjectRows
from erasure.subjects import find_periods, former_names, typing_of
from erasure.targets import Target, derived_targets, lake_names, mirror_target, raw_target, stage_of
from erasure.tombstones import Tombstone
from ingestion.schema.facts import TableFacts
from ingestion.sources.kafka.records import EventRecords
from ingestion.sources.kafka.shape import shape_of
from lakehouse.catalog.open import load_table
from lakehouse.declarations import RawTable
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.errors import LakehouseError
from lakehouse.servers.outage import UP
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened
from lakehouse.text.sql import columns, relation

RECORD_TABLES = ("spool", "quarantine")
WAIT_STEP_SECONDS = 0.5
AFTER_LOADS = "the lake has the tables of before a change of the project: run the loads, then run this again"
Spellings = Callable[[Table, Collection[Key], Collection[Key]], Mapping[Key, Collection[Key]]]
"""From the raw table, the subjects' keys and those of what is kept aside: by subject the other keys that are the same
one."""


@dataclass(frozen=True)
class Plan:
    """Subjects of one table, and the tables to search: the raw layer first, then the mirror and dbt's tables, parents
    first. `kept` are the events in the spool and among the dead letters. `unhashed` are keys with rows in the raw table
    of which the stage, which has to make hash keys of them, knows nothing. `shared` are keys of which the hub makes one
    with keys of others who have personal data. `stones` are earlier erasures
    of the table, by their key as its columns are named now. `spelled` are the other keys that the database calls equal
    to a subject's, by that as it was given. `keyless`: the subjects are named by columns of events that
    have no key."""

    table: RawTable
    periods: dict[Key, tuple[Period, ...]]
    raw: tuple[SubjectData, ...]
    derived: tuple[SubjectRows, ...]
    unreadable: int
    manifest: Mapping[str, Any]
    kept: tuple[Event, ...] = ()
    unhashed: frozenset[Key] = frozenset()
    shared: frozenset[Key] = frozenset()
    stones: Mapping[str, Tombstone] = field(default_factory=dict)
    keyless: bool = False
    spelled: Mapping[frozenset[tuple[str, str]], tuple[dict[str, str], ...]] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[SubjectData, ...]:
        """The subjects in every table."""
        return (*self.raw, *self.derived)

    def unloaded(self, state: str) -> list[str | None]:
        """By subject, why the vault cannot be searched for them, as a text; None where it can. `state` is the table's:
        one that is set aside is not loaded."""
        load = "load it first"
        if state in ("paused", "parked"):
            resume = f"lakehouse ingest --resume {self.table.source}.{self.table.name}"
            load = f"the table is {state}: `{resume}`, then load it"
        says = f"the vault does not know all their keys yet: {load}, then run this again"
        return [says if self.unhashed & {p.key for p in found} else None for found in self.periods.values()]

    @property
    def mixed(self) -> list[str | None]:
        """By subject, why the vault cannot tell them from others, as a text; None where it can."""
        says = (
            "the vault makes one key of theirs and of others' in the table, whose personal data it would lose, too: "
            "declare the hub without `normalize`, run `lakehouse rehash`, then run this again"
        )
        return [says if self.shared & {p.key for p in found} else None for found in self.periods.values()]

    @property
    def open_keys(self) -> list[set[Key]]:
        """By subject, the keys under which the source may hold it."""
        return [{period.key for period in periods if period.is_open} for periods in self.periods.values()]


def make_plan(
    settings: Settings,
    catalog: SqlCatalog,
    manifest: Mapping[str, Any],
    table: RawTable,
    facts: TableFacts,
    keys: Iterable[dict[str, str]],
    spellings: Spellings,
) -> Plan:
    """Finds key periods and tables. Raises LakehouseError for a table whose rows cannot be found by key."""
    raw = catalog.load_table(table.identifier)
    typed = typing_of(table, facts, raw.properties)
    target = raw_target(table, tuple(OF_KINDS[table.kind]))
    kept = target.kept or frozenset()
    source_kept = frozenset(column.name for column in facts.columns if column.lake in kept)
    of_records = _of_records(settings, table, facts)
    records = [
        of_records(
            Target(("meta", name), "empty"),
            table.source,
            table.name,
            (),
            table.key,
            source_kept,
            typed,
            called=former_names(table, facts, raw.properties),
        )
        for name in RECORD_TABLES
        if load_table(catalog, "meta", name) is not None
    ]
    scanned = [(part, _scan(catalog, part)) for part in records]
    events = [event for part, rows in scanned for event in part.events(rows)]
    given = list(keys)
    named = list(map(typed, given))
    aside = {event.key for event in events if event.key is not None}
    written = {key: dict.fromkeys((key, *sorted(others))) for key, others in spellings(raw, named, aside).items()}
    found = find_periods(raw, table, {other for own in written.values() for other in own}, typed, events)
    periods = {key: tuple(dict.fromkeys(p for other in own for p in found[other])) for key, own in written.items()}
    own = tuple(dict.fromkeys(period for found in periods.values() for period in found))
    landed = SubjectRows(target, own)
    texts_target = Target(("meta", "unrepresentable"), "delete")
    rows = _rows(raw, landed)
    texts = SubjectTexts(texts_target, table.source, table.name, _positions(rows), kept)
    derived = derived_targets(table, manifest, lambda identifier: column_names(catalog, identifier))
    hashes: dict[Key, list[str]] = {}
    shared = frozenset[Key]()
    if any(target.is_hashed for target in derived):
        hashes = {key: _hash_keys(settings, table, key) for key in {period.key for period in own}}
        shared = _shared(settings, table, raw, target, hashes)
    keyless = table.kind == "kafka" and not facts.key
    has_mirror = not keyless or load_table(catalog, *table.mirror_identifier) is not None  # from when it had a key
    mirror = (SubjectRows(mirror_target(table), own),) if has_mirror else ()
    lacking = tuple(period for period in own if hashes.get(period.key) == [])
    return Plan(
        table=table,
        periods=periods,
        raw=(
            landed,
            *(replace(part, periods=own) for part in records),
            *([texts] if load_table(catalog, *texts_target.identifier) else ()),
        ),
        derived=(*mirror, *_derived(derived, own, hashes)),
        unreadable=sum(part.unreadable(rows) for part, rows in scanned),
        manifest=manifest,
        kept=tuple(events),
        keyless=keyless,
        spelled={} if table.kind == "kafka" else _spelled(table.key, given, named, written),
        shared=shared,
        unhashed=frozenset(period.key for period in lacking if SubjectRows(target, (period,)).rows(rows)),
    )


def _spelled(
    names: Sequence[str], given: Sequence[dict[str, str]], named: Sequence[Key], written: Mapping[Key, Iterable[Key]]
) -> dict[frozenset[tuple[str, str]], tuple[dict[str, str], ...]]:
    """By given key its other spellings, as texts: only values that are texts have several."""
    return {
        frozenset(texts.items()): tuple(
            {
                name: texts[name] if other == value else str(other)
                for name, value, other in zip(names, own, key, strict=True)
            }
            for key in written[own]
            if key != own
        )
        for texts, own in zip(given, named, strict=True)
    }


def _of_records(settings: Settings, table: RawTable, facts: TableFacts) -> Callable[..., SubjectRecords]:
    """What makes the subject's part of kept records, which are of the kind of the source."""
    if table.kind == "kafka":
        from ingestion.sources.kafka.formats import formats_of  # with what reads Avro, which other kinds do not need

        records = EventRecords({}, formats_of(settings, table.source))
        return partial(SubjectEvents, shape=shape_of(facts), records=records)
    return SubjectEnvelopes if table.kind == "debezium" else SubjectRecords


def _rows(raw: Table, subject: SubjectRows) -> pa.Table:
    """Key and position of the subject's rows in the raw table."""
    columns = (*subject.target.key, *POSITION)
    candidates = raw.scan(row_filter=subject.filter(), selected_fields=columns).to_arrow()
    return candidates.take(pa.array(subject.rows(candidates), pa.int64()))


def _positions(rows: pa.Table) -> frozenset[tuple[Any, ...]]:
    return frozenset(zip(*(rows.column(name).to_pylist() for name in POSITION), strict=True))


def is_known(plan: Plan, catalog: SqlCatalog, key: Key) -> bool:
    """Whether the raw table, the spool or the dead letters contain the key."""
    subject, *others = plan.raw
    assert isinstance(subject, SubjectRows)
    only = replace(subject, periods=plan.periods[key])
    landed = catalog.load_table(subject.target.identifier).scan(
        row_filter=only.filter(), selected_fields=subject.target.key
    )
    if landed.to_arrow().num_rows:
        return True
    return any(p.rows(_scan(catalog, p)) for p in others if isinstance(p, SubjectRecords))


def count_unreadable(plan: Plan, catalog: SqlCatalog) -> int:
    """The number of records in the spool and the dead letters that cannot be read."""
    return sum(part.unreadable(_scan(catalog, part)) for part in plan.raw if isinstance(part, SubjectRecords))


def await_readers(settings: Settings) -> None:
    """Waits for Trino's running queries, which may still copy old data; raises LakehouseError after a time limit."""
    running = "SELECT query_id FROM system.runtime.queries WHERE state NOT IN ('FINISHED', 'FAILED')"
    others = {row[0] for row in ask(settings, f"{running} AND query NOT LIKE '%system.runtime.queries%'")}
    deadline = time.monotonic() + settings.ingestion.wait_seconds
    while others and (others := others & {row[0] for row in ask(settings, running)}):
        if time.monotonic() > deadline:
            raise LakehouseError(
                f"Trino: query {min(others)} is still running and may copy erased data: end it, then run this again"
            )
        time.sleep(WAIT_STEP_SECONDS)


def _derived(
    targets: Iterable[Target], periods: tuple[Period, ...], hashes: Mapping[Key, list[str]]
) -> Iterator[SubjectRows]:
    for target in targets:
        if target.is_hashed:
            found = tuple(replace(period, key=(h,)) for period in periods for h in hashes[period.key])
            yield SubjectRows(target, found)
        else:
            yield SubjectRows(target, periods if target.key else ())


def _hash_keys(settings: Settings, table: RawTable, key: Key) -> list[str]:
    """The hub's hash keys of a key, read from the stage, because only dbt's macros define the hash."""
    assert table.vault is not None and table.vault.hub is not None
    names = lake_names(table, table.key)
    stage = relation("vault", stage_of(table))
    named = [(columns([name]), value) for name, value in zip(names, key, strict=True)]
    same = " AND ".join(f"is_nan({name})" if value != value else f"{name} = ?" for name, value in named)
    statement = f"SELECT DISTINCT {columns([f'hk_{table.vault.hub.name}'])} FROM {stage} WHERE {same}"
    return [row[0] for row in ask(settings, statement, [v for v in key if v == v])]


def _shared(
    settings: Settings, table: RawTable, raw: Table, target: Target, hashes: Mapping[Key, list[str]]
) -> frozenset[Key]:
    """Those of the keys under whose hash key are others, with personal data in the raw table."""
    assert table.vault is not None and table.vault.hub is not None
    hub, names = f"hk_{table.vault.hub.name}", lake_names(table, table.key)
    every = {found for several in hashes.values() for found in several}
    own = sorted(found for found in every if found.strip("0") and found.strip("f"))  # no satellite has what is neither
    query = f"SELECT DISTINCT {columns([hub, *names])} FROM {relation('vault', stage_of(table))} WHERE {columns([hub])}"
    rows = ask(settings, f"{query} IN ({', '.join('?' for _ in own)})", own) if own else []
    kinds = [raw.schema().as_arrow().field(name).type for name in names]
    others: dict[Key, str] = {}
    for found, *values in rows:  # of a float Trino has fewer digits
        key = key_of(pa.array([value], kind)[0].as_py() for value, kind in zip(values, kinds, strict=True))
        if key not in hashes:
            others[key] = found
    of_others = SubjectRows(target, tuple(map(Period, others)))
    there = raw.scan(row_filter=of_others.filter()).to_arrow()
    holding = there.take(pa.array(of_others.holding(there), pa.int64())).select(names).to_pylist()
    taken = {others[key_of(row.values())] for row in holding}
    return frozenset(key for key, several in hashes.items() if taken & set(several))


def ask(settings: Settings, statement: str, values: list[Any] | None = None) -> list[list[Any]]:
    """The rows of a statement of Trino's; raises LakehouseError."""
    from trino.exceptions import Error

    try:
        cursor = connect(settings).cursor()
        cursor.execute(statement, values)
        return cursor.fetchall()
    except Error as error:
        reason = shortened(str(error).splitlines()[0], 200)
        is_older = getattr(error, "error_name", None) in ("COLUMN_NOT_FOUND", "TABLE_NOT_FOUND")
        remedy = AFTER_LOADS if is_older else f"start Trino, {UP}"
        raise LakehouseError(f"Trino cannot search for the subject: {reason}; {remedy}") from None


def _scan(catalog: SqlCatalog, subject: SubjectRecords) -> pa.Table:
    return catalog.load_table(subject.target.identifier).scan(row_filter=subject.filter()).to_arrow()


def column_names(catalog: SqlCatalog, identifier: tuple[str, str]) -> tuple[str, ...] | None:
    """A stored table's columns; None if it is not in the lake."""
    table: Table | None = load_table(catalog, *identifier)
    return tuple(field.name for field in table.schema().fields) if table else None
