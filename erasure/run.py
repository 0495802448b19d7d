"""An erasure from beginning to end.

1. The source must not hold the subject: an event or a new snapshot would bring it back.
2. A cycle brings the lake up to date, and the lease is kept from there on: nothing that is older can land any more.
3. Tombstones are written. Killed from here on, the same command, or `--repeat`, finishes.
4. Table by table, raw first: rows are rewritten, the past is cut off, files are deleted. Before the next layer the
   queries that run are waited for: they may still be copying. Tables that dbt builds whole are built anew.
5. Everything that lies there is looked at. What nothing refers to and holds the subject (a failed write, a restored
   copy) is deleted; anything else that is left is an error.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from erasure import forget, tombstones
from erasure.places import raw_place
from erasure.plan import Plan, await_readers, is_known, make_plan
from erasure.proof import Finding, Look, look
from erasure.rewrite import SUMMARY, InTable, rewrite
from erasure.subjects import as_printed, check_source, parse_key, spelled
from erasure.tombstones import Tombstone
from ingestion import state, up_to_date_alone
from ingestion.publish import Cut, Publication, TableAppend, publish
from ingestion.raw_tables import METADATA
from ingestion.source import connect_source
from lakehouse.catalog import load_table, open_catalog
from lakehouse.declarations import Declarations, RawTable
from lakehouse.errors import LakehouseError
from lakehouse.manifest import rebuild
from lakehouse.settings import Settings
from maintenance.reachable import reachable_files

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyspark.sql import SparkSession

    from ingestion.context import Writer

SETTLED = ("streaming", "parked", "paused")
Say = Callable[[str], None]


@dataclass
class Done:
    """What was done to one table."""

    table: str
    rewritten: int = 0
    expired: int = 0
    deleted: int = 0
    rebuilt: bool = False


@dataclass
class Erasure:
    """What became of subjects of one table, and what was looked at to prove it. Holds keys and no personal data."""

    subjects: list[str]
    tables: dict[str, Done] = field(default_factory=dict)
    objects: int = 0
    bytes: int = 0
    values: int = 0
    values_in_common: int = 0
    unreadable_records: int = 0
    left: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tables": [asdict(done) for done in self.tables.values()]}


def erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str],
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> Erasure:  # fmt: skip
    """Erases the subject that `column=value` words name in `source.table`; raises LakehouseError where it refuses."""
    table = declared(declarations, name)
    return _erase(settings, declarations, manifest, table, [parse_key(table, key)], session, say)


def repeat(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], source: str | None = None,
    session: SparkSession | None = None, say: Say = lambda step: None,
) -> list[Erasure]:  # fmt: skip
    """Does every erasure again that a tombstone remembers, of one source or of all."""
    wanted: dict[tuple[str, str], list[dict[str, str]]] = {}
    for stone in remembered(settings, source):
        wanted.setdefault((stone.source, stone.table), []).append(stone.key)
    return [
        _erase(settings, declarations, manifest, declarations.source(s).table(t), keys, session, say)
        for (s, t), keys in wanted.items()
    ]


def preview(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], name: str, key: Sequence[str]
) -> tuple[Plan, Look, str | None]:
    """Where the subject is now, and what stands in the way of erasing it; changes nothing, needs no lease."""
    table = declared(declarations, name)
    given, problem = parse_key(table, key), None
    with closing(open_catalog(settings)) as catalog, connect_source(settings, table.source) as source:
        facts = _position(settings, table).facts
        keys = [as_printed(source, table, facts, given)]
        plan = make_plan(settings, catalog, manifest, table, facts, keys)
        try:
            check_source(source, table, facts, keys, _kept(table))
        except LakehouseError as error:
            problem = str(error)
        return plan, look(_io(settings), _parts(catalog, (*plan.raw, *plan.derived))), problem


def verify(settings: Settings, manifest: Mapping[str, Any], table: RawTable) -> Look:
    """Whether the erasures of a table's subjects hold: looks at everything, changes nothing, needs no lease."""
    keys = [stone.key for stone in remembered(settings, table.source) if stone.table == table.name]
    if not keys:
        return Look()
    with closing(open_catalog(settings)) as catalog:
        plan = make_plan(settings, catalog, manifest, table, _position(settings, table).facts, keys)
        return look(_io(settings), _parts(catalog, (*plan.raw, *plan.derived)))


def remembered(settings: Settings, source: str | None = None) -> tuple[Tombstone, ...]:
    """The tombstones of one source, or of all."""
    with state.connect_catalog(settings) as states:
        state.ensure_state(states)
        return tuple(s for s in tombstones.read(settings, _io(settings), states) if source in (None, s.source))


