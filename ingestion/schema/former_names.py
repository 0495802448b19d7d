"""What the columns of a raw table were called, and when: a row goes on naming them as they were called as it landed."""

import json
from collections.abc import Mapping, Sequence
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

    def held(self, at: datetime) -> bool:
        """Whether a row that was ingested then calls the column so."""
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


def names_of(column: str, properties: Mapping[str, str]) -> tuple[Called, ...]:
    """All names of a column of the raw table, today's first."""
    former = _former(column, properties)
    bounds = [None, *(_moment(one["until"]) for one in former), None]
    names = [column, *(one["name"] for one in former)]
    return tuple(Called(name, bounds[i + 1], bounds[i]) for i, name in enumerate(names))


def renamed(column: str, to: str, at: datetime, properties: Mapping[str, str]) -> dict[str, str]:
    """The property that says what `to` was called before `at`."""
    return {FORMERLY + to: json.dumps([_until(column, at), *_former(column, properties)])}


def sourced(column: str, name: str, at: datetime, properties: Mapping[str, str]) -> dict[str, str]:
    """The property that says that before `at` the source called a column of the key by `name`, and `column` is what the
    lake calls it still: the old keys that an earlier version has landed have the source's names."""
    return {FORMERLY + column: json.dumps([_until(name, at), *_former(column, properties)])}


def _until(name: str, at: datetime) -> dict[str, str]:
    return {"name": name, "until": at.astimezone(UTC).strftime(_MOMENT)}


def old_key_text(
    texts: Mapping[str, str | None], column: str, names: Sequence[Called], at: datetime | None
) -> str | None:
    """What an old key says of a column that the source calls `column` and the lake by `names`; raises KeyError.

    A row says it by the lake's name of the time when it was ingested, `at`; one of an earlier version by the source's,
    as does one that has not landed (None).
    """
    then = [called.name for called in names if at is not None and called.held(at)]
    return texts[next((n for n in (*then, column, *(called.name for called in names)) if n in texts), column)]


def _former(column: str, properties: Mapping[str, str]) -> list[dict[str, str]]:
    stated = properties.get(FORMERLY + column, "")
    if stated.startswith("[{"):
        found: list[dict[str, str]] = json.loads(stated)
        return found
    lines = (line.partition("\t") for line in stated.split("\n") if line)
    return [{"name": name, "until": until} for name, _, until in lines]


def _moment(text: str) -> datetime | None:
    return datetime.strptime(text, _MOMENT).replace(tzinfo=UTC) if text else None
