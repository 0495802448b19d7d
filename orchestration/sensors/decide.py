"""Whether a job is due, decided from facts alone: no Dagster, no server, so that every case is a unit test.

Each answer says which facts were seen: it becomes the SkipReason in the UI, or the run's `lakehouse/why` tag.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from orchestration.runs.history import JobHistory, PastRun
from orchestration.runs.load_state import Held, pause

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

MAX_ATTEMPTS = 3
PULL_BYTES = 64 * 1024
NEWS_BYTES = 1024 * 1024
PULL_AFTER = timedelta(minutes=15)


class SourceFacts(Protocol):
    """What `ingestion.source_status` says."""

    @property
    def follower_alive(self) -> bool:
        """Whether somebody holds the source's lease and keeps raw up to date."""

    @property
    def slot_lag_bytes(self) -> int:
        """WAL between the slot and the source's end."""

    @property
    def position_lsn(self) -> int | None:
        """How far the lake is; None when nothing was ever ingested."""


@dataclass(frozen=True)
class Seen:
    """One look at the lake, and at the source when the job ingests.

    `made_from` says which tables of the job are made from a table, watched or held back; `waiting` are tables of the
    job that are not to be built now, each with the reason.
    """

    newest: Mapping[str, SnapshotFact]
    source: SourceFacts | None = None
    made_from: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """Run the job now, but for the tables `without`; `trigger` names the occasion, `attempt` counts its runs from 1."""

    why: str
    trigger: str
    attempt: int
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Skip:
    """Do nothing, for this reason."""

    why: str


def decide(
    job: str, seen: Seen, history: JobHistory, now: datetime, confirm_after: timedelta | None = None
) -> Launch | Skip:
    """Launches for news, never beside a run of the same job, a failed one at most MAX_ATTEMPTS times.

    `confirm_after`: after so long without news a run confirms that there is none, or a quiet source would look stale.
    """
    if history.unfinished:
        run = history.unfinished[0]
        return Skip(f"run {run.short_id} of {job} is {run.status}; looking again when it has ended")
    without = left_out(seen, history.state.tables, now)
    news = (
        _news(seen, history, now, without)
        or _due(history, without)
        or _silence(seen, history, now, confirm_after, without)
    )
    if news is None:
        return Skip(_nothing_new(job, seen, history, without) + _held(seen, history, now))
    trigger = fingerprint(seen, history)
    failed = [run for run in history.failures if run.trigger == trigger]
    if len(failed) >= MAX_ATTEMPTS:
        return Skip(
            f"{news}, but {len(failed)} runs of {job} have failed on it, the last is {failed[0].short_id}: "
            f"see its log, fix the cause, then launch {job} by hand"
        )
    if wait := _wait(history, now):
        return Skip(f"{news}; run {history.failures[0].short_id} of {job} has failed, next attempt in {_ago(wait)}")
    return Launch(news, trigger, len(failed) + 1, without)


def left_out(seen: Seen, held: Mapping[str, Held], now: datetime) -> frozenset[str]:
    """The tables of the job that a run of now does without: those that rest or wait, and what is made from them."""
    resting = [name for name, table in held.items() if table.due > now]
    return frozenset(seen.waiting).union(*(seen.made_from.get(name, frozenset([name])) for name in resting))


