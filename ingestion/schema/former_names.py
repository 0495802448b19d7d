"""What the columns of a raw table were called, and when: a row goes on naming them as they were called as it landed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

# Property of a raw table: a column's former names, the latest first, as JSON with the moment up to which each held. An
# earlier version kept a line of text for each.
FORMERLY = "lakehouse.formerly."
_MOMENT = "%Y-%m-%d %H:%M:%S.%f UTC"


@dataclass(frozen=True)
class Called:
    """A name of a column, for rows ingested from `since` on and before `until`; None is no bound, or not known."""

    name: str
    since: datetime | None = None
    until: datetime | None = None


def names_of(column: str, properties: Mapping[str, str]) -> tuple[Called, ...]:
    """All names of a column of the raw table, today's first."""
    former = _former(column, properties)
    bounds = [None, *(_moment(one["until"]) for one in former), None]
    names = [column, *(one["name"] for one in former)]
    return tuple(Called(name, bounds[i + 1], bounds[i]) for i, name in enumerate(names))


def renamed(column: str, to: str, at: datetime, properties: Mapping[str, str]) -> dict[str, str]:
    """The property that says what `to` was called before `at`."""
    until = {"name": column, "until": at.astimezone(UTC).strftime(_MOMENT)}
    return {FORMERLY + to: json.dumps([until, *_former(column, properties)])}


def _former(column: str, properties: Mapping[str, str]) -> list[dict[str, str]]:
    stated = properties.get(FORMERLY + column, "")
    if stated.startswith("[{"):
        found: list[dict[str, str]] = json.loads(stated)
        return found
    lines = (line.partition("\t") for line in stated.split("\n") if line)
    return [{"name": name, "until": until} for name, _, until in lines]


def _moment(text: str) -> datetime | None:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC) if text else None
