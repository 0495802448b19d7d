"""How a slot shows that this product confirmed its position: a position within a record, where Postgres puts none.

WAL records begin at multiples of eight. A slot that was just made, or that another reader has consumed, stands at such
a number; ours is confirmed at the byte before. That says the same to Postgres (no record begins in between), lasts in
the slot's file, and needs nothing written into the source. A slot without it behind the lake's position was made again.
"""

ALIGNMENT = 8


def signed(lsn: int) -> int:
    """What to confirm so that everything below `lsn` is confirmed and nothing else."""
    return (lsn - 1) | (ALIGNMENT - 1)


def is_signed(confirmed: int) -> bool:
    """Whether a slot's position was confirmed by this product."""
    return confirmed % ALIGNMENT == ALIGNMENT - 1


def confirmed_below(confirmed: int) -> int:
    """The LSN below which everything is confirmed, signed or not."""
    return -(-confirmed // ALIGNMENT) * ALIGNMENT
