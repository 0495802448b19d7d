"""What a client asks for as its warehouse: the lake as it is, or as it was published at a cut.

`lake`; `lake@2026-11-20T10:00` is the newest cut of each source until then (UTC unless an offset is given);
`lake@0/3C87757` and `lake@retail=1:0/3C87757,bank=1:0/44` are the newest cuts of these sources until those commits.
`lake@pin:month_end` is what that pin keeps.

What follows a `!` is for clients that are connected: the state of the pin, or the cuts at which mirrors stand.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lakehouse.text.moments import parse_moment

LSN = re.compile(
    r"(?:(?P<source>[a-z][a-z0-9_]*)=)?(?:(?P<epoch>[0-9]{1,9}):)?(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})"
)
PIN = re.compile(r"pin:(?P<name>[a-z0-9][a-z0-9_]*)(?:!(?P<state>[0-9a-f]{16}))?")
AS_OF = "as-of."
MOST_LSN = (1 << 63) - 1  # that a column of the lake can hold


@dataclass(frozen=True)
class Position:
    """A commit of a source: of the only one, in any epoch, where they are not named."""

    lsn: int
    source: str | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        source, epoch = f"{self.source}=" if self.source else "", "" if self.epoch is None else f"{self.epoch}:"
        return f"{source}{epoch}{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class Moment:
    """A time, positions of sources, or the name of a pin; `state` tells that pin from a later one of its name.

    `mirrors` are the cuts at which mirrors stand, beside positions of raw tables; None where the newest are meant.
    """

    at: datetime | None = None
    positions: tuple[Position, ...] = ()
    pin: str | None = None
    state: str | None = None
    mirrors: tuple[Position, ...] | None = None

    @property
    def names_cuts(self) -> bool:
        """Whether each position has a source and an epoch, as a cut's own has."""
        return bool(self.positions) and all(p.source is not None and p.epoch is not None for p in self.positions)


def parse_warehouse(text: str, catalog: str) -> Moment | None:
    """The moment that a warehouse names; None is now. Raises ValueError that says what can be asked for."""
    name, at, moment = text.partition("@")
    if name not in {"", catalog}:
        raise ValueError(f"there is no warehouse {name!r}: use {catalog}, or {catalog}@ with a time or an LSN")
    if not at:
        return None
    if found := PIN.fullmatch(moment):
        return Moment(pin=found["name"], state=found["state"])
    listed, is_fixed, of_mirrors = moment.partition("!")
    mirrors = _positions(of_mirrors) if is_fixed else None
    if (positions := _positions(listed)) and (mirrors or not of_mirrors):
        return Moment(positions=positions, mirrors=mirrors)
    try:
        return Moment(at=parse_moment(moment))
    except ValueError:
        raise ValueError(
            f"{moment!r} is neither a time nor an LSN nor a pin: use {catalog}@2026-11-20T10:00, "
            f"{catalog}@retail=0/3C87757 or {catalog}@pin:month_end"
        ) from None


def _positions(text: str) -> tuple[Position, ...]:
    """The positions that the text lists; none where it is something else. Several need the names of their sources."""
    found = [LSN.fullmatch(part) for part in text.split(",")]
    positions = tuple(
        Position(
            min((int(part["high"], 16) << 32) + int(part["low"], 16), MOST_LSN),
            part["source"],
            int(part["epoch"]) if part["epoch"] else None,
        )
        for part in found
        if part
    )
    sources = {position.source for position in positions}
    is_list = len(positions) == len(found) and (len(found) == 1 or (None not in sources and len(sources) == len(found)))
    return positions if is_list else ()


def joined_positions(texts: Sequence[str]) -> str:
    """Commits of sources, one text each, as one text that `parse_warehouse` reads; raises ValueError for anything else,
    and for several of one source."""
    sources = []
    for text in texts:
        if (found := LSN.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is no commit of a source: use SOURCE=[EPOCH:]LSN, such as retail=0/3C87757")
        sources.append(found["source"])
    if len(sources) > 1 and None in sources:
        raise ValueError(f"{', '.join(texts)}: name the source of each, as in retail=0/3C87757")
    if twice := sorted({source for source in sources if sources.count(source) > 1}):
        raise ValueError(f"{', '.join(texts)}: {', '.join(twice)} is named twice: give one commit of each source")
    return ",".join(texts)


def prefix_of(warehouse: str) -> str:
    """The warehouse as a segment of a path."""
    return AS_OF + base64.urlsafe_b64encode(warehouse.encode()).decode().rstrip("=")


def warehouse_of(prefix: str, catalog: str) -> str | None:
    """The warehouse of such a segment; None where it is none."""
    if prefix == catalog:
        return catalog
    if not prefix.startswith(AS_OF):
        return None
    text = prefix.removeprefix(AS_OF)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        return None
