"""The steps of an erasure while the lease is held; `run` explains their order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg import Rollback
from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import expire, tombstones
from erasure.plan import Plan, ask, await_readers, count_unreadable, is_known
from erasure.proof import Trace, search
from erasure.records import SubjectRecords
from erasure.rewrite import SUMMARY, SubjectData, rewrite
from erasure.strays import strays
from erasure.subjects import spelled
from erasure.targets import Target
from erasure.tombstones import Tombstone
from erasure.unnamed import nameless, unnamed
from ingestion.mirrors.copies import location_of
from ingestion.mirrors.refresh import refresh
from ingestion.sink.publication import Cut, Publication, TableAppend
from ingestion.sink.publish import publish
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.lease import Lease
from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import load_table
from lakehouse.catalog.views.current_views import view_of
from lakehouse.catalog.views.view_versions import taken_back
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.writing.commit import MAX_CONFLICTS, move_pointer, remove, remove_at
from lakehouse.declarations.dbt.manifest import rebuild
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.table_locks import Held, locked
from lakehouse.settings import Settings
from maintenance.inventory import removed
from maintenance.inventory.lake import read_lake
from maintenance.inventory.reachable import reachable_files

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from ingestion.pipeline.session import Session as Ingestion
    from lakehouse.catalog.lake_catalog import LakeCatalog

Say = Callable[[str], None]
WORK = "erasure"  # of those who lock tables
Beside = Callable[[], Callable[[], bool]]  # looks at something, and returns what changes it if it is still the same


@dataclass
class Done:
    """Counts of what was done to one table. `dropped` is a mirror that the next cut with its table makes anew."""

    table: str
    rewritten: int = 0
    expired: int = 0
    deleted: int = 0
    rebuilt: bool = False
    dropped: bool = False


@dataclass
class Erasure:
    """The result for the subjects of one table, and what was searched as proof. Contains keys, no personal data.

    `refused` says why other subjects were not erased, `elsewhere` what beyond the lake has their events. `nameless` are
    events that say of nobody whose they are.
    """

    subjects: list[str]
    tables: dict[str, Done] = field(default_factory=dict)
    objects: int = 0
    bytes: int = 0
    values: int = 0
    values_in_common: int = 0
    unreadable_records: int = 0
    nameless: int = 0
    elsewhere: str = ""
    left: list[Trace] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tables": [asdict(done) for done in self.tables.values()]}


@dataclass
class Erasing:
    """What the steps share: the plan, the session with the lease, the connection to the state that keeps loads out,
    progress output, the lease of the mirrors."""

    settings: Settings
    writer: Ingestion
    states: CatalogConnection
    plan: Plan
    say: Say
    mirrors: Lease

    def run(self, keys: list[dict[str, str]]) -> Erasure:
        """Runs all steps; raises LakehouseError before anything is written if the erasure cannot last."""
        plan, io = self.plan, open_io(self.settings)
        known = {stone.id: stone for stone in tombstones.read(self.settings, io, self.states)}
        stones = [_spelled(stone, plan) for stone in self._stones(known, keys)]
        erasure = Erasure([str(stone) for stone in stones])
        self.say("searching for the subject")
        seen = search(io, parts_of(self.catalog, plan.parts))
        plan = replace(plan, raw=tuple(_knowing(part, seen.own) for part in plan.raw))
        if plan.unreadable:  # undecodable records are searched for values, which are known only now
            kept = [part for part in plan.raw if isinstance(part, SubjectRecords)]
            seen.traces += search(io, parts_of(self.catalog, kept)).traces
        concerned = {trace.table for trace in seen.traces} | self._condemned(plan.parts)
        whole = [part for part in plan.derived if part.target.treatment == "rebuild"]
        mirrors = [part.target for part in plan.derived if part.target.treatment == "drop"]
        failures = [part.target for part in plan.derived if part.target.treatment == "discard"]
        if hindrances := kept_back(self.catalog, plan, concerned):
            raise LakehouseError("; ".join(hindrances))
        new = tombstones.add(self.settings, io, self.states, [stone for stone in stones if stone.id not in known])
        stones = [*(stone for stone in stones if stone.id in known), *new]
        self._raw([part for part in plan.raw if str(part.target) in concerned], erasure)
        for mirror in mirrors:
            self._mirror(mirror, erasure)
        for part in plan.derived:
            if part.target.treatment in ("empty", "collapse", "delete") and str(part.target) in concerned:
                await_readers(self.settings)
                self._derived(part, erasure)
        if whole:  # always: an earlier run may have been killed before this step
            self._whole(whole, erasure)
        for target in failures:
            self._discard(target, erasure)
        erasure.unreadable_records = count_unreadable(plan, self.catalog)
        erasure.nameless = nameless(self.catalog, plan)
        await_readers(self.settings)  # a load that was killed may have left a statement
        self._prove(io, plan.parts, seen.values, erasure)
        if not erasure.left:  # fails where the connection was lost: loads may have begun since
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
        new = [tombstones.tombstone(table.source, table.name, key) for key in keys]
        made = [stone if stone.id in known else self.plan.stones.get(spelled(stone.key), stone) for stone in new]
        for stone, key in zip(made, self.plan.periods, strict=True):
            if stone.id not in known and not is_known(self.plan, self.catalog, key):
                raise LakehouseError(f"{table.source}.{table.name}: the lake has no row with {spelled(stone.key)}")
        return [known.get(stone.id, stone) for stone in made]

    def _condemned(self, parts: Iterable[SubjectData]) -> set[str]:
        return {str(p.target) for p in parts if tombstones.files_to_delete(self.states, p.target.identifier)}

    def _raw(self, parts: Sequence[SubjectData], erasure: Erasure) -> None:
        """Rewrites the raw table and ingestion's records. Their new snapshots are published with a cut."""
        for part in parts:
            self.say(f"rewriting {part.target}")
            erasure.tables[str(part.target)] = Done(str(part.target), rewritten=rewrite(self.catalog, part))
        if parts:
            publish_live_files(self.writer, self.states, [part.target.identifier for part in parts])
        for part in parts:
            self._cut_off(part, erasure)

    def _mirror(self, target: Target, erasure: Erasure) -> None:
        """Drops the mirror with all its files, and makes it anew: an earlier run may have been killed in between.

        One whose table is in no cut, or not as it is declared, is made anew by the first refresh that can.
        """
        await_readers(self.settings)
        self.say(f"making {target} anew")
        with no_maintenance(self.settings, [target.identifier], self.say):  # the refresh takes the lock itself
            deleted = drop_mirror(self.settings, self.writer.catalog, self.states, target.identifier, self.mirrors)
        report = refresh(replace(self.writer, lease=self.mirrors), self.states)
        if deleted:
            is_gone = target.identifier[1] in report.aside
            erasure.tables[str(target)] = Done(str(target), deleted=deleted, rebuilt=not is_gone, dropped=is_gone)

    def _discard(self, target: Target, erasure: Erasure) -> None:
        """Drops rows that a test has stored. Files that a killed run leaves of them are found as nobody's."""
        await_readers(self.settings)
        if (table := load_table(self.catalog, *target.identifier)) is not None:
            self.say(f"dropping {target}")
            io = open_io(self.settings)
            paths = {stored.path for stored in list_objects(io, table.location())}
            _unlist(self.writer.catalog, self.states, target.identifier, lambda: lambda: True)
            deleted = _delete_files(io, self.states, target.identifier, paths)
            erasure.tables[str(target)] = Done(str(target), deleted=deleted)

    def _derived(self, part: SubjectData, erasure: Erasure) -> None:
        self.say(f"rewriting {part.target}")
        erasure.tables[str(part.target)] = Done(str(part.target), rewritten=rewrite(self.catalog, part))
        expire.list_live_files(self.catalog, part.target.identifier)
        self._cut_off(part, erasure)

    def _whole(self, parts: Sequence[SubjectData], erasure: Erasure) -> None:
        await_readers(self.settings)
        self.say(f"rebuilding {len(parts)} tables")
        for number in sorted({part.target.round for part in parts}):
            rebuild(self.settings, [part.target.model for part in parts if part.target.round == number])
        await_readers(self.settings)
        for part in parts:
            erasure.tables[str(part.target)] = Done(str(part.target), rebuilt=True)
            self._cut_off(part, erasure)

    def _cut_off(self, part: SubjectData, erasure: Erasure) -> None:
        done, identifier = erasure.tables[str(part.target)], part.target.identifier
        done.expired = expire.expire_history(self.catalog, self.states, identifier)
        done.deleted = expire.delete_expired_files(self.catalog, self.states, identifier)

    def _prove(self, io: PyArrowFileIO, parts: Sequence[SubjectData], values: set[str], erasure: Erasure) -> None:
        """Searches every object; if unreferenced ones contain the subject, deletes them and searches again."""
        self.say("searching every object")
        found = search(io, parts_of(self.catalog, parts), values)
        traced: dict[str, set[str]] = {}
        for trace in found.traces:
            traced.setdefault(trace.table, set()).add(one_spelling(trace.path))
        for name, paths in traced.items():
            table = self._load(name)
            orphans = paths - reachable_files(table)
            delete_objects(table.io, orphans)
            erasure.tables.setdefault(name, Done(name)).deleted += len(orphans)
        if traced:
            found = search(io, parts_of(self.catalog, parts), values | found.values)
        erasure.left = found.traces + strays_of(self.settings, self.catalog, io, self.plan)
        erasure.objects, erasure.bytes = found.objects, found.bytes
        erasure.values, erasure.values_in_common = found.values_searched, found.in_common


