"""Worlds one after another until the time is up; findings are made small, and told apart by what they are made of."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings
from tests.clusters import cluster
from tests.hunt.history import Look, Shape
from tests.hunt.scripts import write_world
from tests.hunt.shapes import SHAPES
from tests.hunt.shrink import Case, culprit, shrink
from tests.hunt.world import Played, Site

SERVER = {"max_connections": "300", "autovacuum": "off", "max_replication_slots": "20"}
SHRINK_SECONDS = 150.0


@dataclass(frozen=True)
class Size:
    """How much one world holds."""

    cases: int = 24
    looks: int = 9


@dataclass
class Tally:
    """What was done and found so far.

    `known` counts findings that look like one that was made small already, `untold` crashes that did not say whose.
    """

    histories: int = 0
    looks: int = 0
    compared: int = 0
    seconds: float = 0.0
    cases: list[Case] = field(default_factory=list)
    known: int = 0
    untold: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        pace = self.histories / self.seconds * 60 if self.seconds else 0
        return (
            f"{self.histories} histories, {self.looks} looks, {self.compared} tables compared in {self.seconds:.0f} s "
            f"({pace:.0f} histories, {self.looks / max(self.seconds, 1) * 60:.1f} looks a minute); "
            f"{len(self.cases)} findings made small, {self.known} more like them, {self.untold} crashes of no case"
        )


@contextmanager
def site(settings: Settings, version: str) -> Iterator[Site]:
    """A throw-away cluster of a version beside the lake's stack."""
    with cluster(version, **SERVER) as made:
        yield Site(made, settings, spark_session(settings, "lakehouse-hunt"))


def plan(seed: int, size: Size) -> tuple[list[Shape], list[Look]]:
    """Shapes and looks of a seed's world; the first look and the last one load."""
    rng = random.Random(f"plan {seed}")
    shapes = rng.choices([shape for _, shape in SHAPES], [weight for weight, _ in SHAPES], k=size.cases)
    middle: list[Look] = rng.choices(["full", "catch"], [2, 3], k=max(0, size.looks - 2))
    return shapes, ["full", *middle, "full"]


def hunt_world(here: Site, seed: int, size: Size, without: frozenset[str], tally: Tally) -> Played:
    """Plays the world of a seed and counts it."""
    shapes, looks = plan(seed, size)
    shapes = [shape for shape in shapes if f"shape {shape.name}" not in without]
    played = write_world(here, seed, shapes, looks, without)
    tally.histories += len(shapes)
    tally.looks += len(looks)
    tally.compared += played.compared
    tally.seconds += played.seconds
    tally.reasons += played.reasons
    tally.moves += played.moves
    return played


def cases_of(played: Played) -> list[Case]:
    """The findings that are of one case, shortest first."""
    found = [
        Case(played.histories[f.case].until(f.round), played.looks[: f.round + 1], f, played.live, played.anew)
        for f in played.findings
        if f.case is not None
    ]
    return sorted(found, key=lambda case: case.size)


def hunt(
    here: Site, seconds: float, first_seed: int, size: Size, without: frozenset[str], say: Callable[[str], None],
    keep: Callable[[Case, int, bool], None],
) -> Tally:  # fmt: skip
    """Hunts; `keep` is given every finding, with its seed and whether it is of a new class."""
    tally, begun, seed = Tally(), time.monotonic(), first_seed
    while time.monotonic() - begun < seconds:
        played = hunt_world(here, seed, size, without, tally)
        say(f"seed {seed}: {len(played.findings)} findings; {tally}")
        for finding in played.findings:
            if finding.case is None:
                say(f"seed {seed}: {finding.kind} at look {finding.round}, which does not say whose: {finding.text}")
                tally.untold += 1
        told = [culprit(here, played, finding) for finding in played.findings if finding.case is None]
        for case in [*cases_of(played), *filter(None, told)]:
            if any(known.moves <= case.moves and known.finding.kind == case.finding.kind for known in tally.cases):
                tally.known += 1
                keep(case, seed, False)
                continue
            left = seconds + SHRINK_SECONDS - (time.monotonic() - begun)
            small = (shrink(here, case, min(SHRINK_SECONDS, left)) if left > 0 else None) or case
            tally.cases.append(small)
            keep(small, seed, True)
        seed += 1
    return tally
