"""Decides whether to launch a job. Pure: no Dagster, no server, so that each case is a unit test.

Each decision states the facts it rests on: they become the SkipReason in the UI or the run's tag `lakehouse/why`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from orchestration.runs.state.history import JobHistory, PastRun
from orchestration.runs.state.load_state import HeldTable, pause

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

LONGEST_START_WAIT = timedelta(minutes=5)
PULL_BYTES = 64 * 1024
NEW_DATA_BYTES = 1024 * 1024
PULL_AFTER = timedelta(minutes=15)


class SourceFacts(Protocol):
    """The fields of `ingestion.source_status` that are used here."""

    @property
    def follower_alive(self) -> bool:
        """Whether a follower holds the source's lease."""

    @property
    def slot_lag_bytes(self) -> int:
        """WAL between the slot and the current end."""

    @property
    def position(self) -> str | None:
        """The lake's position, as the source writes it; None if nothing was ever ingested."""


@dataclass(frozen=True)
class Observed:
    """The observed state of the lake and, for a job that ingests, of the source.

    `derived` maps each watched or held-back table to the job's tables downstream of it. `waiting` maps tables that
    cannot be built now to the reason. `code` is the version of models and Python code. `served`: a living worker loads
    the job's new data. `returning`: one was killed and may be back in a moment, to load them. `starting`: a follower
    that is to run may not be there yet, as everything has just been started.
    """

    newest: Mapping[str, SnapshotFact]
    source: SourceFacts | None = None
    derived: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    served: bool = False
    returning: bool = False
    starting: bool = False


@dataclass(frozen=True)
class Launch:
    """Run the job now without the tables in `without`; `after` is the run whose failure this one follows."""

    why: str
    trigger: str
    after: str | None = None
    without: frozenset[str] = frozenset()

    @property
    def run_key(self) -> str:
        """Dagster launches a key only once: each attempt has its own, and a crash between ticks launches no second."""
        return f"{self.trigger}-{self.after}" if self.after else self.trigger


@dataclass(frozen=True)
class Skip:
    """Launch nothing, for this reason."""

    why: str


def decide(
    job: str, seen: Observed, history: JobHistory, now: datetime, confirm_after: timedelta | None = None
) -> Launch | Skip:
    """Launches the job for new data, never in parallel to itself; after failures again and again, in growing intervals.

    After `confirm_after` without new data, a run confirms this; otherwise a quiet source would look stale.
    """
    if history.unfinished:
        run = history.unfinished[0]
        return Skip(f"run {run.short_id} of {job} is {run.status}; the sensor waits for its end")
    rested = {} if _is_of_other_code(history.last_load, seen) else history.state.tables
    without = excluded_tables(seen, rested, now)
    reason = (
        _new_data(seen, history, now, without)
        or _retry_due(history, without)
        or _confirmation_due(seen, history, now, confirm_after, without)
        or _unmended(history)
    )
    if reason is None:
        return Skip(_nothing_new(job, seen, history, without) + _held_back(seen, history, now))
    if wait := _backoff(seen, history, now):
        return Skip(f"{reason}; run {history.failures[0].short_id} of {job} has failed, next attempt in {_span(wait)}")
    after = history.failures[0].short_id if history.failures else None
    return Launch(reason, fingerprint(seen, history), after, without)


def excluded_tables(seen: Observed, held: Mapping[str, HeldTable], now: datetime) -> frozenset[str]:
    """The tables to exclude from a run now: those in backoff, those that wait, and everything downstream."""
    resting = [name for name, table in held.items() if table.due > now]
    return frozenset(seen.waiting).union(*(seen.derived.get(name, frozenset([name])) for name in resting))


