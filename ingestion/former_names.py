"""What the columns of a raw table were called, and when: a row goes on naming them as they were called as it landed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

# Property of a raw table: a column's former names, the latest first, a line each with the moment up to which it held.
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
    lines = [line.split("\t") for line in _former(column, properties)]
    bounds = [None, *(_moment(*line[1:]) for line in lines), None]
    names = [column, *(line[0] for line in lines)]
    return tuple(Called(name, bounds[i + 1], bounds[i]) for i, name in enumerate(names))


def renamed(column: str, to: str, at: datetime, properties: Mapping[str, str]) -> dict[str, str]:
    """The property that says what `to` was called before `at`."""
    until = f"{column}\t{at.astimezone(UTC).strftime(_MOMENT)}"
    return {FORMERLY + to: "\n".join((until, *_former(column, properties)))}


def _former(column: str, properties: Mapping[str, str]) -> list[str]:
    return [line for line in properties.get(FORMERLY + column, "").split("\n") if line]


def _moment(text: str = "") -> datetime | None:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC) if text else None
