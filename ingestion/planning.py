"""Decides, before a read, what happens to each table's records, and after it, where the table stands. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingestion.describe import TableProblem
from ingestion.evolve import Change, Step, changes, doubt, prune, rename_in, steps
from ingestion.lanes import Kept
from ingestion.state import Position
from ingestion.survey import Outlook


@dataclass(frozen=True)
class Course:
    """One table's course through a read: `before` it, and with what it is read.

    `aside` is why its records go to the spool; None while they land. `steps` are what the raw table follows first.
    """

    before: Position
    position: Position
    aside: str | None
    steps: tuple[Step, ...] = ()
    changes: tuple[Change, ...] = ()
    effect: str = "applied"


def plan_course(position: Position, outlook: Outlook, *, consent: bool = False) -> Course:
    """What happens to the records of a table, given where it stands and how it looks now."""
    if not position.lands:
        return Course(position, position, aside=position.reason or position.state)
    if outlook.problem or outlook.facts is None:
        return _parked(position, outlook.problem or "")
    if not position.versions:
        return Course(position, replace(position, versions=(outlook.facts,), fingerprint=outlook.fingerprint), None)
    if position.fingerprint == outlook.fingerprint:
        return Course(position, position, None)
    try:
        to_take = steps(outlook.table, position.facts, outlook.facts, consent=consent)
    except TableProblem as problem:
        return _parked(position, str(problem), changes(position.facts, outlook.facts))
    renames = {step.column: step.to for step in to_take if step.action == "rename"}
    versions = (*rename_in(position.versions, renames), outlook.facts)
    followed = replace(position, versions=versions, fingerprint=outlook.fingerprint)
    return Course(position, followed, None, to_take, changes(position.facts, outlook.facts))


def _parked(position: Position, problem: str, altered: tuple[Change, ...] = ()) -> Course:
    parked = replace(position, state="parked", reason=problem)
    return Course(position, parked, problem, changes=altered, effect="parked")


def conclude(course: Course, noticed: Kept, reached: int) -> Course:
    """Where the table stands after the read up to `reached`."""
    position = course.position
    if noticed.parked is not None:
        return replace(
            course, position=replace(position, state="parked", reason=noticed.parked), aside=noticed.parked,
            effect="parked",
        )  # fmt: skip
    if course.aside is not None:
        return course
    reason = noticed.stale
    if course.before.versions and course.position.fingerprint != course.before.fingerprint:
        reason = reason or doubt(course.before.facts, position.facts, noticed.truncated_by)
    position = replace(position, versions=prune(position.versions, reached))
    if reason is None:
        return replace(course, position=position)
    if course.before.facts.oid != position.facts.oid:
        position = replace(position, versions=position.versions[-1:])
    begun_anew = position.state == "loading"
    position = replace(position, state="new" if begun_anew else "stale", reason=reason)
    return replace(course, position=position, effect=f"read anew: {reason}")


def covered(positions: Mapping[str, Position], reached: int) -> tuple[str, ...]:
    """The tables that a cut at `reached` holds in full."""
    return tuple(
        sorted(
            name
            for name, position in positions.items()
            if position.state == "streaming" and position.lsn <= reached and position.point <= reached
        )
    )