@contextmanager
def no_maintenance(settings: Settings, tables: Collection[tuple[str, str]], say: Say) -> Iterator[None]:
    """Nobody maintains or restores these tables during the block; waits for those who do.

    A compaction that has read the subject's rows writes them into files of its own until it notices that it is late.
    Raises LakehouseError if the wait takes too long.
    """
    with ExitStack() as stack:
        try:
            try:
                stack.enter_context(locked(settings, tables, WORK))
            except Held as held:
                say(f"waiting for maintenance of {'.'.join(held.table)}: {held}")
                stack.enter_context(locked(settings, tables, WORK, settings.ingestion.wait_seconds))
        except Held as held:
            raise LakehouseError(f"{'.'.join(held.table)}: {held}; {expire.AGAIN} once it has ended") from None
        yield


def _spelled(stone: Tombstone, plan: Plan) -> Tombstone:
    """The tombstone with the spellings that were found now, beside those from before: their rows may be gone. One of a
    key that was called otherwise keeps what it has."""
    found = plan.spelled.get(frozenset(stone.key.items()))
    if found is None:
        return stone
    earlier = stone.spellings or ()
    return replace(stone, spellings=(*earlier, *(key for key in found if key not in earlier)))


def publish_live_files(writer: Ingestion, states: CatalogConnection, tables: Sequence[tuple[str, str]]) -> None:
    """Publishes a snapshot of each table that lists only live files, with the newest cut on these snapshots."""
    stream = store.read_stream(states, writer.name)
    assert stream is not None
    cut = None
    if stream.cut_position is not None and stream.cut_at is not None:
        cut = Cut(stream.epoch, stream.cut_position, stream.cut_at, tuple(stream.cut_tables))
    appends = tuple(TableAppend(identifier, (), SUMMARY, is_rewritten=True) for identifier in tables)
    publication = Publication(uuid.uuid4().hex, writer.name, stream.epoch, appends, cut=cut)
    publish(writer.settings, writer.catalog, writer.lease, publication)


