"""The three texts of a fresh view: the rows of the mirror whose keys nothing has touched since, and the newest others.

Each names the mirror's state and its position as literals, so no text takes rows of one state and the position of
another. The long one follows whatever it can of what raw has after the position, the short one what is regular, and the
plain one nothing: it is that of a table to which nothing has come.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from ingestion.mirrors.long_sql import long_parts
from ingestion.mirrors.short_sql import plain_parts, short_parts
from ingestion.mirrors.view_parts import SPARK, TRINO, Dialect, FreshView, Position
from lakehouse.catalog.views.current_views import CUT, MIRROR, TAIL, with_past


class Kind(Enum):
    """Which text. A short one is of a position that has a tag."""

    LONG = "long"
    SHORT = "short"
    PLAIN = "plain"


def trino_text(view: FreshView, at: Position, past: str, kind: Kind = Kind.LONG) -> str | None:
    """The text for Trino; None if it cannot show one of the columns."""
    parts = _parts(view, at, TRINO, kind)
    return with_past(past, *parts) if parts else None


def spark_text(view: FreshView, at: Position, kind: Kind = Kind.LONG) -> str | None:
    """The same for Spark."""
    parts = _parts(replace(view, catalog=view.spark_catalog), at, SPARK, kind)
    return "WITH {} AS (\n{}\n){}".format(*parts) if parts else None


def _parts(view: FreshView, at: Position, say: Dialect, kind: Kind) -> tuple[str, str, str] | None:
    """The name of the first query, the query, and what follows it."""
    if any(say.cast("x", column) is None for column in view.columns):
        return None
    name, parts = _MADE[kind]
    return (name, *parts(view, at, say))


_MADE = {Kind.LONG: (CUT, long_parts), Kind.SHORT: (TAIL, short_parts), Kind.PLAIN: (MIRROR, plain_parts)}
