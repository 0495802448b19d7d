"""Decides, before a read, what happens to each table's records, and after it, where the table stands. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingestion.pipeline.survey import Outlook
from ingestion.schema.evolve import Change, Step, Versions, changes, prune, rename_in, resync_reason, steps
from ingestion.schema.facts import TOPIC, Leaf, TableFacts
from ingestion.schema.positions import Position
from ingestion.schema.problem import TableProblem
from ingestion.state.store import TablePosition
from ingestion.tasks.lanes import Findings


@dataclass(frozen=True)
class Course:
    """One table's course through a read: its position `before` the read, and the one that the read goes by.

    `aside` is why its records go to the spool; None while they land. `steps` are what the raw table follows first.
    """

    before: TablePosition
    position: TablePosition
    aside: str | None
    steps: tuple[Step, ...] = ()
    changes: tuple[Change, ...] = ()
    effect: str = "applied"

    @property
    def followed(self) -> TableFacts:
        """The description from which the steps lead on; one without columns where none is kept."""
        return self.before.followed if self.before.versions else self.position.facts.without_columns


def plan_course(position: TablePosition, outlook: Outlook, *, consent: bool = False) -> Course:
    """What happens to the records of a table, given its position and its survey."""
    if not position.lands:
        return Course(position, _noted(position, outlook), position.reason or position.state)
    if outlook.problem or outlook.facts is None:
        return _parked(position, outlook, outlook.problem or "")
    if not position.versions:  # a recovery has forgotten them, and the raw table follows before anything lands
        described = replace(position, versions=(outlook.facts,), fingerprint=outlook.fingerprint)
        taken = steps(outlook.table, outlook.facts.without_columns, outlook.facts, consent=True)
        return Course(position, described, None, taken)
    if position.fingerprint == outlook.fingerprint and not position.unfollowed:
        return Course(position, position, None)
    try:
        versions, to_take = _follow(position, outlook, consent)
    except TableProblem as problem:
        return _parked(position, outlook, str(problem))
    followed = replace(position, versions=versions, fingerprint=outlook.fingerprint, unfollowed=0)
    return Course(position, followed, None, to_take, changes(position.facts, outlook.facts))


def _follow(position: TablePosition, outlook: Outlook, consent: bool) -> tuple[Versions, tuple[Step, ...]]:
    """The descriptions, as the raw table's columns will be called, and the steps from the first unfollowed one on."""
    position = _without_unread(_noted(position, outlook))
    versions = position.versions
    taken: tuple[Step, ...] = ()
    for after in range(len(versions) - position.unfollowed, len(versions)):
        earlier, before, now = versions[: after - 1], versions[after - 1], versions[after]
        found = steps(outlook.table, before, now, consent=consent, earlier=earlier)
        versions = (*rename_in(versions[:after], found), *versions[after:])
        taken += found
    return versions, taken


def _without_unread(position: TablePosition) -> TablePosition:
    """Without the descriptions of a topic of which there is nothing: kept events are read by the newest one, which is
    the declaration, so none is of an earlier one that was not followed."""
    versions, unfollowed = position.versions, position.unfollowed
    while unfollowed > 1 and versions[-1].relkind == TOPIC and versions[-2].oid == versions[-1].oid:
        versions, unfollowed = (*versions[:-2], versions[-1]), unfollowed - 1
    return replace(position, versions=versions, unfollowed=unfollowed)


def _noted(position: TablePosition, outlook: Outlook) -> TablePosition:
    """Adds the description of a table whose records go to the spool, which will have to be read."""
    if outlook.facts is None or not position.versions or position.fingerprint == outlook.fingerprint:
        return position
    return replace(
        position,
        versions=(*position.versions, outlook.facts),
        fingerprint=outlook.fingerprint,
        unfollowed=position.unfollowed + 1,
        resync_reason=position.resync_reason or resync_reason(position.facts, outlook.facts),
    )


def _parked(position: TablePosition, outlook: Outlook, problem: str) -> Course:
    noted = _noted(position, outlook)
    parked = replace(noted, state="parked", reason=problem, resync_reason=noted.resync_reason or _unfinished(position))
    altered = changes(position.facts, parked.facts) if position.versions else ()
    return Course(position, parked, problem, changes=altered, effect="parked")


def _unfinished(position: TablePosition) -> str | None:
    """Why a repair is due once a table's records land again, whose snapshot or repair was under way."""
    if position.state == "loading":
        return "its first load was not finished"
    return position.reason or "it needed a resync" if position.state == "stale" else None


