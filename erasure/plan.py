"""Everything an erasure of some subjects of one table goes by: their lives, and the tables that hold them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from erasure.lives import Key, Life
from erasure.places import Place, derived_places, lake_names, raw_place
from erasure.records import MineInRecords, MineInTexts
from erasure.rewrite import InTable
from erasure.rows import POSITION, Mine
from erasure.subjects import find_lives, typing_of
from ingestion.schema.facts import TableFacts
from lakehouse.catalog.open import load_table
from lakehouse.declarations import METADATA_COLUMNS, RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings
from lakehouse.text.sql import columns, relation

KEPT = ("spool", "quarantine")
WAIT_STEP_SECONDS = 0.5


@dataclass(frozen=True)
class Plan:
    """Subjects of one table, and where to look for them: the raw layer first, then dbt's tables in their order."""

    table: RawTable
    lives: dict[Key, tuple[Life, ...]]
    raw: tuple[InTable, ...]
    derived: tuple[Mine, ...]
    unreadable: int
    manifest: Mapping[str, Any]

    @property
    def parts(self) -> tuple[InTable, ...]:
        """The subjects in every table."""
        return (*self.raw, *self.derived)

    @property
    def open_keys(self) -> list[set[Key]]:
        """By subject, the keys under which the source may hold it."""
        return [{life.key for life in lives if life.is_open} for lives in self.lives.values()]


def make_plan(
    settings: Settings,
    catalog: SqlCatalog,
    manifest: Mapping[str, Any],
    table: RawTable,
    facts: TableFacts,
    keys: Iterable[dict[str, str]],
) -> Plan:
    """Finds the subjects' lives and the tables. Raises LakehouseError for a key that the lake has never seen."""
    raw = catalog.load_table(table.identifier)
    typed = typing_of(table, facts, raw.properties)
    place = raw_place(table, METADATA_COLUMNS)
    source_kept = frozenset(c.name for c in facts.columns if place.kept is not None and c.lake in place.kept)
    by_key = {typed(key): key for key in keys}
    records = [
        MineInRecords(
            Place(("meta", name), "empty", (), frozenset()), table.source, table.name, (), table.key, source_kept, typed
        )
        for name in KEPT
        if load_table(catalog, "meta", name) is not None
    ]
    waiting = [(mine, _scan(catalog, mine)) for mine in records]
    events = [event for mine, rows in waiting for event in mine.events(rows)]
    lives = find_lives(raw, table, by_key, typed, events)
    own = tuple(life for found in lives.values() for life in found)
    mine = Mine(place, own)
    known = raw.scan(row_filter=mine.filter(), selected_fields=(*place.key, *POSITION)).to_arrow()
    rows = known.take(pa.array(mine.rows(known), pa.int64()))
    positions = frozenset(zip(*(rows.column(name).to_pylist() for name in POSITION), strict=True))
    texts = [
        MineInTexts(
            Place(("meta", "unrepresentable"), "delete", (), frozenset()),
            table.source,
            table.name,
            positions,
            place.kept or frozenset(),
        )
    ]
    derived = derived_places(table, manifest, lambda identifier: _column_names(catalog, identifier))
    return Plan(
        table=table,
        lives=lives,
        raw=(
            mine,
            *(replace(part, lives=own) for part in records),
            *(t for t in texts if load_table(catalog, *t.place.identifier)),
        ),
        derived=tuple(_derived(settings, table, derived, own)),
        unreadable=sum(part.unreadable(rows) for part, rows in waiting),
        manifest=manifest,
    )


def is_known(plan: Plan, catalog: SqlCatalog, key: Key) -> bool:
    """Whether the lake has ever seen the key, landed or kept aside."""
    mine, *others = plan.raw
    assert isinstance(mine, Mine)
    only = replace(mine, lives=(Life(key),))
    landed = catalog.load_table(mine.place.identifier).scan(row_filter=only.filter(), selected_fields=mine.place.key)
    if landed.to_arrow().num_rows:
        return True
    return any(p.rows(_scan(catalog, p)) for p in others if isinstance(p, MineInRecords))


def await_readers(settings: Settings) -> None:
    """Waits until the queries that run in Trino now have ended: one that began earlier may still copy what was there.

    Raises LakehouseError when they take too long.
    """
    running = "SELECT query_id FROM system.runtime.queries WHERE state NOT IN ('FINISHED', 'FAILED')"
    others = {row[0] for row in _ask(settings, f"{running} AND query NOT LIKE '%system.runtime.queries%'")}
    deadline = time.monotonic() + settings.ingestion.wait_seconds
    while others and (others := others & {row[0] for row in _ask(settings, running)}):
        if time.monotonic() > deadline:
            raise LakehouseError(
                f"Trino: query {min(others)} does not end, and may copy what is erased: end it, then run this again"
            )
        time.sleep(WAIT_STEP_SECONDS)


def _derived(settings: Settings, table: RawTable, places: Iterable[Place], lives: tuple[Life, ...]) -> Iterator[Mine]:
    hashes: dict[Key, list[str]] | None = None
    for place in places:
        if not place.is_hashed:
            yield Mine(place, lives if place.key else ())
            continue
        if hashes is None:
            hashes = {key: _hash_keys(settings, table, key) for key in {life.key for life in lives}}
        yield Mine(place, tuple(replace(life, key=(h,)) for life in lives for h in hashes[life.key]))


def _hash_keys(settings: Settings, table: RawTable, key: Key) -> list[str]:
    """The hub's hash keys of a key, as the stage computes them: the hash is written once, in dbt's macros."""
    assert table.vault is not None and table.vault.hub is not None
    names = lake_names(table, table.key)
    stage = relation("vault", f"stg_{table.source}__{table.name}")
    same = " AND ".join(f"{columns([name])} = ?" for name in names)
    statement = f"SELECT DISTINCT {columns([f'hk_{table.vault.hub.name}'])} FROM {stage} WHERE {same}"
    return [row[0] for row in _ask(settings, statement, list(key))]


def _ask(settings: Settings, statement: str, values: list[Any] | None = None) -> list[list[Any]]:
    from trino.exceptions import Error

    try:
        cursor = connect(settings).cursor()
        cursor.execute(statement, values)
        return cursor.fetchall()
    except Error as error:
        reason = str(error).splitlines()[0][:200]
        raise LakehouseError(f"Trino has to be asked where the subject is: {reason}; run `lakehouse up`") from None


def _scan(catalog: SqlCatalog, mine: MineInRecords) -> pa.Table:
    return catalog.load_table(mine.place.identifier).scan(row_filter=mine.filter()).to_arrow()


def _column_names(catalog: SqlCatalog, identifier: tuple[str, str]) -> tuple[str, ...] | None:
    table: Table | None = load_table(catalog, *identifier)
    return tuple(field.name for field in table.schema().fields) if table else None
