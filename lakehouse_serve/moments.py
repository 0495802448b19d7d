"""What a client asks for as its warehouse: the lake as it is, or as it was published at a cut.

`lake`; `lake@2026-11-20T10:00` is the newest cut of each source until then (UTC unless an offset is given);
`lake@0/3C87757` and `lake@retail=1:0/3C87757` are the newest cut of one source until that commit.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime

LSN = re.compile(
    r"(?:(?P<source>[a-z][a-z0-9_]*)=)?(?:(?P<epoch>\d{1,9}):)?(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})"
)
AS_OF = "as-of."


@dataclass(frozen=True)
class Moment:
    """A time, or a position of one source."""

    at: datetime | None = None
    source: str | None = None
    epoch: int | None = None
    lsn: int | None = None


def parse_warehouse(text: str, catalog: str) -> Moment | None:
    """The moment that a warehouse names; None is now. Raises ValueError that says what can be asked for."""
    name, at, moment = text.partition("@")
    if name not in {"", catalog}:
        raise ValueError(f"there is no warehouse {name!r}: use {catalog}, or {catalog}@ with a time or an LSN")
    if not at:
        return None
    if found := LSN.fullmatch(moment):
        epoch = found["epoch"]
        lsn = (int(found["high"], 16) << 32) + int(found["low"], 16)
        return Moment(source=found["source"], epoch=int(epoch) if epoch else None, lsn=lsn)
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        raise ValueError(
            f"{moment!r} is neither a time nor an LSN: use {catalog}@2026-11-20T10:00 or {catalog}@retail=0/3C87757"
        ) from None
    return Moment(at=time if time.tzinfo else time.replace(tzinfo=UTC))


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
    except (binascii.Error, UnicodeDecodeError):
        return None
