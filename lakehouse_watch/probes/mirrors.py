"""Mirrors that stand still: they are read and exported as if they were fresh, and current views wait for the next
refresh before a truncate or a recovery.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingestion.state.lease import Follower
from ingestion.state.refreshes import Refreshes, mirror_refreshes
from lakehouse.declarations import Declarations, Source
from lakehouse.metrics import sample
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import declared_sources
from lakehouse_watch.probes.reading import Reading

TURNS = 5  # of a follower's refreshes, which may come late or fail once
LEAST_SECONDS = 300.0  # on a shorter pace a refresh may take some turns, and so may the first one of a follower
LONG_SECONDS = 3600.0  # a large mirror is built, or maintenance works on one
ALONE_SECONDS = 26 * 3600.0  # without a follower somebody refreshes by hand, or by a schedule
UNTIL_THEN = "mirrors and second catalogs show that state, and current views may stay before a truncate or a recovery"


def read_mirrors(settings: Settings) -> Reading:
    """Of each source whether its mirrors stand still, and which of them. Nothing is known of sources before the project
    is parsed; a follower that was killed is told of by itself, so that its mirrors' alerts stay as they were.
    """
    declared = declared_sources(settings)
    if declared is None:
        return Reading(unknown=("mirrors/",))
    found, dead, known = list[Occasion](), list[str](), mirror_refreshes(settings)
    sources = Declarations(sources=declared).among(settings.sources).sources
    mirrored = [(source, *known[source.name]) for source in sources if source.mirrored and source.name in known]
    for source, follower, at in mirrored:
        found += left_behind(source, at)
        if follower in ("dead", "hung"):
            dead.append(f"mirrors/{source.name}")
        elif (still := stand_still(source, follower, at)) is not None:
            found.append(still)
    samples = tuple(
        sample("lakehouse_mirror_behind_seconds", at.behind_seconds or 0.0, source=source.name)
        for source, _, at in mirrored
        if at.was_done
    )
    return Reading(tuple(found), samples, unknown=tuple(dead))


def stand_still(source: Source, follower: Follower, at: Refreshes) -> Occasion | None:
    """What is to be told of all mirrors of a source.

    None of mirrors that were never made where nobody follows: current views are dbt's then, as of the last load.
    """
    is_followed, name = follower == "alive", source.name
    if at.behind_seconds is None or not (_is_overdue(source, at) if is_followed else _is_forgotten(at)):
        return None
    lack = f"lack what was published {at.behind_seconds / 60:,.0f} minutes ago" if at.was_done else "were not made yet"
    why, to_do = _why(name, is_followed, at)
    is_slow = not _fails(at) and (at.at_work or at.outcome == "held")
    return Occasion(
        f"mirrors/{name}", f"mirrors of {name} {lack}: {why}", f"{to_do}; until then {UNTIL_THEN}",
        "warning" if is_slow or not is_followed else "error", name,
        patience=_usual(source) if is_followed else 0.0,  # a follower that was started just now has as long
    )  # fmt: skip


def _is_overdue(source: Source, at: Refreshes) -> bool:
    behind, begun, usual = at.behind_seconds or 0.0, at.begun_seconds or 0.0, _usual(source)
    if _fails(at):
        return behind > usual
    if at.at_work:
        return begun > max(usual, LONG_SECONDS)
    return behind > (max(usual, LONG_SECONDS) if at.outcome == "held" else usual)


def _fails(at: Refreshes) -> bool:
    """Whether refreshes fail; not if one is at work after a single failure, such as that of a follower that ended."""
    return at.outcome == "failed" and (at.failures > 1 or not at.at_work)


def _is_forgotten(at: Refreshes) -> bool:
    return at.was_done and (at.behind_seconds or 0.0) > ALONE_SECONDS


def _why(source: str, is_followed: bool, at: Refreshes) -> tuple[str, str]:
    since = f"for {(at.begun_seconds or 0.0) / 60:,.0f} minutes"
    if not is_followed:
        return (
            "no follower refreshes them, and nobody has since",
            f"run `lakehouse mirror {source}`, or the job mirror_{source}, after what ingests; or start a follower",
        )
    if _fails(at):
        return f"each refresh fails: {at.said}", "fix the cause: the follower tries again on their interval"
    if at.at_work:
        return f"a refresh has been at work {since}", "see the follower's log; a large mirror takes long to build"
    if at.outcome == "held":
        return f"refreshes wait: {at.said}", "see whether maintenance goes on"
    if at.begun_seconds is None:
        return "the follower has begun no refresh", "see its log, and start it again"
    return f"the follower has begun no refresh {since}", "see its log, and start it again"


def left_behind(source: Source, at: Refreshes) -> Iterator[Occasion]:
    """The mirrors that refreshes leave as they were; not those of tables that are in no cut, which is told as such."""
    for table in (table.name for table in source.mirrored if table.name in at.aside):
        seconds, why = at.aside[table]
        if seconds > _usual(source):
            name = f"{source.name}.{table}"
            yield Occasion(
                f"mirrors/{name}", f"the mirror of {name} has stayed as it was for {seconds / 60:,.0f} minutes: {why}",
                f"the refresh after that brings it up; until then {UNTIL_THEN}", source=source.name,
            )  # fmt: skip


def _usual(source: Source) -> float:
    return max(TURNS * source.refresh_seconds, LEAST_SECONDS)
