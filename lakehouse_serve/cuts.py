"""The cuts that were published (`meta.cuts`): which snapshot of each raw table belongs to which commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import NamedTuple

from cachetools import LRUCache
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, LessThanOrEqual
from pyiceberg.table import Table

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.settings import Settings
from lakehouse_serve.moments import Moment

KNOWN_CUTS = 1000


@dataclass(frozen=True)
class Cut:
    """A consistent state of one source: its position, and the snapshot of each of its raw tables."""

    source: str
    epoch: int
    lsn: int
    snapshots: dict[str, int]

    @property
    def namespace(self) -> str:
        """Where the raw tables lie."""
        return f"raw_{self.source}"


class _Key(NamedTuple):
    epoch: int
    lsn: int
    published_at: datetime


class NoCut(Exception):
    """No cut answers the question; the text says why."""


class Cuts:
    """Reads `meta.cuts`. Cuts never change, so an answer about the past holds for good."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: LRUCache[Moment, tuple[Cut, ...]] = LRUCache(KNOWN_CUTS)
        self._lock = Lock()

    def at(self, moment: Moment, now: datetime) -> tuple[Cut, ...]:
        """The newest cut of each source until the moment. Raises NoCut."""
        if moment.at is not None and moment.at > now:
            raise NoCut(f"{moment.at.isoformat()} is in the future")
        with self._lock:
            known = self._known.get(moment)
        if known is not None:
            return known
        found = self._find(moment)
        if not found:
            raise NoCut("no cut was published until then, or those of that time have expired")
        if moment.lsn is not None and len(found) > 1:
            raise NoCut(f"there are several sources: name one, as in {found[0].source}=0/3C87757")
        with self._lock:
            self._known[moment] = found
        return found

    def _find(self, moment: Moment) -> tuple[Cut, ...]:
        catalog = open_catalog(self._settings)
        try:
            table = load_table(catalog, "meta", "cuts")
            return _newest(table, moment) if table is not None else ()
        finally:
            catalog.close()


def _newest(table: Table, moment: Moment) -> tuple[Cut, ...]:
    """Positions first, which are small; then the snapshots of the cuts that were chosen."""
    condition: BooleanExpression = AlwaysTrue()
    if moment.at is not None:
        condition = LessThanOrEqual(term="cut_at", value=moment.at.isoformat())
    elif moment.source is not None:
        condition = EqualTo(term="source", value=moment.source)
    rows = table.scan(condition, ("source", "epoch", "cut_lsn", "published_at")).to_arrow().to_pylist()
    newest: dict[str, _Key] = {}
    for row in rows:
        key = _Key(row["epoch"], row["cut_lsn"], row["published_at"])
        if _covers(moment, key) and (row["source"] not in newest or key > newest[row["source"]]):
            newest[row["source"]] = key
    return tuple(_cut(table, source, key) for source, key in sorted(newest.items()))


def _cut(table: Table, source: str, key: _Key) -> Cut:
    conditions = (
        EqualTo(term="source", value=source),
        EqualTo(term="epoch", value=key.epoch),
        EqualTo(term="cut_lsn", value=key.lsn),
    )
    rows = table.scan(And(*conditions), ("published_at", "snapshots")).to_arrow().to_pylist()
    snapshots = next(row["snapshots"] for row in rows if row["published_at"] == key.published_at)
    return Cut(source, key.epoch, key.lsn, {name: int(snapshot) for name, snapshot in snapshots})


def _covers(moment: Moment, key: _Key) -> bool:
    if moment.lsn is None:
        return True
    return key.lsn <= moment.lsn if moment.epoch is None else key[:2] <= (moment.epoch, moment.lsn)