def fingerprint(seen: Observed, history: JobHistory) -> str:
    """A hash of the facts that trigger a run; it changes with new data and with each successful load.

    Without a follower the lake changes only if the job succeeds, so the hash then includes the source's position, and
    how much waits beyond it.
    """
    source = seen.source if seen.source and not seen.source.follower_alive else None
    facts = [
        {table: fact.snapshot_id for table, fact in sorted(seen.newest.items())},
        source.position if source else None,
        source.slot_lag_bytes // NEW_DATA_BYTES if source else None,
        history.last_load.run_id if history.last_load else None,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _new_data(seen: Observed, history: JobHistory, now: datetime, without: frozenset[str]) -> str | None:
    changed = _changed(seen, history, without)
    if changed and not ((seen.served or seen.returning) and history.last_load):
        return _news(changed)
    return _slot_behind(seen, seen.source, history, now) if seen.source and not seen.starting else None


def _changed(seen: Observed, history: JobHistory, without: frozenset[str]) -> dict[str, SnapshotFact]:
    """The tables with data that the last load did not read."""
    loaded = history.last_load.snapshots if history.last_load else {}
    return {
        table: fact
        for table, fact in seen.newest.items()
        if loaded.get(table) != fact.snapshot_id and not _is_excluded(seen, table, without)
    }


def _news(changed: Mapping[str, SnapshotFact]) -> str:
    return "new data in " + _list([_fact(*item) for item in sorted(changed.items())])


def _is_excluded(seen: Observed, table: str, without: frozenset[str]) -> bool:
    """Whether the run would build nothing downstream of the table."""
    made = seen.derived.get(table, frozenset()) - {table}
    return bool(made) and made <= without


def _retry_due(history: JobHistory, without: frozenset[str]) -> str | None:
    due = {name: table for name, table in history.state.tables.items() if name not in without}
    if not due:
        return None
    failed = [f"{name} (failed {table.tries} times)" for name, table in sorted(due.items()) if table.tries]
    return "another attempt at " + _list(failed) if failed else "nothing holds back " + _list(sorted(due)) + " any more"


def _slot_behind(seen: Observed, source: SourceFacts, history: JobHistory, now: datetime) -> str | None:
    if source.follower_alive:
        return None
    if source.position is None:
        return "nothing was ever ingested and no follower is alive"
    lag = source.slot_lag_bytes
    since = _ended(history.last_load)
    rested = since is None or now - since >= PULL_AFTER
    if (lag > 0 and rested) or (lag >= PULL_BYTES and not _pulled_nothing(seen, history.last_load)):
        return f"no follower is alive and the slot is {lag} bytes behind"
    return None


def _pulled_nothing(seen: Observed, load: PastRun | None) -> bool:
    """Whether the last load has ingested, and what it read was of others: the slot keeps the WAL of all databases."""
    return load is not None and load.ingested and all(f.committed_at < load.created_at for f in seen.newest.values())


def _confirmation_due(
    seen: Observed, history: JobHistory, now: datetime, confirm_after: timedelta | None, without: frozenset[str]
) -> str | None:
    since = _ended(history.last_load)
    if confirm_after is None or since is None or now - since < confirm_after:
        return None
    if without and all(_is_excluded(seen, table, without) for table in seen.newest):
        return None
    return f"no new data for {_span(now - since)}; a run confirms it, because freshness is declared"


def _unmended(history: JobHistory) -> str | None:
    """A run that failed with nothing left to load: without another one its tables would stay red."""
    failed = next((run for run in history.failures if run.status == "FAILURE"), None)
    return f"nothing was loaded since run {failed.short_id} failed" if failed else None


def _nothing_new(job: str, seen: Observed, history: JobHistory, without: frozenset[str]) -> str:
    source = seen.source
    follower = ""
    if source is not None:
        alive = "a" if source.follower_alive else "no"
        waits = " yet" if seen.starting and not source.follower_alive else ""
        follower = f"; {alive} follower is alive{waits}, the slot is {source.slot_lag_bytes} bytes behind"
    if seen.served:
        follower += "; a worker is alive and loads new data"
    elif seen.returning:
        follower += "; the worker was killed, and loads new data if it is back in a moment"
    if history.last_load is None:
        return f"{len(seen.newest)} tables have data and {job} has never loaded them{follower}"
    if changed := _changed(seen, history, without):
        return f"{_news(changed)}{follower}"
    run = history.last_load
    loaded = [fact for table, fact in seen.newest.items() if not _is_excluded(seen, table, without)]
    newest = max((fact.committed_at for fact in loaded), default=None)
    at = f", newest of {newest:%Y-%m-%d %H:%M:%S}Z" if newest else ""
    return f"run {run.short_id} has loaded the newest data snapshots of {len(loaded)} tables{at}{follower}"


def _backoff(seen: Observed, history: JobHistory, now: datetime) -> timedelta | None:
    """The remaining backoff: it doubles with each failure, so that steady new data cannot flood a broken job.

    A run that failed in no step (killed, or not started) says nothing about the job, and is repeated sooner. A run of
    other code says nothing about this one.
    """
    failures = [run for run in history.failures if not _is_of_other_code(run, seen)]
    broken = [run for run in failures if run.failed_in_step]
    not_run = [run for run in failures if not run.failed_in_step]
    due = [_end(broken[0]) + pause(len(broken))] if broken else []
    due += [_end(not_run[0]) + min(pause(len(not_run)), LONGEST_START_WAIT)] if not_run else []
    left = max(due, default=now) - now
    return left if left > timedelta(0) else None


def _is_of_other_code(run: PastRun | None, seen: Observed) -> bool:
    """Whether the run is known to have worked with another version of the code."""
    return run is not None and None not in (run.code, seen.code) and run.code != seen.code


def _held_back(seen: Observed, history: JobHistory, now: datetime) -> str:
    """The tables held back, and until when."""
    tables = sorted(history.state.tables.items())
    resting = [
        f"{name} has failed {table.tries} times, next attempt in {_span(table.due - now)}"
        for name, table in tables
        if table.due > now
    ]
    waiting = [f"{name} waits: {why}" for name, why in sorted(seen.waiting.items())]
    return f"; {_list(resting + waiting)}" if resting or waiting else ""


def _end(run: PastRun) -> datetime:
    return run.ended_at or run.created_at


def _ended(run: PastRun | None) -> datetime | None:
    return None if run is None else _end(run)


def _fact(table: str, fact: SnapshotFact) -> str:
    return f"{table} (snapshot {fact.snapshot_id}, {fact.added_rows} rows added)"


def _list(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more tables" if len(items) > 3 else "")


def _span(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
