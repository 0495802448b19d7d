"""How much of the time whole-table tests may take, and which is next. Pure: the clock is the caller's."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

SHARE = 0.1
MOST_SECONDS = 60.0
AGAIN_SECONDS = 60.0


@dataclass
class TestBudget:
    """Tests that are due, with since when, oldest first. Running them earns nothing; waiting does."""

    __test__ = False  # not a test of pytest's

    share: float = SHARE
    seconds: float = MOST_SECONDS
    at: float = 0.0
    due: dict[str, float] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)

    def changed(self, tests: Iterable[str], now: float) -> None:
        """The tables of these tests have changed; a test that waits keeps its turn."""
        self.due |= {test: now for test in tests if test not in self.due}

    def failing(self, tests: Iterable[str]) -> None:
        """These have failed, here or elsewhere; they run again, because somebody may mend their tables."""
        self.failed = dict.fromkeys(tests, self.at) | self.failed

    def forget(self, but: Collection[str]) -> None:
        """Only these tests are there now: the others are due no more."""
        self.due = {test: since for test, since in self.due.items() if test in but}
        self.failed = {test: at for test, at in self.failed.items() if test in but}

    def next(self, now: float, most: int, may: Callable[[str], bool] = lambda test: True) -> list[str]:
        """The tests to run now, of those that may, which are then no longer due; none while the budget is spent."""
        self.seconds = min(MOST_SECONDS, self.seconds + (now - self.at) * self.share)
        self.at = now
        self.changed([test for test, at in self.failed.items() if now - at >= AGAIN_SECONDS], now)
        chosen = list(filter(may, self.due))[:most] if self.seconds > 0 else []
        self.taken = {test: self.due.pop(test) for test in chosen}
        for test in chosen:
            self.failed.pop(test, None)
        return chosen

    def spent(self, seconds: float, failed: Iterable[str] = ()) -> None:
        """What running them took, and those that failed."""
        self.seconds -= seconds
        self.failing(failed)

    def interrupted(self, tests: Iterable[str], seconds: float) -> None:
        """These have yielded to a cut after so many seconds; they are the next."""
        self.due = {test: self.taken.get(test, self.at) for test in tests} | self.due
        self.spent(seconds)

    def wait(self, now: float | None = None, may: Callable[[str], bool] = lambda test: True) -> float | None:
        """Seconds until the next test that may can run, by default from the last one that did; None if none is due."""
        passed = now - self.at if now is not None else 0.0
        return max(0.0, -self.seconds / self.share - passed) if any(map(may, self.due)) else None

    def waited(self, now: float) -> float:
        """Seconds for which the one that has been due longest has been."""
        return now - min(self.due.values(), default=now)
