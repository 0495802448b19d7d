"""The warm worker: one that was killed and that nothing starts again, or that cannot read the project, leaves loads to
the sensors, which are slower. One that hangs keeps them away. One that is killed again and again is there each time."""

from __future__ import annotations

from lakehouse.declarations.dbt.manifest import why_unparsed
from lakehouse.metrics import sample
from lakehouse.servers.presence import at_work_for
from lakehouse.servers.worker_sessions import RESTART_SECONDS, RESTLESS, restarts_of, state_of
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import in_one_line
from lakehouse_watch.probes.reading import Reading

ENDS_SECONDS = 60.0  # a step that took so long is mostly over by then


def read_worker(settings: Settings) -> Reading:
    """Whether it lives; nothing to tell of one that has ended by itself, or was never started."""
    state = state_of(settings)
    samples = (sample("lakehouse_worker_up", state == "alive"),)
    if state == "none":
        return Reading(samples=samples)
    restless = _restless(restarts_of(settings))
    if state == "alive":
        return Reading((*_hung(settings), *restless), samples)
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
    return Reading((dead, *restless), samples)


def _restless(restarts: int) -> tuple[Occasion, ...]:
    """One that is back within seconds each time is never missed for long."""
    if restarts < RESTLESS:
        return ()
    told = Occasion(
        "worker/restarts",
        f"the worker was killed or has ended by an error, and began anew, {restarts} times within an hour: what it "
        "cannot finish is left to sensors, and takes minutes",
        "see its log, and whether its machine or container gives it too little memory", "warning",
    )  # fmt: skip
    return (told,)


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