def declared(declarations: Declarations, name: str) -> RawTable:
    """The table that `source.table` names; raises LakehouseError."""
    source, dot, table = name.partition(".")
    if not dot:
        raise LakehouseError(f"{name!r} is not SOURCE.TABLE")
    return declarations.source(source).table(table)


def _erase(
    settings: Settings, declarations: Declarations, manifest: Mapping[str, Any], table: RawTable,
    keys: list[dict[str, str]], session: SparkSession | None, say: Say,
) -> Erasure:  # fmt: skip
    started = time.monotonic()
    facts, kept = _position(settings, table).facts, _kept(table)
    with connect_source(settings, table.source) as source:
        keys = [as_printed(source, table, facts, key) for key in keys]
        check_source(source, table, facts, keys, kept)
        say("bringing the lake up to date")
        with up_to_date_alone(settings, declarations, table.source, session) as writer:
            facts = _position(settings, table).facts
            plan = make_plan(settings, writer.catalog, manifest, table, facts, keys)
            check_source(source, table, facts, _printed(plan), kept)
            with state.connect_catalog(settings) as states:
                erasure = _Erasing(settings, writer, states, manifest, plan, say).run(keys)
    erasure.seconds = time.monotonic() - started
    return erasure


def _printed(plan: Plan) -> list[dict[str, str]]:
    """The keys that the source may hold the subjects under now, as texts."""
    return [dict(zip(plan.table.key, map(str, key), strict=True)) for key in plan.open_keys]


@dataclass
class _Erasing:
    """The steps that share a plan, the lease's holder and a connection to the state."""

    settings: Settings
    writer: Writer
    states: Any
    manifest: Mapping[str, Any]
    plan: Plan
    say: Say

    def run(self, keys: list[dict[str, str]]) -> Erasure:
        plan, io = self.plan, _io(self.settings)
        stones = self._stones(io, keys)
        erasure = Erasure([str(stone) for stone in stones], unreadable_records=plan.unreadable)
        self.say("looking for the subject")
        seen = look(io, _parts(self.catalog, (*plan.raw, *plan.derived)))
        self._check_references(seen)
        plan = replace(plan, raw=tuple(_knowing(part, seen.values) for part in plan.raw))
        concerned = {finding.table for finding in seen.findings} | self._condemned((*plan.raw, *plan.derived))
        unproved = any(stone.done_at is None for stone in stones)
        self._raw([part for part in plan.raw if str(part.place) in concerned], erasure)
        whole = [part for part in plan.derived if part.place.treatment == "rebuild"]
        for part in plan.derived:
            if part not in whole and str(part.place) in concerned:
                await_readers(self.settings)
                self._derived(part, erasure)
        if whole and (concerned or unproved):
            self._whole(whole, erasure)
        self._prove(io, (*plan.raw, *plan.derived), seen.values, erasure)
        if not erasure.left:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            tombstones.keep(self.settings, io, self.states, [replace(s, done_at=s.done_at or now) for s in stones])
        return erasure

    @property
    def catalog(self) -> SqlCatalog:
        return self.writer.catalog

    def _stones(self, io: PyArrowFileIO, keys: list[dict[str, str]]) -> list[Tombstone]:
        """The tombstones of the subjects; raises LakehouseError for one that the lake has never seen."""
        table = self.plan.table
        known = {stone.id: stone for stone in tombstones.read(self.settings, io, self.states)}
        made = [tombstones.tombstone(table.source, table.name, key) for key in keys]
        for stone, key in zip(made, self.plan.lives, strict=True):
            if stone.id not in known and not is_known(self.plan, self.catalog, key):
                raise LakehouseError(f"{table.source}.{table.name}: the lake has no row with {spelled(stone.key)}")
        stones = [known.get(stone.id, stone) for stone in made]
        tombstones.keep(self.settings, io, self.states, [stone for stone in stones if stone.id not in known])
        return stones

    def _check_references(self, seen: Look) -> None:
        for name in {finding.table for finding in seen.findings}:
            forget.check_references(self.catalog.load_table(tuple(name.split("."))))

    def _condemned(self, parts: Iterable[InTable]) -> set[str]:
        return {str(p.place) for p in parts if tombstones.condemned(self.states, p.place.identifier)}

    def _raw(self, parts: Sequence[InTable], erasure: Erasure) -> None:
        """Raw tables and what ingestion keeps beside them. Their new snapshots come with a cut that names them."""
        for part in parts:
            self.say(f"rewriting {part.place}")
            erasure.tables[str(part.place)] = Done(str(part.place), rewritten=rewrite(self.catalog, part))
        if parts:
            publish_living(self.writer, self.states, [part.place.identifier for part in parts])
        for part in parts:
            self._cut_off(part, erasure)

    def _derived(self, part: InTable, erasure: Erasure) -> None:
        self.say(f"rewriting {part.place}")
        erasure.tables[str(part.place)] = Done(str(part.place), rewritten=rewrite(self.catalog, part))
        forget.list_the_living(self.catalog, part.place.identifier)
        self._cut_off(part, erasure)

    def _whole(self, parts: Sequence[InTable], erasure: Erasure) -> None:
        await_readers(self.settings)
        self.say(f"rebuilding {len(parts)} tables")
        rebuild(self.settings, [part.place.model for part in parts])
        await_readers(self.settings)
        for part in parts:
            erasure.tables[str(part.place)] = Done(str(part.place), rebuilt=True)
            self._cut_off(part, erasure)

    def _cut_off(self, part: InTable, erasure: Erasure) -> None:
        done, identifier = erasure.tables[str(part.place)], part.place.identifier
        done.expired = forget.cut_off(self.catalog, self.states, identifier)
        done.deleted = forget.delete_condemned(self.catalog, self.states, identifier)

    def _prove(self, io: PyArrowFileIO, parts: Sequence[InTable], values: set[str], erasure: Erasure) -> None:
        """Looks at everything; where something is left that nothing refers to, deletes it and looks again."""
        self.say("looking at everything that lies there")
        found = look(io, _parts(self.catalog, parts), values)
        doomed: dict[str, set[str]] = {}
        for finding in found.findings:
            doomed.setdefault(finding.table, set()).add(finding.path)
        for name, paths in doomed.items():
            table = self.catalog.load_table(tuple(name.split(".")))
            orphans = paths - reachable_files(table)
            forget.delete_objects(table, orphans)
            erasure.tables.setdefault(name, Done(name)).deleted += len(orphans)
        if doomed:
            found = look(io, _parts(self.catalog, parts), values | found.values)
        erasure.objects, erasure.bytes, erasure.left = found.objects, found.bytes, found.findings
        erasure.values, erasure.values_in_common = found.looked_for, found.in_common


