"""A position as the state stores it: its text, and beside it the number that release 0.1 reads and writes.

A process of that release, which may run beside this one, writes the number alone, and knows Postgres alone: where the
two do not agree, the number counts. The next release can do without it.
"""

from typing import Any

from ingestion.schema.positions import POSITIONS, Lsn, Position


def read(kind: str, text: str | None, number: int) -> Any:
    """The position of a source of that kind."""
    position = POSITIONS[kind].start() if text is None else POSITIONS[kind].parse(text)
    return Lsn(number) if kind == "postgres" and position.commit_bound != number else position


def written(position: Position) -> tuple[str, int]:
    """The text and the number."""
    return position.text, position.commit_bound
