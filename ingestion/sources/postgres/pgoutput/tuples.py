"""One row message taken apart and put together again, for the few that are kept as the slot sent them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

Tuples = dict[str, list[bytes]]  # "K" or "O" before, "N" after; cells as they are in the message, kind included
NULL = b"n"
_ROWS, _CARRIED, _EMPTY = (b"I", b"U", b"D"), b"tb", b"nu"


class Unreadable(ValueError):
    """A record whose frame is not that of a row message."""


def split(message: bytes) -> tuple[bytes, Tuples]:
    """A row message as its head (kind and oid) and the cells of its tuples. Raises Unreadable."""
    try:
        return message[:5], _tuples(message)
    except (IndexError, struct.error) as error:
        raise Unreadable(str(error)) from None


def joined(head: bytes, tuples: Tuples) -> bytes:
    """The message again."""
    parts = [name.encode() + struct.pack(">H", len(cells)) + b"".join(cells) for name, cells in tuples.items()]
    return head + b"".join(parts)


def emptied(columns: Sequence[str], cells: Sequence[bytes], gone: Collection[str]) -> list[bytes]:
    """The cells with those of the columns `gone` null; one that was not carried stays so."""
    pairs = zip(columns, cells, strict=False)
    return [NULL if name in gone and cell[:1] in _CARRIED else cell for name, cell in pairs]


def without(message: bytes, columns: Sequence[str], gone: Collection[str]) -> bytes:
    """A message with the values of the columns `gone` null; one that is not of a row, or cannot be read, as it is."""
    try:
        head, tuples = split(message)
    except Unreadable:
        return message
    if any(len(cells) != len(columns) for cells in tuples.values()):
        return message
    return joined(head, {which: emptied(columns, cells, gone) for which, cells in tuples.items()})


def _tuples(message: bytes) -> Tuples:
    if message[:1] not in _ROWS:
        raise Unreadable(f"message of kind {message[:1]!r}")
    found: Tuples = {}
    at = 5
    while at < len(message):
        name = chr(message[at])
        (count,) = struct.unpack_from(">H", message, at + 1)
        at += 3
        cells = []
        for _ in range(count):
            length = 1
            if message[at] in _CARRIED:
                length = 5 + struct.unpack_from(">I", message, at + 1)[0]
            elif message[at] not in _EMPTY:
                raise Unreadable("cell of an unknown kind")
            cells.append(message[at : at + length])
            at += length
        found[name] = cells
    if at != len(message) or not found:
        raise Unreadable(f"{len(message)} bytes, {at} expected")
    return found
