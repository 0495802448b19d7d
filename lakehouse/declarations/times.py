"""Times of day and week as declarations spell them: cron expressions and daily windows, both in UTC."""

import re
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 7, DAYS),
)
_TERM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


def check_cron(text: str) -> str:
    """The expression as it is; raises ValueError that names the field which is wrong."""
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise ValueError(f"cron {text!r} has {len(parts)} fields: give minute, hour, day of month, month, day of week")
    for part, (name, low, high, names) in zip(parts, FIELDS, strict=True):
        for term in part.split(","):
            if not _is_term(term, low, high, names):
                raise ValueError(f"cron {text!r}: {name} {part!r} is not within {low} to {high}")
    _check_day(text, *parts[2:])
    return text


def _check_day(text: str, day: str, month: str, weekday: str) -> None:
    """Refuses days that are in none of the months. Beside days of the week such an expression means these, but for one
    day of one month, which Dagster refuses as well."""
    days, months = (
        {value for term in part.split(",") for value in _values(term, *FIELDS[field][1:])}
        for part, field in ((day, 2), (month, 3))
    )
    only = weekday == "*" or len(days) == len(months) == 1
    if only and min(days) > max(LENGTHS[value - 1] for value in months):
        raise ValueError(f"cron {text!r}: month {month!r} has no day {min(days)}")


def _values(term: str, low: int, high: int, names: tuple[str, ...]) -> range:
    """What a term that is right stands for; `5/10` goes on to the end."""
    match = _TERM.fullmatch(term)
    assert match is not None
    first = _number(match["first"], low, names) if match["first"] else low
    ends_there = match["first"] and not match["step"]
    last = _number(match["last"], low, names) if match["last"] else first if ends_there else high
    return range(first, last + 1, int(match["step"] or 1))


def ticks_within(cron: str, window: "Window") -> bool:
    """Whether a moment of the expression lies in the window, on whatever day."""
    minutes, hours = (
        {value for term in part.split(",") for value in _values(term, *FIELDS[field][1:])}
        for field, part in enumerate(cron.split()[:2])
    )
    moments = (datetime(2000, 1, 1, hour, minute, tzinfo=UTC) for hour in hours for minute in minutes)
    return any(window.seconds_left(moment) > 0 for moment in moments)


def _is_term(term: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    match = _TERM.fullmatch(term)
    if match is None or (match["step"] is not None and int(match["step"]) == 0):
        return False
    bounds = [_number(match[part], low, names) for part in ("first", "last") if match[part] is not None]
    return all(value is not None and low <= value <= high for value in bounds) and bounds == sorted(bounds, key=int)


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + low
    return int(text) if text.isdecimal() else -1


class Window(NamedTuple):
    """A part of each day, from `start` to before `end`; it passes midnight where `end` is the earlier one."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Reads `HH:MM-HH:MM`; raises ValueError."""
        match = re.fullmatch(r"(\d\d:\d\d)-(\d\d:\d\d)", text)
        try:
            start, end = (time.fromisoformat(part) for part in match.groups()) if match else (None, None)
        except ValueError:
            start = end = None
        if start is None or end is None or start == end:
            raise ValueError(f"window {text!r} is not HH:MM-HH:MM with two different times, in UTC")
        return cls(start, end)

    def seconds_left(self, now: datetime) -> float:
        """Seconds until the window closes; 0 while it is closed. `now` is in UTC."""
        opens = datetime.combine(now.date(), self.start, now.tzinfo)
        length = (datetime.combine(now.date(), self.end, now.tzinfo) - opens) % timedelta(days=1)
        past = (now - opens) % timedelta(days=1)
        return max(0.0, (length - past).total_seconds())

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"