def drop_mirror(
    settings: Settings, catalog: LakeCatalog, states: CatalogConnection, mirror: tuple[str, str], lease: Lease
) -> int:
    """Drops a mirror, a copy that a killed refresh has left, and every object at their place; returns how many.

    The current view reads parsed alone from then on, until the next refresh. `lease` is that of refreshes: one that has
    taken it over makes the mirror anew at the same place, so what is there is listed before, and nothing else deleted.
    """
    io = open_io(settings)
    paths = {stored.path for stored in list_objects(io, location_of(catalog, mirror))}

    def beside() -> Callable[[], bool]:
        back = taken_back(catalog, catalog.file_io, view_of(mirror[0].removeprefix("mirror_"), mirror[1]))

        def change() -> bool:
            leases.check(states, lease, settings.ingestion.lease_seconds)
            remove(states, catalog.name, next_name(mirror))
            return back is None or move_pointer(states, catalog.name, back.view, back.base, back.location)

        return change

    _unlist(catalog, states, mirror, beside)
    return _delete_files(io, states, mirror, paths)


def _delete_files(io: PyArrowFileIO, states: CatalogConnection, name: tuple[str, str], paths: set[str]) -> int:
    """Deletes the objects of a table that the catalog does not list any more; returns how many."""
    delete_objects(io, paths)
    removed.forget(states, paths)
    tombstones.forget_files_to_delete(states, name)
    return len(paths)


