"""Reports maintenance to Dagster: observations on the pages of the tables, and the failure of a run."""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from maintenance.inventory.outcome import Outcome
    from maintenance.runner.result import Result

SHOWN_TABLES = 10


def reporter(context: dg.OpExecutionContext, keys: Collection[dg.AssetKey]) -> "Callable[[Outcome], None]":
    """A function that logs an outcome and, if its table has a page, adds an observation to it."""

    def report(outcome: "Outcome") -> None:
        context.log.info(describe(outcome))
        if (key := dg.AssetKey(tuple(outcome.table))) in keys:
            context.log_event(dg.AssetObservation(key, metadata=observed(outcome), description=describe(outcome)))

    return report


def observed(outcome: "Outcome") -> dict[str, Any]:
    """Figures that the table's page plots, without those that the action does not measure."""
    sides = {"before": asdict(outcome.before), "after": asdict(outcome.after)}
    probes = {"before": outcome.probes_before, "after": outcome.probes_after}
    numbers = {
        **{f"{name}_{side}": value for side, figures in sides.items() for name, value in figures.items()},
        **{
            f"probe_{name}_s_{side}": round(value, 4) for side, found in probes.items() for name, value in found.items()
        },
        "removed_files": outcome.removed_files,
        "removed_bytes": outcome.removed_bytes,
        "read_bytes": outcome.read_bytes,
        "written_bytes": outcome.written_bytes,
    }
    return {
        "action": outcome.action,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        **({"error": outcome.error} if outcome.error else {}),
        **{name: number for name, number in numbers.items() if number is not None},
    }


def check_failed_share(result: "Result", max_failed_share: float) -> None:
    """Raises Failure if more than this share of the tables failed; the metadata lists the errors by table."""
    if result.failed_share > max_failed_share:
        errors = defaultdict(list)
        for outcome in result.failed:
            errors[str(outcome.table)].append(f"{outcome.action}: {outcome.error}")
        raise dg.Failure(
            f"{len(result.failed_tables)} of {len(result.tried_tables)} tables failed, "
            f"first {describe(result.failed[0])}",
            metadata={table: "; ".join(texts) for table, texts in list(errors.items())[:SHOWN_TABLES]},
            allow_retries=False,
        )


def describe(outcome: "Outcome") -> str:
    """The outcome in one line."""
    return f"{outcome.action} of {outcome.table}: {outcome.status}, {outcome.error or outcome.reason}"
