"""The events of one key in one transaction, put in the order of the rows that they belong to.

An event names the row that it changes by the row's image: a digest of what identifies the row, before and after. The
rows come one after the other then, and the one that lives on comes last. Rows with one image are alike in everything
that could matter later, so it makes no difference which of them an event belongs to.

Whether a row stood on the key before the transaction shows only when an event changes one that the transaction has not
put there. Where none does and nothing is left of what came, the key is after the transaction as it was before, row or
no row: then the events are left out, as either order could be wrong.
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


class Untold(Exception):
    """Events that do not tell which row is left on the key."""


def goes_without_saying(ops: str, *, empty: bool) -> bool:
    """Whether the operations alone show that each row was gone before the next one came.

    `empty` says that no row stood on the key before. A lone create is the first of its key, where keys are kept to.
    """
    if len(ops) < 2:
        return True
    lives = ops[0] != "c"
    if lives == empty:
        return False
    for op in ops:
        if (op == "c") == lives:
            return False
        lives = op != "d"
    return True


@dataclass(frozen=True)
class Lives:
    """The events of each row, by index, in the order to land them; they do not `land` where they come to nothing."""

    rows: tuple[tuple[int, ...], ...]
    land: bool


def lives_of(events: Sequence[Event], *, empty: bool) -> Lives:
    """Which events are of one row, and which row comes last; `empty` says that none stood on the key before.

    Raises Untold.
    """
    lives: list[list[int]] = []
    there: dict[Image, list[list[int]]] = {}
    found = empty  # whether it is known what stood on the key before
    for index, event in enumerate(events):
        standing = there.get(event.before) or []
        if event.op == "c":
            life: list[int] = []
            lives.append(life)
        elif standing:
            life = standing.pop()
        elif not found:
            found, life = True, []
            lives.append(life)
        else:
            raise Untold("an event is of a row that was not there")
        life.append(index)
        if event.op != "d":
            there.setdefault(event.after, []).append(life)
    left = [life for standing in there.values() for life in standing]
    if len(left) > 1:
        raise Untold("several rows were left on it")
    gone = [life for life in lives if life is not (left[0] if left else None)]
    gone.sort(key=lambda life: events[life[0]].op == "c")  # first the row that was there before the transaction
    return Lives(tuple(map(tuple, (*gone, *left))), land=bool(left) or found)
