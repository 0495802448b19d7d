"""A run's events as lines for a terminal."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg

from lakehouse.files.logs import rotate
from lakehouse.files.private_files import private_dir
from lakehouse.text.shown import visible
from orchestration.runs.arrivals import ARRIVED, STATE, Aside

Say = Callable[[str], None]
HELD_BACK = "held back"
"""The status, in an observation, of a mart that a run was to build and has left as it was."""


def describe(event: dg.DagsterEvent) -> Iterator[str]:
    """At most one line: start or end of a step, rows of a table, a failed check."""
    kind = event.event_type
    if kind is dg.DagsterEventType.STEP_START:
        yield f"  {event.step_key} …"
    elif kind is dg.DagsterEventType.STEP_SUCCESS:
        yield f"  {event.step_key} done in {event.step_success_data.duration_ms / 1000:.1f} s"
    elif kind is dg.DagsterEventType.STEP_FAILURE:
        yield f"  {event.step_key} FAILED"
    elif kind is dg.DagsterEventType.ASSET_MATERIALIZATION:
        yield from _materialization(event.step_materialization_data.materialization)
    elif kind is dg.DagsterEventType.ASSET_OBSERVATION:
        yield from _observation(event.asset_observation_data.asset_observation)
    elif kind is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        yield from _check(event.asset_check_evaluation_data)


def _materialization(event: dg.AssetMaterialization) -> Iterator[str]:
    rows = _number(event, "dagster/row_count")
    added = _number(event, "rows_added")
    if rows is not None:
        yield f"    {_name(event.asset_key)}  {rows:,} rows" + (f", {added:,} added last" if added is not None else "")


def _observation(event: dg.AssetObservation) -> Iterator[str]:
    status = event.metadata.get("status")
    if status is not None and status.value in ("done", "failed", HELD_BACK):
        yield f"    {event.description}"


def _check(check: dg.AssetCheckEvaluation) -> Iterator[str]:
    if not check.passed:
        why = f": {check.description}" if check.description else ""
        yield f"    check {check.check_name} of {_name(check.asset_key)}: {check.severity.value}{why}"


def set_aside(event: dg.DagsterEvent) -> Iterator[Aside]:
    """The raw table that a load did not bring, by its check; none that the user has paused."""
    if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        check = event.asset_check_evaluation_data
        state = check.metadata.get(STATE)
        if check.check_name == ARRIVED and not check.passed and state is not None and state.value != "paused":
            schema, name = check.asset_key.path
            yield Aside(f"{schema.removeprefix('raw_')}.{name}", str(state.value), check.description or "")


def held_back(event: dg.DagsterEvent) -> Iterator[tuple[str, str]]:
    """The mart that a run was to build and has left as it was, with the reason."""
    if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
        seen = event.asset_observation_data.asset_observation
        if (status := seen.metadata.get("status")) is not None and status.value == HELD_BACK:
            yield _name(seen.asset_key), str(seen.metadata["reason"].value)


def _number(event: dg.AssetMaterialization | dg.AssetObservation, name: str) -> int | None:
    value = event.metadata.get(name)
    return value.value if isinstance(value, dg.IntMetadataValue) else None


def _name(key: dg.AssetKey) -> str:
    return ".".join(key.path)


@contextmanager
def only_progress(log: Path, to_stderr: bool) -> Iterator[Say]:
    """Redirects the output of dbt, Spark and the JVM to `log`; the yielded function still prints to the terminal."""
    private_dir(log.parent)
    with suppress(OSError):
        rotate(log)
    saved = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield lambda text: _write(saved[1 if to_stderr else 0], text)
    finally:
        for descriptor, copy in enumerate(saved, start=1):
            os.dup2(copy, descriptor)
            os.close(copy)


def _write(descriptor: int, text: str) -> None:
    os.write(descriptor, f"{visible(text)}\n".encode())
