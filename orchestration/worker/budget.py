"""How much of the time whole-table tests may take, and which is next. Pure: the clock is the caller's."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SHARE = 0.1
MOST_SECONDS = 60.0
AGAIN_SECONDS = 60.0


@dataclass
class TestBudget:
    """Tests that are due since their tables changed, oldest first. Running them earns nothing; waiting does."""

    __test__ = False  # not a test of pytest's

    share: float = SHARE
    seconds: float = MOST_SECONDS
    at: float = 0.0
    due: dict[str, None] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)

    def changed(self, tests: Iterable[str]) -> None:
        """The tables of these tests have changed; a test that waits keeps its turn."""
        self.due |= {test: None for test in tests if test not in self.due}

    def failing(self, tests: Iterable[str]) -> None:
        """These have failed, here or elsewhere; they run again, because somebody may mend their tables."""
        self.failed = dict.fromkeys(tests, self.at) | self.failed

    def forget(self, but: Collection[str]) -> None:
        """Only these tests are there now: the others are due no more."""
        self.due = {test: None for test in self.due if test in but}
        self.failed = {test: at for test, at in self.failed.items() if test in but}

    def next(self, now: float, most: int) -> list[str]:
        """The tests to run now, which are then no longer due; none while the budget is spent."""
        self.seconds = min(MOST_SECONDS, self.seconds + (now - self.at) * self.share)
        self.at = now
        self.changed([test for test, at in self.failed.items() if now - at >= AGAIN_SECONDS])
        chosen = list(self.due)[:most] if self.seconds > 0 else []
        for test in chosen:
            del self.due[test]
            self.failed.pop(test, None)
        return chosen

    def spent(self, seconds: float, failed: Iterable[str] = ()) -> None:
        """What running them took, and those that failed."""
        self.seconds -= seconds
        self.failing(failed)

    def interrupted(self, tests: Iterable[str], seconds: float) -> None:
        """These have yielded to a cut after so many seconds; they are the next."""
        self.due = dict.fromkeys(tests) | self.due
        self.spent(seconds)

    def wait(self, now: float | None = None) -> float | None:
        """Seconds until the next test may run, by default from the last one that did; None if none is due."""
        passed = now - self.at if now is not None else 0.0
        return max(0.0, -self.seconds / self.share - passed) if self.due else None
