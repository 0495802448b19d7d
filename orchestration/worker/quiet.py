"""The quiet between cuts, in which begins what nobody waits for: tests, and marts that no reader sees. Pure."""

from collections import deque
from dataclasses import dataclass, field
from math import inf

QUIET_SECONDS = 2.0  # without a cut, after which begins what nobody waits for
LONG_QUIET_SECONDS = 20.0  # the same while loads follow one another: it would be broken off, and all of it done again
FOLLOWING_SECONDS = 60.0  # from a load to the next one that follows it
LATEST_TESTS_SECONDS = 60.0  # for which tests may yield to cuts


@dataclass
class Quiet:
    """When the last loads began, when what nobody waits for begins, and until when it yields to cuts."""

    loads: deque[float] = field(default_factory=lambda: deque(maxlen=2))
    begins: float = 0.0
    yields_until: float = inf

    def seconds(self) -> float:
        """How long no cut is to come before what nobody waits for begins."""
        follows = len(self.loads) == 2 and self.loads[1] - self.loads[0] < FOLLOWING_SECONDS
        return LONG_QUIET_SECONDS if follows else QUIET_SECONDS

    def left(self, now: float) -> float:
        """In how many seconds tests may begin; none is left once they have yielded for long enough."""
        return self.begins - now if now < self.yields_until else 0.0

    def put_off(self, since: float) -> None:
        """Tests that wait since then yield to cuts, but not without end."""
        self.yields_until = min(self.yields_until, since + LATEST_TESTS_SECONDS)

    def end(self) -> None:
        """Tests have run: the next ones yield anew."""
        self.yields_until = inf