def fingerprint(seen: Seen, history: JobHistory) -> str:
    """The occasion of a run: equal as long as nothing new is seen and no run has loaded it.

    Where only the job ingests, its failures leave the lake as it is; what is new then is how far the source has come.
    """
    source = seen.source if seen.source and not seen.source.follower_alive else None
    facts = [
        {table: fact.snapshot_id for table, fact in sorted(seen.newest.items())},
        source.position_lsn if source else None,
        ((source.position_lsn or 0) + source.slot_lag_bytes) // NEWS_BYTES if source else None,
        history.last_load.run_id if history.last_load else None,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _news(seen: Seen, history: JobHistory, now: datetime, without: frozenset[str]) -> str | None:
    loaded = history.last_load.snapshots if history.last_load else {}
    changed = {
        table: fact
        for table, fact in seen.newest.items()
        if loaded.get(table) != fact.snapshot_id and not _is_left_out(seen, table, without)
    }
    if changed:
        return "new data in " + _list([_fact(*item) for item in sorted(changed.items())])
    return _not_followed(seen.source, history, now) if seen.source else None


def _is_left_out(seen: Seen, table: str, without: frozenset[str]) -> bool:
    """Whether nothing that is made from the table would be built."""
    made = seen.made_from.get(table, frozenset()) - {table}
    return bool(made) and made <= without


def _due(history: JobHistory, without: frozenset[str]) -> str | None:
    due = {name: table for name, table in history.state.tables.items() if name not in without}
    if not due:
        return None
    failed = [f"{name} (failed {table.tries} times)" for name, table in sorted(due.items()) if table.tries]
    return "another attempt at " + _list(failed) if failed else "nothing holds back " + _list(sorted(due)) + " any more"


def _not_followed(source: SourceFacts, history: JobHistory, now: datetime) -> str | None:
    if source.follower_alive:
        return None
    if source.position_lsn is None:
        return "nothing was ever ingested and no follower is alive"
    lag = source.slot_lag_bytes
    since = _ended(history.last_load)
    if lag >= PULL_BYTES or (lag > 0 and (since is None or now - since >= PULL_AFTER)):
        return f"no follower is alive and the slot is {lag} bytes behind"
    return None


def _silence(
    seen: Seen, history: JobHistory, now: datetime, confirm_after: timedelta | None, without: frozenset[str]
) -> str | None:
    since = _ended(history.last_load)
    if confirm_after is None or since is None or now - since < confirm_after:
        return None
    if without and all(_is_left_out(seen, table, without) for table in seen.newest):
        return None
    return f"no news for {_ago(now - since)}; a run confirms it, as freshness is declared"


def _nothing_new(job: str, seen: Seen, history: JobHistory, without: frozenset[str]) -> str:
    source = seen.source
    follower = ""
    if source is not None:
        alive = "a" if source.follower_alive else "no"
        follower = f"; {alive} follower is alive, the slot is {source.slot_lag_bytes} bytes behind"
    if history.last_load is None:
        return f"{len(seen.newest)} tables hold data and {job} never loaded them{follower}"
    run = history.last_load
    loaded = [fact for table, fact in seen.newest.items() if not _is_left_out(seen, table, without)]
    newest = max((fact.committed_at for fact in loaded), default=None)
    at = f", newest of {newest:%Y-%m-%d %H:%M:%S}Z" if newest else ""
    return f"run {run.short_id} has loaded the newest data snapshots of {len(loaded)} tables{at}{follower}"


def _wait(history: JobHistory, now: datetime) -> timedelta | None:
    """Doubles with each failure since the last success, so that constant news cannot flood a broken job."""
    if not history.failures:
        return None
    since = _ended(history.failures[0]) or history.failures[0].created_at
    left = since + pause(len(history.failures)) - now
    return left if left > timedelta(0) else None


def _held(seen: Seen, history: JobHistory, now: datetime) -> str:
    """What is held back, and until when."""
    tables = sorted(history.state.tables.items())
    resting = [
        f"{name} has failed {table.tries} times, next attempt in {_ago(table.due - now)}"
        for name, table in tables
        if table.due > now
    ]
    waiting = [f"{name} waits: {why}" for name, why in sorted(seen.waiting.items())]
    return f"; {_list(resting + waiting)}" if resting or waiting else ""


def _ended(run: PastRun | None) -> datetime | None:
    return None if run is None else run.ended_at or run.created_at


def _fact(table: str, fact: SnapshotFact) -> str:
    return f"{table} (snapshot {fact.snapshot_id}, {fact.added_rows} rows added)"


def _list(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more tables" if len(items) > 3 else "")


def _ago(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
