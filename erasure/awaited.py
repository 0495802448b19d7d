"""What topics have not told yet of a subject whom the database does not hold any more.

A connector sends changes later than they are committed, so rows of the subject may still come after the database was
asked. Those of one key come in the order of their commits: once the newest that has landed, or is kept aside, has
nothing personal, the ones before it have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo

from erasure.key_periods import Key, Period, Position
from erasure.plan import Plan
from erasure.rows import POSITION, SubjectRows
from erasure.subjects import source_texts, spelled
from ingestion.schema.facts import TableFacts

Said = tuple[Position, bool]  # a change, and whether personal data is there after it


def awaited(catalog: SqlCatalog, plan: Plan, facts: TableFacts) -> list[str | None]:
    """By subject, what its topic has not told yet, as a text; None where nothing is missing."""
    landed = plan.raw[0]
    assert isinstance(landed, SubjectRows)
    raw = catalog.load_table(landed.target.identifier)
    rows = raw.scan(row_filter=landed.filter()).to_arrow()
    truncates = raw.scan(row_filter=EqualTo(term="_op", value="t"), selected_fields=POSITION).to_arrow()
    emptied: list[Said] = [(_position(row), False) for row in truncates.to_pylist()]
    found: list[str | None] = []
    for keys in plan.open_keys:
        late = sorted(
            spelled(source_texts(plan.table, facts, key))
            for key in keys
            if max([*emptied, *_landed(landed, rows, key), *_kept(plan, key)], default=((), False))[1]
        )
        says = f"the delete of {', '.join(late)}, or the change that empties it, has not come by its topic yet"
        found.append(f"{says}: run this again once it has" if late else None)
    return found


def _landed(landed: SubjectRows, rows: pa.Table, key: Key) -> Iterator[Said]:
    mine = replace(landed, periods=(Period(key),))
    holding, personal = set(mine.holding(rows)), set(landed.target.personal_among(rows.column_names))
    told = rows.select([*POSITION, "_op", "_unchanged"])
    for number in mine.rows(rows):
        [row] = told.slice(number, 1).to_pylist()
        is_there = number in holding or not personal.isdisjoint(row["_unchanged"] or ())
        yield _position(row), is_there and row["_op"] != "d"


def _kept(plan: Plan, key: Key) -> Iterator[Said]:
    return ((event.position, event.holds) for event in plan.kept if event.key in (key, None))


def _position(row: Mapping[str, Any]) -> Position:
    return tuple(row[name] for name in POSITION)
