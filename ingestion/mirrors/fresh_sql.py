"""The two texts of a fresh view: the rows of the mirror whose keys nothing has touched since, and the newest others.

Both name the mirror's snapshot and its position as literals, so no text takes rows of one state and the position of
another. The long one follows whatever it can of what raw has after the position, and the short one what is regular.
"""

from __future__ import annotations

from dataclasses import replace

from ingestion.mirrors.long_sql import long_parts
from ingestion.mirrors.short_sql import short_parts
from ingestion.mirrors.view_parts import SPARK, TRINO, Dialect, FreshView, Position
from lakehouse.catalog.views.current_views import CUT, TAIL, with_past


def trino_text(view: FreshView, at: Position, past: str, *, short: bool = False) -> str | None:
    """The text for Trino, the short one of a position that has a tag; None if it cannot show one of the columns."""
    parts = _parts(view, at, TRINO, short)
    return with_past(past, *parts) if parts else None


def spark_text(view: FreshView, at: Position, *, short: bool = False) -> str | None:
    """The same for Spark."""
    parts = _parts(replace(view, catalog=view.spark_catalog), at, SPARK, short)
    return "WITH {} AS (\n{}\n){}".format(*parts) if parts else None


def _parts(view: FreshView, at: Position, say: Dialect, short: bool) -> tuple[str, str, str] | None:
    """The name of the first query, the query, and what follows it."""
    if any(say.cast("x", column) is None for column in view.columns):
        return None
    return (TAIL, *short_parts(view, at, say)) if short else (CUT, *long_parts(view, at, say))
