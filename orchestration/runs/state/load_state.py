"""The load state of a job: the tables held back because they failed or wait for others, with backoff.

At its end a run records the tables that failed. All others count as loaded. Later runs exclude the failed tables and
everything downstream until their backoff has elapsed. Pure: no Dagster, no server.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class HeldTable:
    """A table that is not up to date: failures in a row, time of the last one, start of the run that last loaded it."""

    tries: int
    at: datetime
    since: datetime | None

    @property
    def due(self) -> datetime:
        """The time of the next attempt; a table that only waits for others has no backoff."""
        return self.at + pause(self.tries)


@dataclass(frozen=True)
class LoadState:
    """The tables held back, by name, as recorded by the run `by`; `loaded_at` is when that run started."""

    by: str | None = None
    loaded_at: datetime | None = None
    tables: Mapping[str, HeldTable] = field(default_factory=dict)

    def after(
        self,
        run_id: str,
        selected: Collection[str],
        failed: Collection[str],
        now: datetime,
        waiting: Collection[str] = (),
    ) -> "LoadState":
        """The state after a run that was launched with this one; those `waiting` it has not tried."""
        left = {name: held for name, held in self.tables.items() if name not in selected or name in waiting}
        left |= {name: HeldTable(0, now, self.loaded_at) for name in waiting if name not in left}
        for name in failed:
            before = self.tables.get(name)
            left[name] = HeldTable(before.tries + 1 if before else 1, now, before.since if before else self.loaded_at)
        return LoadState(run_id, None, left)


def loaded_since(state: LoadState, without: Collection[str]) -> datetime | None:
    """The start of the last run that loaded all tables except those `without`; None if there was none."""
    moments = [state.loaded_at, *(held.since for name, held in state.tables.items() if name not in without)]
    known = [moment for moment in moments if moment is not None]
    return min(known) if len(known) == len(moments) else None


def pause(failures: int) -> timedelta:
    """The backoff, which doubles with each failure in a row."""
    return min(FIRST_WAIT * 2 ** (min(failures, 20) - 1), LONGEST_WAIT) if failures else timedelta(0)


def pack_state(state: LoadState) -> str:
    """The value of the HELD tag."""
    tables = {name: [held.tries, held.at.isoformat(), _text(held.since)] for name, held in state.tables.items()}
    return json.dumps({"by": state.by, "loaded_at": _text(state.loaded_at), "tables": tables}, separators=(",", ":"))


def unpack_state(value: str | None) -> LoadState:
    """Parses the HELD tag; a missing or malformed value yields an empty state."""
    try:
        found = json.loads(value or "{}")
        tables = {
            name: HeldTable(int(tries), datetime.fromisoformat(at), _moment(since))
            for name, (tries, at, since) in found.get("tables", {}).items()
        }
        return LoadState(found.get("by"), _moment(found.get("loaded_at")), tables)
    except (ValueError, AttributeError, TypeError):
        return LoadState()


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
