"""The cuts that were published: which snapshot of each table belongs to which commit.

`meta.cuts` has those of raw tables, `meta.mirrors` those at which mirrors stand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import TTLCache
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotIn,
    Or,
)
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

    `at` is the time of the source's clock when its position was read, where that is known.
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
        """When its position was read, or else when it was published, for people."""
        at = self.at or self.published_at
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "an unknown time"

    @property
    def position(self) -> Position:
        """What names this cut, and no other."""
        return Position(self.lsn, self.source, self.epoch)


def is_exactly(moment: Moment, cuts: Collection[Cut]) -> bool:
    """Whether the moment names these cuts and no others."""
    return set(moment.positions) == {cut.position for cut in cuts}


class CutKey(NamedTuple):
    """What orders the cuts of a source."""

    epoch: int
    lsn: int
    published_at: datetime


ORDER = ("epoch", "cut_lsn", "published_at")
"""The columns of a key, the first of which decides first."""


class Back(NamedTuple):
    """How far back cuts are looked for; None is all of them."""

    time: timedelta | None
    lsn: int | None


LOOKS_BACK = (
    Back(timedelta(hours=1), 1 << 24),
    Back(timedelta(days=1), 1 << 30),
    Back(timedelta(days=30), 1 << 36),
    Back(None, None),
)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class NoCut(Exception):
    """No cut answers the question; the text says why."""


Check = Callable[[Table, Moment, Mapping[str, CutKey]], None]


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
        """The newest cut of each source until the moment. Raises NoCut, also where several epochs have the position."""
        if moment.at is not None and moment.at > now:
            raise NoCut(f"{moment.at.isoformat()} is in the future")
        with self._lock:
            known = self._known.get(moment)
        if known is not None:
            return known
        found = self._read(moment, _refuse_other_epochs)
        _refuse_incomplete(moment, found, self._sources)
        if is_exactly(moment, found):
            with self._lock:
                self._known[moment] = found
        return found

    def newest(self, moment: Moment) -> tuple[Cut, ...]:
        """The same, whatever it is; empty if there is none."""
        return self._read(moment)

    def has_others_after(self, sources: Collection[str], at: datetime, published_at: datetime) -> bool:
        """Whether another source has a cut of after these moments, or one of which they are not known."""
        after = [Or(GreaterThan(term=name, value=moment.isoformat()), IsNull(term=name))
                 for name, moment in {"cut_at": at, "published_at": published_at}.items()]  # fmt: skip
        condition = And(NotIn(term="source", literals=set(sources)), Or(*after))
        with self._listed() as table:
            return table is not None and table.scan(condition, ("source",), limit=1).to_arrow().num_rows > 0

    def _read(self, moment: Moment, check: Check = lambda *_: None) -> tuple[Cut, ...]:
        with self._listed() as table:
            return _newest(table, moment, self._layer, check) if table is not None else ()

    def _sources(self) -> set[str]:
        """Those that have cuts of any time."""
        with self._listed() as table:
            if table is None:
                return set()
            return set(table.scan(selected_fields=("source",)).to_arrow()["source"].unique().to_pylist())

    @contextmanager
    def _listed(self) -> Iterator[Table | None]:
        with closing(open_catalog(self._settings)) as catalog:
            yield load_table(catalog, *LISTED[self._layer])


def _refuse_incomplete(moment: Moment, found: tuple[Cut, ...], sources: Callable[[], set[str]]) -> None:
    missing = {p.source for p in moment.positions if p.source} - {cut.source for cut in found}
    if not found or missing:
        of = f" of {', '.join(sorted(missing))}" if missing else ""
        known = sources() if missing else set()
        meant = [f": did you mean {near!r}?" for name in sorted(missing - known) if (near := close(name, known, 0.6))]
        remark = meant[0] if meant else ", or those of that time have expired"
        raise NoCut(f"no cut{of} was published until then{remark}")
    if any(position.source is None for position in moment.positions) and len(sources()) > 1:
        raise NoCut(f"there are several sources: name one, as in {found[0].source}=0/3C87757")


def _newest(table: Table, moment: Moment, layer: Layer, check: Check) -> tuple[Cut, ...]:
    """Positions first, which are small, and not all of them; then the snapshots of the cuts that were chosen."""
    newest: dict[str, CutKey] = {}
    for back in LOOKS_BACK:  # each step also finds what a clock that was set back has hidden from those before
        newer = reduce(And, _beyond(newest), _until(moment, back))
        newest |= newest_keys(table.scan(newer, ("source", *ORDER)).to_arrow())
    check(table, moment, newest)
    return tuple(at_key(table, source, key, layer) for source, key in sorted(newest.items()))


def _until(moment: Moment, back: Back) -> BooleanExpression:
    """The cuts until the moment that are no further back."""
    if moment.at is not None:
        until = LessThanOrEqual(term="cut_at", value=moment.at.isoformat())
        since = None if back.time is None else max(moment.at, LONG_AGO) - back.time
        return And(until, GreaterThanOrEqual(term="cut_at", value=since.isoformat())) if since else until
    nowhere: BooleanExpression = AlwaysFalse()
    return reduce(Or, (_within(position, back) for position in moment.positions), nowhere)


def _within(position: Position, back: Back) -> BooleanExpression:
    epoch = position.epoch
    of = EqualTo(term="source", value=position.source) if position.source is not None else AlwaysTrue()
    near = GreaterThanOrEqual(term="cut_lsn", value=position.lsn - back.lsn) if back.lsn is not None else AlwaysTrue()
    until = And(of, near, LessThanOrEqual(term="cut_lsn", value=position.lsn))
    if epoch is None:
        return until
    same = And(until, EqualTo(term="epoch", value=epoch))
    return same if back.lsn is not None else Or(same, And(of, LessThan(term="epoch", value=epoch)))


def _beyond(newest: Mapping[str, CutKey]) -> Iterator[BooleanExpression]:
    """The cuts that are newer than these, and all those of other sources."""
    for source, key in newest.items():
        same = And(EqualTo(term="epoch", value=key.epoch), EqualTo(term="cut_lsn", value=key.lsn))
        yield Or(
            LessThan(term="source", value=source),  # no file is passed over for a `!=`
            GreaterThan(term="source", value=source),
            GreaterThan(term="epoch", value=key.epoch),
            And(EqualTo(term="epoch", value=key.epoch), GreaterThan(term="cut_lsn", value=key.lsn)),
            And(same, GreaterThan(term="published_at", value=key.published_at.isoformat())),
        )


def newest_keys(cuts: pa.Table) -> dict[str, CutKey]:
    """By source, the newest of these. There may be 100,000 for each day, so none becomes an object but the newest."""
    newest = {}
    for source in cuts["source"].unique().to_pylist():
        found = cuts.filter(pc.equal(cuts["source"], source))
        for column in ORDER:
            found = found.filter(pc.equal(found[column], pc.max(found[column])))
        newest[source] = CutKey(*(found[column][0].as_py() for column in ORDER))
    return newest


def _refuse_other_epochs(table: Table, moment: Moment, newest: Mapping[str, CutKey]) -> None:
    """Raises NoCut for a position that another epoch may have too, and for one of an epoch that has no cut until then.

    A source that was restored writes the same positions again: those between where it begins anew and the first cut of
    the new epoch have no cut there, and what an earlier epoch has at them is something else.
    """
    asked = [(position, source) for position in moment.positions for source in newest]
    for position, source in asked:
        if position.source not in {None, source}:
            continue
        found = newest[source]
        if position.epoch is None:
            _refuse_ambiguous(table, position.lsn, source, found)
        elif position.epoch != found.epoch:
            raise NoCut(
                f"epoch {position.epoch} of {source} has no cut until then; the newest cut before it is "
                f"{Position(found.lsn, source, found.epoch)}"
            )


def _refuse_ambiguous(table: Table, lsn: int, source: str, found: CutKey) -> None:
    earlier = And(LessThan(term="epoch", value=found.epoch), GreaterThanOrEqual(term="cut_lsn", value=lsn))
    later = GreaterThan(term="epoch", value=found.epoch)  # all of its cuts are above, or it would have been found
    of = And(EqualTo(term="source", value=source), Or(earlier, later))
    for epoch in table.scan(of, ("epoch",), limit=1).to_arrow()["epoch"].to_pylist():
        raise NoCut(
            f"epochs {min(epoch, found.epoch)} and {max(epoch, found.epoch)} of {source} may both have that position: "
            f"name the epoch, as in {Position(lsn, source, found.epoch)}"
        )


def at_key(table: Table, source: str, key: CutKey, layer: Layer) -> Cut:
    """The cut of a source that is listed by this key."""
    conditions = (
        EqualTo(term="source", value=source),
        EqualTo(term="epoch", value=key.epoch),
        EqualTo(term="cut_lsn", value=key.lsn),
    )
    rows = table.scan(And(*conditions), ("published_at", "cut_at", "snapshots")).to_arrow().to_pylist()
    row = next(row for row in rows if row["published_at"] == key.published_at)
    named = {name: int(snapshot) for name, snapshot in row["snapshots"]}
    return Cut(source, key.epoch, key.lsn, named, layer, key.published_at, row["cut_at"])
