"""The cuts that were published: which snapshot of each table belongs to which commit.

`meta.cuts` has those of raw tables, `meta.mirrors` those at which mirrors stand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import NamedTuple

from cachetools import TTLCache
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, LessThanOrEqual
from pyiceberg.table import Table

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.catalog.relations import LISTED, Layer, TableName
from lakehouse.settings import Settings
from lakehouse.text.spelling import close
from lakehouse_serve.past.moments import Moment, Position

KNOWN_CUTS, KNOWN_SECONDS = 1000, 60


@dataclass(frozen=True)
class Cut:
    """A consistent state of one source: its position, and the snapshot of each of its raw tables, or mirrors.

    `at` is when its newest change was committed, where that is known.
    """

    source: str
    epoch: int
    lsn: int
    snapshots: dict[str, int]
    layer: Layer = "raw"
    published_at: datetime | None = None
    at: datetime | None = None

    @property
    def tables(self) -> dict[TableName, int]:
        """The snapshots by the tables' whole names."""
        return {TableName(f"{self.layer}_{self.source}", name): found for name, found in self.snapshots.items()}

    @property
    def said_at(self) -> str:
        """When its newest change was committed, or else when it was published, for people."""
        at = self.at or self.published_at
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "an unknown time"

    @property
    def position(self) -> Position:
        """What names this cut, and no other."""
        return Position(self.lsn, self.source, self.epoch)


class CutKey(NamedTuple):
    """What orders the cuts of a source."""

    epoch: int
    lsn: int
    published_at: datetime


class NoCut(Exception):
    """No cut answers the question; the text says why."""


class Cuts:
    """Reads `meta.cuts`, or `meta.mirrors`.

    The newest cut until a moment may change: one of an earlier time may still be published. Only what names a cut
    itself is remembered, for a minute, because a restored catalog may have published the same commit anew.
    """

    def __init__(self, settings: Settings, layer: Layer = "raw") -> None:
        self._settings, self._layer = settings, layer
        self._known: TTLCache[Moment, tuple[Cut, ...]] = TTLCache(KNOWN_CUTS, KNOWN_SECONDS)
        self._lock = Lock()

    def at(self, moment: Moment, now: datetime) -> tuple[Cut, ...]:
        """The newest cut of each source until the moment. Raises NoCut."""
        if moment.at is not None and moment.at > now:
            raise NoCut(f"{moment.at.isoformat()} is in the future")
        with self._lock:
            known = self._known.get(moment)
        if known is not None:
            return known
        found = self.newest(moment)
        _refuse_incomplete(moment, found, self._sources)
        if moment.positions == tuple(cut.position for cut in found):
            with self._lock:
                self._known[moment] = found
        return found

    def newest(self, moment: Moment) -> tuple[Cut, ...]:
        """The same, whatever it is; empty if there is none. Raises NoCut for a position that several epochs have."""
        catalog = open_catalog(self._settings)
        try:
            table = load_table(catalog, *LISTED[self._layer])
            return _newest(table, moment, self._layer) if table is not None else ()
        finally:
            catalog.close()

    def _sources(self) -> set[str]:
        """Those that have cuts of any time."""
        catalog = open_catalog(self._settings)
        try:
            table = load_table(catalog, *LISTED[self._layer])
            return set(table.scan(selected_fields=("source",)).to_arrow()["source"].to_pylist()) if table else set()
        finally:
            catalog.close()


def _refuse_incomplete(moment: Moment, found: tuple[Cut, ...], sources: Callable[[], set[str]]) -> None:
    missing = {p.source for p in moment.positions if p.source} - {cut.source for cut in found}
    if not found or missing:
        of = f" of {', '.join(sorted(missing))}" if missing else ""
        known = sources() if missing else set()
        meant = [f": did you mean {near!r}?" for name in sorted(missing - known) if (near := close(name, known, 0.6))]
        remark = meant[0] if meant else ", or those of that time have expired"
        raise NoCut(f"no cut{of} was published until then{remark}")
    if len(found) > 1 and any(position.source is None for position in moment.positions):
        raise NoCut(f"there are several sources: name one, as in {found[0].source}=0/3C87757")


def _newest(table: Table, moment: Moment, layer: Layer) -> tuple[Cut, ...]:
    """Positions first, which are small; then the snapshots of the cuts that were chosen."""
    condition: BooleanExpression = AlwaysTrue()
    if moment.at is not None:
        condition = LessThanOrEqual(term="cut_at", value=moment.at.isoformat())
    elif sources := {position.source for position in moment.positions if position.source}:
        condition = In(term="source", literals=sources)
    rows = table.scan(condition, ("source", "epoch", "cut_lsn", "published_at")).to_arrow().to_pylist()
    keys = [(row["source"], CutKey(row["epoch"], row["cut_lsn"], row["published_at"])) for row in rows]
    return tuple(_cut(table, source, key, layer) for source, key in sorted(newest_keys(moment, keys).items()))


def newest_keys(moment: Moment, keys: Collection[tuple[str, CutKey]]) -> dict[str, CutKey]:
    """By source, the newest of these until the moment. Raises NoCut for a position that several epochs have."""
    newest: dict[str, CutKey] = {}
    for source, key in keys:
        if _covers(moment, source, key) and (source not in newest or key > newest[source]):
            newest[source] = key
    for position in (position for position in moment.positions if position.epoch is None):
        for source, key in keys:
            found = newest.get(source)
            if position.source in {None, source} and found and key.epoch < found.epoch and key.lsn >= position.lsn:
                raise NoCut(
                    f"epochs {key.epoch} and {found.epoch} of {source} both have that position: name the epoch, as in "
                    f"{Position(position.lsn, source, found.epoch)}"
                )
    return newest


def _cut(table: Table, source: str, key: CutKey, layer: Layer) -> Cut:
    conditions = (
        EqualTo(term="source", value=source),
        EqualTo(term="epoch", value=key.epoch),
        EqualTo(term="cut_lsn", value=key.lsn),
    )
    rows = table.scan(And(*conditions), ("published_at", "cut_at", "snapshots")).to_arrow().to_pylist()
    row = next(row for row in rows if row["published_at"] == key.published_at)
    named = {name: int(snapshot) for name, snapshot in row["snapshots"]}
    return Cut(source, key.epoch, key.lsn, named, layer, key.published_at, row["cut_at"])


def _covers(moment: Moment, source: str, key: CutKey) -> bool:
    return all(
        key.lsn <= position.lsn if position.epoch is None else key[:2] <= (position.epoch, position.lsn)
        for position in moment.positions
        if position.source in {None, source}
    )
