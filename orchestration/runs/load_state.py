"""What a job holds back: tables that failed, with the pause before each is tried again, and those that wait for them.

A run writes at its end which of its tables did not succeed. All its others count as loaded, and the next run goes on
without those and without what is made from them, until their pause is over. Pure: no Dagster, no server.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True)
class Held:
    """A table that is not up to date: how often it failed in a row, when last, when the run began that loaded it."""

    tries: int
    at: datetime
    since: datetime | None

    @property
    def due(self) -> datetime:
        """When it is tried again; at once where it has not failed itself, and waits for others."""
        return self.at + pause(self.tries)


@dataclass(frozen=True)
class State:
    """The tables that are held back, by name, as the run `by` left them; `loaded_at` is when that run began."""

    by: str | None = None
    loaded_at: datetime | None = None
    tables: Mapping[str, Held] = field(default_factory=dict)

    def after(self, run_id: str, selected: Collection[str], failed: Collection[str], now: datetime) -> "State":
        """What a run leaves that was launched on this state."""
        left = {name: held for name, held in self.tables.items() if name not in selected}
        for name in failed:
            before = self.tables.get(name)
            left[name] = Held(before.tries + 1 if before else 1, now, before.since if before else self.loaded_at)
        return State(run_id, None, left)


def loaded_since(state: State, without: Collection[str]) -> datetime | None:
    """When a run began that loaded all tables but those; None where there was none."""
    moments = [state.loaded_at, *(held.since for name, held in state.tables.items() if name not in without)]
    known = [moment for moment in moments if moment is not None]
    return min(known) if len(known) == len(moments) else None


def pause(failures: int) -> timedelta:
    """Doubles with each failure in a row, so that what is broken takes no more than its share."""
    return min(FIRST_WAIT * 2 ** (min(failures, 20) - 1), LONGEST_WAIT) if failures else timedelta(0)


def pack(state: State) -> str:
    """The value of the HELD tag."""
    tables = {name: [held.tries, held.at.isoformat(), _text(held.since)] for name, held in state.tables.items()}
    return json.dumps({"by": state.by, "loaded_at": _text(state.loaded_at), "tables": tables}, separators=(",", ":"))


def unpack(value: str | None) -> State:
    """The opposite; a missing or foreign value reads as nothing recorded."""
    try:
        found = json.loads(value or "{}")
        tables = {
            name: Held(int(tries), datetime.fromisoformat(at), _moment(since))
            for name, (tries, at, since) in found.get("tables", {}).items()
        }
        return State(found.get("by"), _moment(found.get("loaded_at")), tables)
    except (ValueError, AttributeError, TypeError):
        return State()


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
