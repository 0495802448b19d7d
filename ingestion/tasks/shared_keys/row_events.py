"""The events of one key in one transaction, put in the order of the rows that they belong to.

An event identifies its row by the row's image: a digest of what identifies the row, before and after. The rows are
ordered one after the other, the remaining one last. Rows with equal images are equal in everything that matters later,
so an event may belong to either.

Whether a row had the key before the transaction shows only when an event changes a row that the transaction did not
insert. Where none does and no inserted row remains, the key is the same after the transaction as before, with or
without a row: then the events are left out, as either order could be wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Image = bytes | None


@dataclass(frozen=True)
class Event:
    """A `c`, `u` or `d` of a key, with the image of its row before and after."""

    op: str
    before: Image = None
    after: Image = None


class AmbiguousRows(Exception):
    """Events that do not show which row remains with the key."""


def is_sequential(ops: str, *, empty: bool) -> bool:
    """Whether the operations alone show that each row was deleted before the next one was inserted.

    `empty` says that no row had the key before. A lone create is the first of its key, where keys are enforced.
    """
    if len(ops) < 2:
        return True
    exists = ops[0] != "c"
    if exists == empty:
        return False
    for op in ops:
        if (op == "c") == exists:
            return False
        exists = op != "d"
    return True


@dataclass(frozen=True)
class RowEvents:
    """The events of each row, by index, in the order to land them; they do not `land` where they cancel each other."""

    rows: tuple[tuple[int, ...], ...]
    land: bool


def events_by_row(events: Sequence[Event], *, empty: bool) -> RowEvents:
    """Which events belong to one row, and which row is last; `empty` says that no row had the key before.

    Raises AmbiguousRows.
    """
    rows: list[list[int]] = []
    there: dict[Image, list[list[int]]] = {}
    found = empty  # whether it is known which row had the key before
    for index, event in enumerate(events):
        standing = there.get(event.before) or []
        if event.op == "c":
            row: list[int] = []
            rows.append(row)
        elif standing:
            row = standing.pop()
        elif not found:
            found, row = True, []
            rows.append(row)
        else:
            raise AmbiguousRows("an event is of a row that was not there")
        row.append(index)
        if event.op != "d":
            there.setdefault(event.after, []).append(row)
    left = [row for standing in there.values() for row in standing]
    if len(left) > 1:
        raise AmbiguousRows("several rows were left on it")
    gone = [row for row in rows if row is not (left[0] if left else None)]
    gone.sort(key=lambda row: events[row[0]].op == "c")  # first the row that was there before the transaction
    return RowEvents(tuple(map(tuple, (*gone, *left))), land=bool(left) or found)
