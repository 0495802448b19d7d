"""The rows of one data subject: those of its key, and those of its former and later keys while it had them.

A key change is a `d` of the old key and, at the next position, a `c` of the new key that names the old one. Where rows
that shared a key were reordered, `sent_at` gives the original positions. Under the old key, the subject's rows reach
from the insert to that `d`; rows of the key before or after belong to others. All rows of the key that the user named
are the subject's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion.tasks.shared_keys.positions import sent_at

Key = tuple[Any, ...]
Position = tuple[float, ...]  # epoch, commit LSN, seq
FIRST: Position = (-1,)
NEVER: Position = (math.inf,)


@dataclass(frozen=True)
class Event:
    """A change of a raw table; the key of a truncate is None. `is_marker`: no truncate, but the head of a snapshot that
    states the table's rows anew. `holds`: personal data may be there after it."""

    key: Key | None
    position: Position
    op: str
    old_key: Key | None = None
    is_marker: bool = False
    holds: bool = True


@dataclass(frozen=True)
class Period:
    """A key, and the positions `start <= position < end` at which it was the subject's."""

    key: Key
    start: Position = FIRST
    end: Position = NEVER

    @property
    def is_open(self) -> bool:
        """Whether it has no end: the source may hold the row."""
        return self.end == NEVER

    def holds(self, position: Position) -> bool:
        """Whether the position is within the period."""
        return self.start <= position < self.end


def key_of(values: Iterable[Any]) -> Key:
    """A key of these values, in which NaN equals NaN as in Postgres."""
    return tuple(math.nan if value != value else value for value in values)


def key_periods(key: Key, events: Sequence[Event]) -> tuple[Period, ...]:
    """All key periods of the subject with `key`, from the events of all keys that key changes connect with it."""
    log, found = _Log(events), {Period(key)}
    former = [event for event in log.of(key) if event.old_key is not None]
    while former:
        period = log.before(former.pop())
        found.add(period)
        former += (e for e in log.of(period.key) if e.old_key is not None and period.holds(e.position))
    later = [event for event in log.from_key(key) if event.key is not None]
    while later:
        period, end = log.after(later.pop())
        found.add(period)
        if end is not None:
            later += (e for e in log.from_key(period.key) if e.key is not None and _is_next(end, e.position))
    return tuple(
        sorted(
            (period for period in found if period.key != key or period == Period(key)), key=lambda period: period.start
        )
    )


def linked_keys(key: Key, moves: Sequence[tuple[Key, Key]]) -> set[Key]:
    """Every key that a chain of key changes connects with `key`, itself included."""
    beside: dict[Key, set[Key]] = defaultdict(set)
    for old, new in moves:
        beside[old].add(new)
        beside[new].add(old)
    found, waiting = {key}, [key]
    while waiting:
        others = beside[waiting.pop()] - found
        found |= others
        waiting += others
    return found


def position_text(position: Position) -> str:
    """A position in the format of the vault's `source_seq`; `FIRST` and `NEVER` sort before and after all others."""
    if position in (FIRST, NEVER):
        return "" if position == FIRST else "~"
    epoch, lsn, seq = (int(part) for part in position)
    return f"{epoch:010d}.{lsn:019d}.{seq:019d}"


class _Log:
    """Events in order, by the key that they are of and by the one that they come from."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._of: dict[Key | None, list[Event]] = defaultdict(list)
        self._from: dict[Key, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.position):
            self._of[event.key].append(event)
            if event.old_key is not None:
                self._from[event.old_key].append(event)

    def of(self, key: Key | None) -> list[Event]:
        """The events of a key; of None the truncates."""
        return self._of.get(key, [])

    def from_key(self, key: Key) -> list[Event]:
        """The key changes that left a key."""
        return self._from.get(key, [])

    def before(self, moved: Event) -> Period:
        """The period of the former key, which this key change ended."""
        key = moved.old_key
        assert key is not None
        left = (e.position for e in self.of(key) if e.op == "d" and _is_next(e.position, moved.position))
        own_end = next(left, _neighbour(moved.position, -1))
        begun = max((end for end in self._ends(key) if end < own_end), default=None)
        return Period(key, _neighbour(begun, 1) if begun else FIRST, _neighbour(own_end, 1))

    def after(self, moved: Event) -> tuple[Period, Position | None]:
        """The period of the new key, which began with this key change, and where it ends."""
        key = moved.key
        assert key is not None
        end = min((end for end in self._ends(key) if end > moved.position), default=None)
        return Period(key, moved.position, _neighbour(end, 1) if end else NEVER), end

    def _ends(self, key: Key) -> Iterator[Position]:
        """After which positions no row has the key. A row that a new snapshot contains continues."""
        yield from (event.position for event in self.of(key) if event.op == "d")
        restated = {event.position[:-1] for event in self.of(key) if event.op == "r"}
        truncates = (event for event in self.of(None) if event.op == "t")
        yield from (t.position for t in truncates if not (t.is_marker and t.position[:-1] in restated))


def _is_next(one: Position, other: Position) -> bool:
    """Whether the source sent `other` directly after `one`."""
    return _neighbour((*one[:-1], sent_at(one[-1])), 1) == (*other[:-1], sent_at(other[-1]))


def _neighbour(position: Position, step: int) -> Position:
    return (*position[:-1], position[-1] + step)
