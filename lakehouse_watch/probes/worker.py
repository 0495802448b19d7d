"""The warm worker: one that was killed and that nothing starts again, or that cannot read the project, leaves loads to
the sensors, which are slower. One that hangs keeps them away."""

from __future__ import annotations

from lakehouse.declarations.dbt.manifest import why_unparsed
from lakehouse.metrics import sample
from lakehouse.servers.presence import at_work_for
from lakehouse.servers.worker_sessions import RESTART_SECONDS, state_of
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import in_one_line
from lakehouse_watch.probes.reading import Reading

ENDS_SECONDS = 60.0  # a step that took so long is mostly over by then


def read_worker(settings: Settings) -> Reading:
    """Whether it lives; nothing to tell of one that has ended by itself, or was never started."""
    state = state_of(settings)
    samples = (sample("lakehouse_worker_up", state == "alive"),)
    if state == "alive":
        return Reading(_hung(settings), samples)
    if state == "none":
        return Reading(samples=samples)
    why = why_unparsed(settings)
    unread = f"it cannot read the project ({in_one_line(why)})" if why else None
    gone = unread or "it was killed, lost its machine, or cannot read the project"
    dead = Occasion(
        "worker/lake",
        f"no worker is at work: {gone}; sensors load in its place, and a commit takes minutes to its mart",
        "look at its log: correct the project where that says so, else start `lakehouse worker` again; nothing is lost"
        " meanwhile",
        "warning", patience=RESTART_SECONDS,
    )  # fmt: skip
    return Reading((dead,), samples)


def _hung(settings: Settings) -> tuple[Occasion, ...]:
    """One where it has been at a step for as long as published rows may wait, which its own `/ready` says as well."""
    seconds = at_work_for(settings)
    if seconds <= settings.alerts.load_seconds:
        return ()
    hung = Occasion(
        "worker/step",
        f"the worker has been at one step for {seconds / 60:,.0f} minutes: it, or a statement of it in Trino, hangs",
        "see its log and `system.runtime.queries` in Trino: cancel the statement, or end the worker, and sensors load "
        "what is left", patience=ENDS_SECONDS,
    )  # fmt: skip
    return (hung,)