def publish_living(writer: Writer, states: Any, tables: Sequence[tuple[str, str]]) -> None:
    """A snapshot of each table that names living files only, and the newest cut again, to name those: one publish."""
    stream = state.read_stream(states, writer.name)
    assert stream is not None
    cut = None
    if stream.cut_lsn is not None and stream.cut_at is not None:
        cut = Cut(stream.epoch, stream.cut_lsn, stream.cut_at, tuple(stream.cut_tables))
    appends = tuple(TableAppend(identifier, (), SUMMARY) for identifier in tables)
    publication = Publication(uuid.uuid4().hex, writer.name, stream.epoch, appends, cut=cut)
    publish(writer.settings, writer.catalog, writer.lease, publication)


def _knowing(part: InTable, values: set[str]) -> InTable:
    from erasure.records import MineInRecords

    return replace(part, values=frozenset(values)) if isinstance(part, MineInRecords) else part


def _parts(catalog: SqlCatalog, parts: Iterable[InTable]) -> list[tuple[InTable, Any]]:
    loaded = ((part, load_table(catalog, *part.place.identifier)) for part in parts)
    return [(part, table) for part, table in loaded if table is not None]


def _position(settings: Settings, table: RawTable) -> state.Position:
    """Where the table stands; raises LakehouseError where it has not settled."""
    with state.connect_catalog(settings) as states:
        state.ensure_state(states)
        position = state.read_positions(states, table.source).get(table.name)
    if position is None or not position.versions:
        raise LakehouseError(f"{table.source}.{table.name} has not been ingested yet: there is nothing to erase")
    if position.state not in SETTLED:
        raise LakehouseError(
            f"{table.source}.{table.name} is {position.state}: "
            f"`lakehouse ingest --once {table.source}` first, then run this again"
        )
    return position


def _kept(table: RawTable) -> frozenset[str]:
    return raw_place(table, tuple(name for name, _, _ in METADATA)).kept or frozenset()


def _io(settings: Settings) -> PyArrowFileIO:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from lakehouse.catalog import file_io_properties

    return PyArrowFileIO(file_io_properties(settings))
