"""The expected time of an action: its stated rate, corrected by earlier runs.

Stated rates are estimates for a small machine. The correction is the median factor between actual and stated time of
this action on this table; without such history, of this action on other tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from maintenance.actions.need import Work
from maintenance.actions.registry import BY_NAME
from maintenance.planning.history import Act

LEARNED_FROM, LEAST, MOST = 5, 0.05, 20.0


@dataclass(frozen=True)
class Expected:
    """The expected seconds of an action, those by the stated rate alone, and the origin of the expectation."""

    seconds: float
    stated_seconds: float
    source: str


@dataclass(frozen=True)
class Rates:
    """Correction factors by (table, action) and by action."""

    of_table: dict[tuple[str, str], float] = field(default_factory=dict)
    of_action: dict[str, float] = field(default_factory=dict)

    def expected(self, table: str, action: str, work: Work) -> Expected:
        """The expected time of an action's work on a table."""
        rate = BY_NAME[action].module.RATE
        stated = rate.fixed_cost + work.bytes / rate.throughput + work.items * rate.cost_per_item
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