def _unlist(catalog: LakeCatalog, states: CatalogConnection, name: tuple[str, str], beside: Beside) -> None:
    """Takes a table out of the catalog as it was inspected, with what has to change beside it, or nothing.

    Raises LakehouseError for a pin or another tag: one may have come since the search.
    """
    for _ in range(MAX_CONFLICTS):
        if (table := load_table(catalog, *name)) is not None:
            expire.check_references(table)
        change = beside()
        with states.transaction():
            if change() and (table is None or remove_at(states, catalog.name, name, table.metadata_location)):
                return
            raise Rollback
    raise LakehouseError(f"{'.'.join(name)}: it was changed {MAX_CONFLICTS} times meanwhile; {expire.AGAIN}")


def _knowing(part: SubjectData, values: set[str]) -> SubjectData:
    return replace(part, values=frozenset(values)) if isinstance(part, SubjectRecords) else part


def parts_of(catalog: SqlCatalog, parts: Iterable[SubjectData]) -> list[tuple[SubjectData, Table]]:
    """The targets that exist in the lake, with their tables."""
    loaded = ((part, load_table(catalog, *part.target.identifier)) for part in parts)
    return [(part, table) for part, table in loaded if table is not None]


def kept_back(catalog: SqlCatalog, plan: Plan, concerned: Iterable[str]) -> list[str]:
    """Pins, other references and restored copies that would keep the past of the tables that the erasure changes:
    those `concerned`, which hold the subjects, and all that it makes anew or drops."""
    always = (part.target for part in plan.derived if part.target.treatment in ("rebuild", "drop", "discard"))
    found: dict[str, list[str]] = {}
    for name in sorted({*concerned, *map(str, always)}):
        if (table := load_table(catalog, *name.split("."))) is not None:
            try:
                expire.check_references(table)
            except LakehouseError as error:
                found.setdefault(str(error).removeprefix(f"{name}: "), []).append(name)
    reasons = [f"{', '.join(names)}: {why}" for why, names in found.items()]
    try:
        expire.check_copies(catalog, [part.target.identifier for part in plan.parts])
    except LakehouseError as error:
        reasons.append(str(error))
    return reasons


def strays_of(settings: Settings, catalog: SqlCatalog, io: PyArrowFileIO, plan: Plan) -> list[Trace]:
    """What may hold the subjects and cannot be told: tables and folders unknown to dbt, rows that no key names."""
    lake, known = read_lake(catalog, io, settings.warehouse), {part.target.identifier for part in plan.parts}
    found = strays(lake, settings.warehouse, plan.manifest, plan.table, known)
    return [*found, *unnamed(catalog, plan, partial(ask, settings))]
