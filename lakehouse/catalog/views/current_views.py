"""The two forms of a current view, `parsed.current_<source>__<table>`.

dbt gives it a text that reads parsed alone: the table as of its last load. Where the table has a mirror, a refresh
makes it fresh, with a text that reads the mirror and what raw has after it. That one begins with dbt's, as a query
that nothing reads, so whoever asks for the past still finds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PAST = "_lh_past"  # the first query of a fresh text
CUT, TAIL, MIRROR = "_lh_cut", "_lh_tail", "_lh_mirror"  # the next one: of a long text, a short one, a plain one
_BEGIN, _END = f"WITH {PAST} AS (\n", re.compile(rf"\n\), ({CUT}|{TAIL}|{MIRROR}) AS \(\n")
TAG = "lakehouse_view"  # of the mirror's snapshot that the view names, so that expiry keeps it
MARK = "[current definition "  # in the comment of a view that is nothing but the macro `current_table`


def view_of(source: str, table: str) -> tuple[str, str]:
    """The name of the table's current view."""
    return "parsed", f"current_{source}__{table}"


def is_fresh(sql: str) -> bool:
    """Whether it is the text that a refresh has written."""
    return sql.startswith(_BEGIN)


def is_short(sql: str) -> bool:
    """Whether it is the text that reads raw at a tag."""
    return _next_query(sql) == TAIL


def is_plain(sql: str) -> bool:
    """Whether it is the text that reads the mirror alone."""
    return _next_query(sql) == MIRROR


def _next_query(sql: str) -> str | None:
    end = _END.search(sql) if is_fresh(sql) else None
    return end[1] if end else None


def past_of(sql: str) -> str:
    """The text that reads parsed alone; of any other view its text."""
    return _END.split(sql.removeprefix(_BEGIN), maxsplit=1)[0] if is_fresh(sql) else sql


def with_past(past: str, name: str, first: str, rest: str) -> str:
    """A fresh text: dbt's, the next query by its name, and what follows its closing parenthesis."""
    return f"{_BEGIN}{past}\n), {name} AS (\n{first}\n){rest}"


def as_loaded(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A view's metadata with dbt's texts alone: whoever reads with rights of his own may not read raw."""
    return {**metadata, "versions": [_as_loaded(version) for version in metadata["versions"]]}


def _as_loaded(version: Mapping[str, Any]) -> dict[str, Any]:
    fresh = [r["sql"] for r in version["representations"] if is_fresh(r["sql"])]
    texts = [{"type": "sql", "sql": past_of(sql), "dialect": "trino"} for sql in fresh]
    return {**version, "representations": texts or version["representations"]}
