"""The result of a maintenance run: its outcomes, the worst first, and whether it failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.errors import LakehouseError
from maintenance.inventory.outcome import Outcome, TableName

ORDER = {"failed": 0, "done": 1, "planned": 2, "skipped": 3}


@dataclass(frozen=True)
class Result:
    """All outcomes of a run, the worst first."""

    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes that are failures."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    @property
    def tried_tables(self) -> frozenset[TableName]:
        """The tables with an outcome that was not skipped."""
        return frozenset(outcome.table for outcome in self.outcomes if outcome.status != "skipped")

    @property
    def failed_tables(self) -> frozenset[TableName]:
        """The tables with a failure."""
        return frozenset(outcome.table for outcome in self.failed)

    @property
    def failed_share(self) -> float:
        """The share of failed tables among those tried, from 0 to 1."""
        return len(self.failed_tables) / len(self.tried_tables) if self.tried_tables else 0.0

    def check(self, max_failed_share: float = 0.0) -> None:
        """Raises LakehouseError if more than this share of the tables failed."""
        if self.failed_share > max_failed_share:
            first = self.failed[0]
            raise LakehouseError(
                f"maintenance failed for {len(self.failed_tables)} of {len(self.tried_tables)} tables, "
                f"first {first.action} of {first.table}: {first.error}"
            )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {status: sum(o.status == status for o in self.outcomes) for status in ORDER}
        return {"counts": counts, "outcomes": [outcome.as_dict() for outcome in self.outcomes]}


def sorted_result(outcomes: list[Outcome]) -> Result:
    """The worst first: failures, then what was done, the longest first."""
    return Result(tuple(sorted(outcomes, key=lambda o: (ORDER[o.status], -o.seconds, str(o.table), o.action))))
