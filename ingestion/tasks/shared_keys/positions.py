"""The `_seq` of events that were put in order: a rank before the place at which the source sent them.

All events of a key and transaction get one, so they follow each other by rank. The place stays readable: it makes the
`_seq` unique, and tells the two halves of a key change.
"""

import math

_PLACE_BITS = 40  # of messages of a transaction, twice
_RANK_BITS = 19  # below the numbers that a repair gives
MAX_RANK = (1 << _RANK_BITS) - 1


def ranked(rank: int, seq: int) -> int:
    """The `_seq` of the event that comes at this rank, from 1 on, among those of its key."""
    return rank << _PLACE_BITS | sent_at_seq(seq)


def sent_at_seq(seq: int) -> int:
    """The `_seq` that it would have as the source sent it."""
    ordered = 0 < seq >> _PLACE_BITS <= MAX_RANK
    return seq & ((1 << _PLACE_BITS) - 1) if ordered else seq


def sent_at(seq: float) -> float:
    """The same of a bound, which may be infinite."""
    return seq if math.isinf(seq) else sent_at_seq(int(seq))
