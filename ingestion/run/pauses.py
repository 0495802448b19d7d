"""How long a source that failed is left alone."""

from dataclasses import dataclass

LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Pauses:
    """Twice as long after each failure, and as short as at first once a try has lasted: what failed before is over."""

    first: float
    seconds: float = 0.0

    def after(self, lasted: float) -> float:
        """Seconds until the next try, after one that failed when it had lasted so long."""
        again = self.first if lasted > LONGEST_PAUSE_SECONDS else 2 * self.seconds
        self.seconds = min(max(again, self.first), LONGEST_PAUSE_SECONDS)
        return self.seconds
