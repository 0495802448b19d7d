"""Why a worker does not load what it would, as its health page says it."""

from collections.abc import Mapping

from orchestration.worker.state import TaskState

AWAY = "Trino does not answer"


def unready(states: Mapping[str, TaskState], serving: str) -> dict[str, str]:
    """Of each job, why the worker does not load what it would; empty if it does. It loads one after the other, so what
    stops one (`serving`) stops all that it serves."""
    return {job: serving if state.served else "it is left to Dagster" for job, state in states.items()}


def stuck(at: tuple[str, float] | None, most_seconds: float, now: float) -> str:
    """What it works on, if since longer than published rows may wait for a load."""
    if at is None or now - at[1] <= most_seconds:
        return ""
    return f"the worker has been at {at[0]} for {(now - at[1]) / 60:,.0f} minutes"
