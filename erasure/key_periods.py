"""The rows of one data subject: those of its key, and those of its former and later keys while it had them.

A key change is a `d` of the old key and, at the next position, a `c` of the new key that names the old one. Where rows
that shared a key were reordered, `sent_at` gives the original positions. Under the old key, the subject's rows reach
from the insert to that `d`; rows of the key before or after belong to others. All rows of the key that the user named
are the subject's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    states the table's rows anew."""

    key: Key | None
    position: Position
    op: str
    old_key: Key | None = None
    is_marker: bool = False


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


def key_periods(key: Key, events: Sequence[Event]) -> tuple[Period, ...]:
    """All key periods of the subject with `key`, from the events of all keys that key changes connect with it."""
    ordered = sorted(events, key=lambda event: event.position)
    found = {Period(key)}
    for event in ordered:
        if event.key == key and event.old_key is not None:
            found.update(_before(event.old_key, event, ordered))
        elif event.old_key == key and event.key is not None:
            found.update(_after(event.key, event, ordered))
    return tuple(
        sorted(
            (period for period in found if period.key != key or period == Period(key)), key=lambda period: period.start
        )
    )


def linked_keys(key: Key, moves: Sequence[tuple[Key, Key]]) -> set[Key]:
    """Every key that a chain of key changes connects with `key`, itself included."""
    found, waiting = {key}, [key]
    while waiting:
        at = waiting.pop()
        for old, new in moves:
            for other in {old, new} if at in (old, new) else ():
                if other not in found:
                    found.add(other)
                    waiting.append(other)
    return found


def position_text(position: Position) -> str:
    """A position in the format of the vault's `source_seq`; `FIRST` and `NEVER` sort before and after all others."""
    if position in (FIRST, NEVER):
        return "" if position == FIRST else "~"
    epoch, lsn, seq = (int(part) for part in position)
    return f"{epoch:010d}.{lsn:019d}.{seq:019d}"


def _before(key: Key, moved: Event, events: Sequence[Event]) -> Iterator[Period]:
    """The period of `key` that a key change ended, and those before it."""
    left = (e.position for e in events if e.op == "d" and e.key == key and _is_next(e.position, moved.position))
    own_end = next(left, _neighbour(moved.position, -1))
    ends = [e.position for e in events if e.position < own_end and _ends(e, key, events)]
    period = Period(key, _neighbour(ends[-1], 1) if ends else FIRST, _neighbour(own_end, 1))
    yield period
    for event in events:
        if event.key == key and event.old_key is not None and period.holds(event.position):
            yield from _before(event.old_key, event, events)


def _after(key: Key, moved: Event, events: Sequence[Event]) -> Iterator[Period]:
    """The period of `key` that began with a key change, and those after it."""
    end = next((e.position for e in events if e.position > moved.position and _ends(e, key, events)), None)
    yield Period(key, moved.position, _neighbour(end, 1) if end else NEVER)
    for event in events:
        if end and event.old_key == key and event.key is not None and _is_next(end, event.position):
            yield from _after(event.key, event, events)


def _ends(event: Event, key: Key, events: Sequence[Event]) -> bool:
    """Whether no row has the key after the event. A row that a new snapshot contains continues."""
    if event.op != "t":
        return event.op == "d" and event.key == key
    return not (event.is_marker and any(_restates(other, event, key) for other in events))


def _restates(row: Event, marker: Event, key: Key) -> bool:
    return row.op == "r" and row.key == key and row.position[:-1] == marker.position[:-1]


def _is_next(one: Position, other: Position) -> bool:
    """Whether the source sent `other` directly after `one`."""
    return _neighbour((*one[:-1], sent_at(one[-1])), 1) == (*other[:-1], sent_at(other[-1]))


def _neighbour(position: Position, step: int) -> Position:
    return (*position[:-1], position[-1] + step)