def conclude(course: Course, noticed: Findings, reached: Position) -> Course:
    """Where the table stands after the read up to `reached`."""
    position = course.position
    position = replace(position, resync_reason=position.resync_reason or _passing_partition(course, noticed))
    reason = noticed.stale or position.resync_reason
    if course.before.versions and course.position.fingerprint != course.before.fingerprint:
        reason = reason or resync_reason(course.before.facts, position.facts, noticed.truncates)
        reason = reason or _moved(course.before, position)
    reason = reason or _begun_anew(course.steps)
    if noticed.parked is not None:
        parked = replace(
            position, state="parked", reason=noticed.parked, resync_reason=reason or _unfinished(course.before)
        )
        return replace(course, position=parked, aside=noticed.parked, effect="parked")
    if course.aside is not None:
        return replace(course, position=replace(position, resync_reason=position.resync_reason or noticed.stale))
    position = replace(position, versions=prune(position.versions, reached.commit_bound), resync_reason=None)
    if reason is None:
        return replace(course, position=position)
    if course.before.versions and course.before.facts.oid != position.facts.oid:
        position = replace(position, versions=position.versions[-1:])
    begun_anew = position.state == "loading"
    # A repair that is under way knows nothing of what was noticed meanwhile: another one has to follow.
    again = reason if position.state == "stale" else None
    position = replace(position, state="new" if begun_anew else "stale", reason=reason, resync_reason=again)
    return replace(course, position=position, effect=f"read anew: {reason}")


def _passing_partition(course: Course, noticed: Findings) -> str | None:
    """Why rows of the stream may be gone: they came into a partition that no inspection has seen, or only when it was
    empty again. Neither a TRUNCATE of a partition alone is streamed, nor what happens to one that is detached; a DELETE
    of its rows is."""
    first: dict[int, tuple[TableFacts, Leaf]] = {}
    for facts in (*course.before.versions, *course.position.versions):
        for leaf in facts.leaves:
            first.setdefault(leaf.oid, (facts, leaf))
    if noticed.partitions.keys() - first.keys():
        return "a partition came, had changes and went again"
    begun, explained = course.before.position.commit_bound, noticed.truncates.by - noticed.truncates.refilled_by
    for facts, leaf in first.values():
        is_new = leaf.oid in noticed.partitions and facts.lsn > begun
        emptied = is_new and not leaf.has_rows and leaf.changed_by not in explained
        if emptied and _may_lack_told(facts, leaf, noticed.partitions[leaf.oid]):
            return f"partition {leaf.name} came, had changes and was empty again"
    return None


def _may_lack_told(facts: TableFacts, leaf: Leaf, xid: int) -> bool:
    """Whether a partition may have lost rows unseen that came by transaction `xid`, or later.

    A table's first file has the number of its oid, and a TRUNCATE makes another one, except in the transaction that
    made the table. While it, or one above it, is detached its rows may go, too. All of that shows but where it was
    attached before the first row came, and has its first file.
    """
    leaves = {other.oid for other in facts.leaves} - {leaf.oid}
    attached = {oid: by for oid, by in facts.edges or () if oid not in leaves}
    is_later = any((by - xid) % (1 << 32) < 1 << 31 for by in attached.values())
    return leaf.filenode != leaf.oid or leaf.oid not in attached or is_later


def _moved(before: TablePosition, now: TablePosition) -> str | None:
    """Why a snapshot under way cannot go on: what is left of it to read is kept by name."""
    old, new = ({leaf.oid: leaf.name for leaf in facts.leaves} for facts in (before.facts, now.facts))
    renamed = before.facts.relation != now.facts.relation or any(
        new.get(oid, name) != name for oid, name in old.items()
    )
    return "it was renamed before its snapshot was finished" if renamed and before.state == "loading" else None


def _begun_anew(taken: tuple[Step, ...]) -> str | None:
    """Why old rows lack values: the raw column was set aside and begun anew, but Postgres did not rewrite the table."""
    aside = {step.column for step in taken if step.action == "set aside"}
    anew = sorted(aside & {step.column for step in taken if step.action == "add"})
    return f"column {', '.join(anew)} begins anew with another type" if anew else None


def covered(positions: Mapping[str, TablePosition], reached: Position) -> tuple[str, ...]:
    """The tables that a cut at `reached` holds in full."""
    return tuple(
        sorted(
            name
            for name, position in positions.items()
            if position.state == "streaming" and position.position <= reached and position.point <= reached
        )
    )
