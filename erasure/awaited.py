"""What topics have not told yet of a subject who is to be erased.

A connector sends changes later than they are committed, so rows of the subject may still come after the database was
asked. Those of one key come in the order of their commits: once the newest that has landed, or is kept aside, has
nothing personal, the ones before it have come. Of plain events there is no database to ask: the newest one of a key
says whether its row is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
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
    changes, found = _changes(catalog, plan), list[str | None]()
    for keys in plan.open_keys:
        late = sorted(spelled(source_texts(plan.table, facts, key)) for key in keys if _is_there(changes(key)))
        says = f"the delete of {', '.join(late)}, or the change that empties it, has not come by its topic yet"
        found.append(f"{says}: run this again once it has" if late else None)
    return found


def undeleted(catalog: SqlCatalog, plan: Plan, facts: TableFacts) -> list[str | None]:
    """By subject, why a topic of events with a key still has its row, as a text; None where it has not."""
    changes, found = _changes(catalog, plan), list[str | None]()
    for key, keys in zip(plan.periods, plan.open_keys, strict=True):
        says = (
            f"the newest event of {spelled(source_texts(plan.table, facts, key))} in topic {plan.table.raw.topic} has "
            "personal data, so its row is there: write an event without a value for that key, then run this again"
        )
        found.append(says if _is_there(chain.from_iterable(map(changes, keys))) else None)
    return found


def _changes(catalog: SqlCatalog, plan: Plan) -> Callable[[Key], list[Said]]:
    """The changes of a key that have landed, or are kept aside."""
    landed = plan.raw[0]
    assert isinstance(landed, SubjectRows)
    raw = catalog.load_table(landed.target.identifier)
    rows = raw.scan(row_filter=landed.filter()).to_arrow()
    truncates = raw.scan(row_filter=EqualTo(term="_op", value="t"), selected_fields=POSITION).to_arrow()
    emptied: list[Said] = [(_position(row), False) for row in truncates.to_pylist()]
    return lambda key: [*emptied, *_landed(landed, rows, key), *_kept(plan, key)]


def _is_there(changes: Iterable[Said]) -> bool:
    return max(changes, default=((), False))[1]


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
