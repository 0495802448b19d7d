"""A read in several tasks, none of which sees whole transactions.

Each guesses that all transactions whose END has come are whole, and lands its events at the places that follow. The
join of all events, by what each place depends on, says afterwards whether that was right. Where it was not, nothing of
it is published, and one task reads all again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ingestion.sources.base import Landing, Noticed, Piece
from ingestion.sources.debezium.join.guess import guess, is_plain
from ingestion.sources.debezium.join.heads import Heads
from ingestion.sources.debezium.join.joined import Reached
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.debezium.work import Work
from ingestion.sources.kafka.reading import Range

if TYPE_CHECKING:
    from ingestion.sources.debezium.reading import EnvelopeReader

EVENTS = 100_000  # that a task of their own pays for, and data files of their own
MOST = 5_000_000  # that are joined outside of a task


@dataclass(frozen=True)
class Part:
    """What a part tells: of its events what their places depend on, in columns, those that it guessed, and what people
    are told of its messages."""

    heads: dict[str, bytes]
    numbers: bytes
    places: bytes
    versions: frozenset[str]
    columns: dict[str, set[str]]


def parts_of(reader: EnvelopeReader) -> Sequence[EnvelopeReader]:
    """Readers of parts of it; itself where it has too little, or too much, or where a guess would not hold: what is
    read first has rows of a snapshot."""
    total = sum(r.end - r.first for r in reader.ranges)
    is_first = reader.before.end == 0 or bool(reader.histories)
    may_hold = reader.told is not None and reader.is_told and reader.exactly_once and not is_first
    if reader.is_part or not may_hold or not EVENTS < total <= MOST:
        return (reader,)
    count = -(-total // EVENTS)
    return [replace(reader, ranges=tuple(ranges), is_part=True) for ranges in divided(reader.ranges, count)]


def divided(ranges: Sequence[Range], count: int) -> Iterator[list[Range]]:
    """Ranges as `count` groups of about as many events, in their order; a range may be in several."""
    total, at, left = sum(r.end - r.first for r in ranges), 0, list(ranges)
    for number in range(1, count + 1):
        until, group = total * number // count, list[Range]()
        while left and at < until:
            first = left.pop(0)
            end = min(first.end, first.first + until - at)
            group.append(replace(first, end=end))
            at += end - first.first
            if end < first.end:
                left.insert(0, replace(first, first=end, place=first.place + end - first.first))
        if group:
            yield group


def land(work: Work, landing: Landing, take: Callable[[Piece], None]) -> Noticed:
    """Gives a part's events at the places that it guesses; nothing where it cannot."""
    before = work.reader.before
    if not work.fetch(while_=lambda: is_plain(work.heads)):
        return Noticed()
    told = list(work.told(work.reader.told)) if work.reader.told else []
    guessed = guess(work.heads, told, Reached(before.end, before.committed_at, before.bound), work.follows(told))
    if guessed is None:
        return Noticed()
    for piece in work.pieces(guessed, landing):
        take(piece)
    columns = {item.name: getattr(work.heads, item.name).tobytes() for item in fields(Heads)}
    numbers, places = (np.array(of, np.int64).tobytes() for of in (guessed.numbers, guessed.places))
    return Noticed(part=Part(columns, numbers, places, frozenset(work.versions), work.columns))


def together(reader: EnvelopeReader, noticed: Sequence[Noticed]) -> Noticed | None:
    """What the parts have noticed as one; None where a place is another one than was guessed."""
    parts = [one.part for one in noticed if isinstance(one.part, Part)]
    if len(parts) < len(noticed):
        return None
    work = Work(reader, Spool())
    try:
        for of, part in zip(reader.parts(), parts, strict=True):
            _add(work, of, part)
        assert reader.told is not None, "else there are no parts"
        joined = work.join(list(work.told(reader.told)))
        found = np.array([joined.numbers, joined.places], np.int64)
        columns = ([part.numbers for part in parts], [part.places for part in parts])
        guessed = [np.frombuffer(b"".join(of), np.int64) for of in columns]
        return None if joined.old or not np.array_equal(found, guessed) else work.noticed(joined)
    finally:
        work.close()


def _add(work: Work, of: EnvelopeReader, part: Part) -> None:
    numbers = np.array([work.numbers[r.topic, r.partition] for r in of.ranges], np.int32)
    for name, column in part.heads.items():
        into = getattr(work.heads, name)
        into.frombytes(numbers[np.frombuffer(column, np.int32)].tobytes() if name == "partition" else column)
    work.versions |= part.versions
    for topic, columns in part.columns.items():
        work.columns.setdefault(topic, set()).update(columns)
