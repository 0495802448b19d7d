"""Makes a finding small: steps and looks are left out as long as the same kind of finding remains.

Candidates that are looked at alike are played side by side in one world; each is a case of its own.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from tests.hunt.history import History, Look, Round, Step
from tests.hunt.scripts import replay_world
from tests.hunt.world import Finding, Played, Site

TOGETHER = 24
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A history with its looks, and what is found in it."""

    history: History
    looks: tuple[Look, ...]
    finding: Finding
    live: bool = False
    anew: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Smaller is better."""
        return self.history.size

    @property
    def moves(self) -> frozenset[str]:
        """What the history is made of, and its shape: findings with equal ones are taken for one class."""
        return self.history.moves | {f"shape {self.history.shape.name}"}


def shrink(site: Site, case: Case, seconds: float) -> Case | None:
    """The smallest case that was found in time; None where the finding does not come again by itself."""
    deadline = time.monotonic() + seconds
    at = case.finding.round
    case = replace(case, history=case.history.until(at), looks=case.looks[: at + 1])
    ways = [(False, True), (case.live, case.anew)]
    again = (_play(site, [replace(case, live=live, anew=anew)])[0] for live, anew in ways)
    best = next(filter(None, again), None)
    if best is None:
        return None
    for less in (_fewer_looks, _fewer_steps, _fewer_looks, _fewer_steps):
        best = less(site, best, deadline)
    return best


def culprit(site: Site, played: Played, finding: Finding) -> Case | None:
    """The case of a crash that does not say whose it is, by halves; None where no half crashes by itself."""
    looks = played.looks[: finding.round + 1]
    left = [history.until(finding.round) for history in played.histories]
    while len(left) > 1:
        middle = len(left) // 2
        halves = (left[:middle], left[middle:])
        left = next((half for half in halves if _crashes(site, half, looks, played)), [])
    return Case(left[0], looks, replace(finding, case=0), played.live, played.anew) if left else None


def _crashes(site: Site, histories: Sequence[History], looks: Sequence[Look], played: Played) -> bool:
    again = replay_world(site, histories, looks, live=played.live, anew=played.anew)
    return any(finding.kind == "crash" for finding in again.findings)


def _fewer_looks(site: Site, case: Case, deadline: float) -> Case:
    """Looks that all load, then as few as possible."""
    case = _best(case, _play(site, [replace(case, looks=("full",) * len(case.looks))]), always=True)
    for keep in (1, 2, 3):
        if len(case.looks) > keep + 1 and time.monotonic() < deadline:
            case = _best(case, _play(site, [_merged(case, range(keep - 1, len(case.looks) - 2))]))
    number = 0
    while number < len(case.looks) - 1 and time.monotonic() < deadline:
        (found,) = _play(site, [_merged(case, [number])])
        case, number = (found, number) if found else (case, number + 1)
    return case


def _best(case: Case, found: Iterable[Case | None], *, always: bool = False) -> Case:
    smaller = [one for one in found if one is not None and (always or one.size < case.size)]
    return min(smaller, key=_size, default=case)


def _merged(case: Case, looks: Iterable[int]) -> Case:
    """Without some of the looks: what came before one comes before the next."""
    gone, rounds, kept = set(looks), list[Round](), list[Look]()
    waiting: Round = ()
    for number, (round_, look) in enumerate(zip(case.history.rounds, case.looks, strict=True)):
        waiting += round_
        if number not in gone:
            rounds.append(waiting)
            kept.append(look)
            waiting = ()
    return replace(case, history=replace(case.history, rounds=tuple(rounds)), looks=tuple(kept))


def _fewer_steps(site: Site, case: Case, deadline: float) -> Case:
    pieces = 4
    while time.monotonic() < deadline:
        places = [(r, s) for r, round_ in enumerate(case.history.rounds) for s in range(len(round_))]
        size = max(1, len(places) // pieces)
        parts = [set(part) for part in batched(places, size)]
        found = _play(site, [_without(case, part) for part in parts])
        lost = [part for part, one in zip(parts, found, strict=True) if one]
        if len(lost) > 1:  # what can be left out each by itself can often be left out together
            found += _play(site, [_without(case, set().union(*lost)), *_halves(case, lost)])
        if lost:
            case, pieces = _best(case, found, always=True), max(4, pieces // 2)
        elif size <= 1:
            return case
        else:
            pieces *= 2
    return case


def _halves(case: Case, lost: Sequence[set[tuple[int, int]]]) -> list[Case]:
    middle = len(lost) // 2
    return [_without(case, set().union(*half)) for half in (lost[:middle], lost[middle:]) if half]


def _without(case: Case, places: set[tuple[int, int]]) -> Case:
    def left(number: int, round_: Round) -> tuple[Step, ...]:
        return tuple(step for place, step in enumerate(round_) if (number, place) not in places)

    rounds = tuple(left(number, round_) for number, round_ in enumerate(case.history.rounds))
    return replace(case, history=replace(case.history, rounds=rounds))


def _play(site: Site, cases: Sequence[Case]) -> list[Case | None]:
    """Each of the cases, cut off behind the kind of finding that comes again in it, or None."""
    found: list[Case | None] = []
    for _, alike in groupby(cases, key=lambda case: (case.looks, case.live, case.anew)):
        for some in batched(alike, 1 if cases[0].finding.kind == "crash" else TOGETHER):
            found += _play_together(site, some)
    return found


def _play_together(site: Site, cases: Sequence[Case]) -> list[Case | None]:
    first, found = cases[0], list[Case | None]([None] * len(cases))
    histories = [case.history for case in cases]
    for finding in replay_world(site, histories, first.looks, live=first.live, anew=first.anew).findings:
        number = finding.case or 0
        if finding.kind == first.finding.kind:
            looks = first.looks[: finding.round + 1]
            cut = histories[number].until(finding.round)
            found[number] = replace(cases[number], history=cut, looks=looks, finding=finding)
    return found


def _size(case: Case) -> tuple[int, int]:
    return case.size


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """As itertools has it from Python 3.12 on."""
    rest = list(items)
    for first in range(0, len(rest), size):
        yield tuple(rest[first : first + size])
