"""Whose rows come as those of another relation.

Rows of a partition come as its root's; Postgres describes the root and then the partition right before the first of
them (`maybe_send_schema` in pgoutput.c), each behind the types of its columns that are not built in.
"""

from collections.abc import Sequence

import numpy as np

from ingestion.schema.changes import Relation

_ROWS = (ord("I"), ord("U"), ord("D"))
_TYPE = ord("Y")


def carried_partitions(
    described: tuple[Relation, ...], kind: np.ndarray, changes: Sequence[tuple[int, Relation]]
) -> tuple[dict[tuple[Relation, Relation], int], tuple[Relation, ...]]:
    """The partitions of a block, each behind its root, with the index of its first row's message, and the relations
    described at the block's end, two at most.

    `described` are those at the end of the block before, `kind` the kinds of this block's messages, `changes` its
    descriptions by the message's index.
    """
    messages = np.flatnonzero(kind != _TYPE)
    place = {int(index): number for number, index in enumerate(messages.tolist()) if kind[index] == ord("R")}
    at = {place[index]: relation for index, relation in changes}
    found, run = dict[tuple[Relation, Relation], int](), described
    for number in sorted({0, *at, *(after + 1 for after in at)}):
        if number >= len(messages):
            continue
        if number in at:
            run = (*run[-1:], at[number]) if number == 0 or number - 1 in at else (at[number],)
        elif len(run) == 2 and run[0].oid != run[1].oid and kind[messages[number]] in _ROWS:
            found.setdefault((run[0], run[1]), int(messages[number]))
            run = ()
        else:
            run = ()
    ended = len(messages) == 0 or len(messages) - 1 in at
    return found, run if ended else ()
