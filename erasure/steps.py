"""The steps of an erasure, once the lake is up to date and the lease is held; see `run` for their order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import forget, tombstones
from erasure.plan import Plan, await_readers, is_known
from erasure.proof import Finding, look
from erasure.records import MineInRecords
from erasure.rewrite import SUMMARY, InTable, rewrite
from erasure.strays import strays
from erasure.subjects import spelled
from erasure.tombstones import Tombstone
from ingestion.sink.publish import Cut, Publication, TableAppend, publish
from ingestion.state import store
from lakehouse.catalog.bulk_delete import delete_objects
from lakehouse.catalog.file_io import file_io
from lakehouse.catalog.open import file_io_properties, load_table
from lakehouse.declarations.manifest import rebuild
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings
from maintenance.inventory.lake import look as look_around
from maintenance.inventory.reachable import reachable_files

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from ingestion.pipeline.session import Session as Ingestion

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
    """What became of subjects of one table, and what was looked at to prove it. Holds keys and no personal data.

    `refused` says of other subjects why they were not erased.
    """

    subjects: list[str]
    tables: dict[str, Done] = field(default_factory=dict)
    objects: int = 0
    bytes: int = 0
    values: int = 0
    values_in_common: int = 0
    unreadable_records: int = 0
    left: list[Finding] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tables": [asdict(done) for done in self.tables.values()]}


@dataclass
class Erasing:
    """What the steps share: a plan, the lease's holder, a connection to the state, and somebody to tell."""

    settings: Settings
    writer: Ingestion
    states: CatalogConnection
    plan: Plan
    say: Say

    def run(self, keys: list[dict[str, str]]) -> Erasure:
        """All of them; raises LakehouseError where it refuses, before anything is written."""
        plan, io = self.plan, open_io(self.settings)
        known = {stone.id: stone for stone in tombstones.read(self.settings, io, self.states)}
        stones = self._stones(known, keys)
        erasure = Erasure([str(stone) for stone in stones], unreadable_records=plan.unreadable)
        self.say("looking for the subject")
        seen = look(io, parts_of(self.catalog, plan.parts))
        plan = replace(plan, raw=tuple(_knowing(part, seen.values) for part in plan.raw))
        if plan.unreadable:  # what nobody can read is searched for values, which are known only now
            kept = [part for part in plan.raw if isinstance(part, MineInRecords)]
            seen.findings += look(io, parts_of(self.catalog, kept)).findings
        concerned = {finding.table for finding in seen.findings} | self._condemned(plan.parts)
        whole = [part for part in plan.derived if part.place.treatment == "rebuild"]
        for name in sorted(concerned | {str(part.place) for part in whole}):
            forget.check_references(self._load(name))
        forget.check_copies(self.catalog, [part.place.identifier for part in plan.parts])
        tombstones.keep(self.settings, io, self.states, [stone for stone in stones if stone.id not in known])
        self._raw([part for part in plan.raw if str(part.place) in concerned], erasure)
        for part in plan.derived:
            if part not in whole and str(part.place) in concerned:
                await_readers(self.settings)
                self._derived(part, erasure)
        if whole:  # always: an earlier run may have emptied what they derive from, and ended before it came here
            self._whole(whole, erasure)
        self._prove(io, plan.parts, seen.values, erasure)
        if not erasure.left:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            tombstones.keep(self.settings, io, self.states, [replace(s, done_at=s.done_at or now) for s in stones])
        return erasure

    @property
    def catalog(self) -> SqlCatalog:
        return self.writer.catalog

    def _load(self, name: str) -> Table:
        return self.catalog.load_table(tuple(name.split(".")))

    def _stones(self, known: dict[str, Tombstone], keys: list[dict[str, str]]) -> list[Tombstone]:
        """The tombstones of the subjects; raises LakehouseError for one that the lake has never seen."""
        table = self.plan.table
        made = [tombstones.tombstone(table.source, table.name, key) for key in keys]
        for stone, key in zip(made, self.plan.lives, strict=True):
            if stone.id not in known and not is_known(self.plan, self.catalog, key):
                raise LakehouseError(f"{table.source}.{table.name}: the lake has no row with {spelled(stone.key)}")
        return [known.get(stone.id, stone) for stone in made]

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
        found = look(io, parts_of(self.catalog, parts), values)
        doomed: dict[str, set[str]] = {}
        for finding in found.findings:
            doomed.setdefault(finding.table, set()).add(finding.path)
        for name, paths in doomed.items():
            table = self._load(name)
            orphans = paths - reachable_files(table)
            delete_objects(table.io, orphans)
            erasure.tables.setdefault(name, Done(name)).deleted += len(orphans)
        if doomed:
            found = look(io, parts_of(self.catalog, parts), values | found.values)
        erasure.left = found.findings + strays_of(self.settings, self.catalog, io, self.plan)
        erasure.objects, erasure.bytes = found.objects, found.bytes
        erasure.values, erasure.values_in_common = found.looked_for, found.in_common


def publish_living(writer: Ingestion, states: CatalogConnection, tables: Sequence[tuple[str, str]]) -> None:
    """A snapshot of each table that names living files only, and the newest cut again, to name those: one publish."""
    stream = store.read_stream(states, writer.name)
    assert stream is not None
    cut = None
    if stream.cut_position is not None and stream.cut_at is not None:
        cut = Cut(stream.epoch, stream.cut_position, stream.cut_at, tuple(stream.cut_tables))
    appends = tuple(TableAppend(identifier, (), SUMMARY) for identifier in tables)
    publication = Publication(uuid.uuid4().hex, writer.name, stream.epoch, appends, cut=cut)
    publish(writer.settings, writer.catalog, writer.lease, publication)


def _knowing(part: InTable, values: set[str]) -> InTable:
    return replace(part, values=frozenset(values)) if isinstance(part, MineInRecords) else part


def parts_of(catalog: SqlCatalog, parts: Iterable[InTable]) -> list[tuple[InTable, Table]]:
    """The tables that are in the lake, each with the subject in it."""
    loaded = ((part, load_table(catalog, *part.place.identifier)) for part in parts)
    return [(part, table) for part, table in loaded if table is not None]


def strays_of(settings: Settings, catalog: SqlCatalog, io: PyArrowFileIO, plan: Plan) -> list[Finding]:
    """Tables and folders that may hold the subjects and that nobody knows."""
    lake = look_around(catalog, io, settings.warehouse)
    return strays(lake, settings.warehouse, plan.manifest, plan.table, {part.place.identifier for part in plan.parts})


def open_io(settings: Settings) -> PyArrowFileIO:
    """The object store."""
    return file_io(file_io_properties(settings))
