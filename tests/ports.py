"""Ports for the servers that a test starts."""

import random

from lakehouse_stack.home.ports import is_free

# below Linux's range for outgoing connections, and apart from the stack's own range
RANGE = range(10_000, 20_000)


def free_port() -> int:
    """A port on which a server could listen now, drawn at random: several test processes look for one at once.

    Hypothesis seeds `random` alike in each of them, so the draw is the system's.
    """
    return next(port for port in random.SystemRandom().sample(RANGE, 1_000) if is_free(port))
