"""A moment as a person writes it."""

import re
from datetime import UTC, datetime

_FORM = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d.*)?")


def parse_moment(text: str) -> datetime:
    """The moment, in UTC, that `2026-11-20`, `2026-11-20 10:00` or `2026-11-20T10:00:00.5+02:00` says.

    UTC is meant unless there is an offset. Raises ValueError for anything else, also for what `fromisoformat` would
    take: `2026-11-20+02:00` is two o'clock to it.
    """
    try:
        found = datetime.fromisoformat(text) if _FORM.fullmatch(text) else None
        if found is not None:
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is no time in ISO 8601, such as 2026-11-21T18:30")
