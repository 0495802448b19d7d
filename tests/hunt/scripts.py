"""The two scripts of a world: histories that are written while they are played, and histories that are known."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ingestion.state import store
from tests.hunt.author import Author
from tests.hunt.history import History, Look, Round, Shape
from tests.hunt.play import Stage, tables_of
from tests.hunt.world import Played, Site, play


@dataclass
class Written:
    """Written while it is played."""

    authors: Sequence[Author]
    looks: Sequence[Look]
    moves: Counter[str] = field(default_factory=Counter)

    def round(self, stage: Stage, case: int, number: int) -> Round:
        """A user sees to parked tables now and then."""
        author = self.authors[case]
        done = author.round(stage)
        if self.looks[number] == "full":
            done += author.finish(stage)
            if number and author.rng.random() < 0.4 and _is_parked(stage, case):
                done += author.mend(stage)
        self.moves.update(step.move for step in done if step.move)
        return tuple(done)

    def inside(self, stage: Stage, case: int, number: int, place: str) -> Round:
        """Seldom anything."""
        return tuple(self.authors[case].inside(stage, place))


@dataclass(frozen=True)
class Known:
    """Histories that are known; those with fewer rounds begin later."""

    histories: Sequence[History]
    looks: Sequence[Look]

    def round(self, stage: Stage, case: int, number: int) -> Round:
        """As it was."""
        steps = self._steps(case, number)
        for step in steps:
            if not step.inside:
                stage.do(list(stage.cases)[case], step)
        return tuple(step for step in steps if not step.inside)

    def inside(self, stage: Stage, case: int, number: int, place: str) -> Round:
        """As it was."""
        steps = tuple(step for step in self._steps(case, number) if step.inside == place)
        for step in steps:
            stage.do(list(stage.cases)[case], step)
        if steps:
            stage.end_transactions(only_locking=False, of=list(stage.cases)[case])
        return steps

    def _steps(self, case: int, number: int) -> Round:
        at = number - (len(self.looks) - len(self.histories[case].rounds))
        return self.histories[case].rounds[at] if at >= 0 else ()


def write_world(
    site: Site, seed: int, shapes: Sequence[Shape], looks: Sequence[Look], without: frozenset[str] = frozenset()
) -> Played:
    """A world of new histories; the same seed writes the same one."""
    rng = random.Random(seed)
    authors = [Author(random.Random(f"{seed} {i}"), shape, f"h{i:02}", without) for i, shape in enumerate(shapes)]
    script = Written(authors, looks)
    played = play(site, shapes, looks, script, live=rng.random() < 0.4, anew=rng.random() < 0.9)
    played.moves = script.moves
    return played


def _is_parked(stage: Stage, case: int) -> bool:
    schema = list(stage.cases)[case]
    with store.connect_catalog(stage.world.settings) as states:
        positions = store.read_positions(states, stage.world.source.name)
    return any(
        table in positions and positions[table].state in ("parked", "new") and positions[table].reason
        for table in tables_of(schema, stage.cases[schema])
    )


def replay_world(
    site: Site, histories: Sequence[History], looks: Sequence[Look], *, live: bool = False, anew: bool = True
) -> Played:
    """A world of histories that are known."""
    shapes = [history.shape for history in histories]
    return play(site, shapes, looks, Known(histories, looks), live=live, anew=anew)
