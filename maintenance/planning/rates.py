"""How long an action takes: by the rate that it states, corrected by what it took before.

The stated ones are estimates for a small machine and matter only until there is history: an action of a table that
has run before is expected to be off by the same factor again; one without history, by the factor of that action on
other tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from maintenance.actions.action import Work
from maintenance.actions.registry import BY_NAME
from maintenance.planning.history import Act

LEARNED_FROM, LEAST, MOST = 5, 0.05, 20.0


@dataclass(frozen=True)
class Expected:
    """Seconds that an action is expected to take, those of the stated rate alone, and where the number is from."""

    seconds: float
    stated_seconds: float
    source: str


@dataclass(frozen=True)
class Rates:
    """Correction factors by (table, action) and by action."""

    of_table: dict[tuple[str, str], float] = field(default_factory=dict)
    of_action: dict[str, float] = field(default_factory=dict)

    def expected(self, table: str, action: str, work: Work) -> Expected:
        """How long this much work of an action takes on a table."""
        rate = BY_NAME[action].module.RATE
        stated = rate.seconds + work.bytes / rate.bytes_a_second + work.things * rate.seconds_a_thing
        if (factor := self.of_table.get((table, action))) is not None:
            return Expected(stated * factor, stated, "history of the table")
        if (factor := self.of_action.get(action)) is not None:
            return Expected(stated * factor, stated, "history of the action")
        return Expected(stated, stated, "stated rate")


def learn(acts: Iterable[Act]) -> Rates:
    """The median factors of the newest runs; `acts` is sorted newest first."""
    of_table: dict[tuple[str, str], list[float]] = defaultdict(list)
    of_action: dict[str, list[float]] = defaultdict(list)
    for act in acts:
        if act.status == "done" and act.stated_seconds:
            factor = min(MOST, max(LEAST, act.seconds / act.stated_seconds))
            of_table[act.table, act.action].append(factor)
            of_action[act.action].append(factor)
    return Rates(
        {key: median(factors[:LEARNED_FROM]) for key, factors in of_table.items()},
        {key: median(factors[: 4 * LEARNED_FROM]) for key, factors in of_action.items()},
    )
