"""Which rows of a mart change: those of the keys that were appended to its tables since it was built.

What a mart was built of stands in its properties, with the snapshot that the build has made: a mart that was restored,
or built by anybody else, has another snapshot, and is built whole. So is each mart once a day, which also compacts it,
and brings in what a wrong declaration has left out.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.added_rows import added_rows
from lakehouse.catalog.open import newest_of
from lakehouse.declarations.built_by_key import ByKey, Lead
from lakehouse.text.sql import relation
from orchestration.resources import TableKey

if TYPE_CHECKING:
    from pyiceberg.table import Table

BUILT_AT = "lakehouse.built-at"  # of a mart: what `BuiltAt` has, as JSON
MADE_OF = "lakehouse.made-of"  # the MD5 of its SQL: see rebuilt_table.sql
MOST_MERGES = 50  # between two builds of the whole: each leaves files behind
MOST_KEYS = 1000  # as `many_keys` in by_key.sql
State = tuple[int | None, int]  # a table's snapshot and schema


@dataclass(frozen=True)
class BuiltAt:
    """The day on which a mart was last built whole, the builds by key since then, and what the last build has read.

    Views are by the metadata file of their definition.
    """

    day: str
    merges: int
    tables: Mapping[str, State]
    views: Mapping[str, str] = field(default_factory=dict)

    def of(self, mart: "Table") -> dict[str, str]:
        """The property that says so, of the mart that has just been built."""
        return {BUILT_AT: json.dumps({**asdict(self), "snapshot": state_of(mart)[0]})}


def noted(mart: "Table") -> BuiltAt | None:
    """What the mart says of its last build; None if somebody else has changed it since, or nobody has noted it."""
    stated = json.loads(mart.properties.get(BUILT_AT, "{}"))
    if not stated or stated.pop("snapshot") != state_of(mart)[0]:
        return None
    tables = {name: (snapshot, schema) for name, (snapshot, schema) in stated.pop("tables").items()}
    return BuiltAt(tables=tables, **stated)


def changes(
    mart: "Table | None", of: ByKey, tables: "Mapping[TableKey, Table]", views: Mapping[TableKey, str], today: date
) -> tuple[dict[str, Any] | None, BuiltAt]:
    """The keys that change, as by_key.sql reads them, and what to note of the build. None: the whole is to be built."""
    now = {".".join(name): state_of(tables[name]) for name in of.tables if name in tables}
    read = {".".join(name): views[name] for name in of.views if name in views}
    before = noted(mart) if mart else None
    whole = BuiltAt(str(today), 0, now, read)
    if mart is None or before is None or before.day != whole.day or before.merges >= MOST_MERGES:
        return None, whole
    if not _is_large(mart, of) or _schemas(before.tables) != _schemas(now) or before.views != read:
        return None, whole
    found = _Found()
    for name in of.tables:
        since, (current, _) = before.tables[".".join(name)][0], now[".".join(name)]
        if since != current and not (since and name in of.leads and found.add(tables[name], since, of.leads[name])):
            return None, whole
    given = {
        "key": of.key,
        "made_of": mart.properties.get(MADE_OF),
        "keys": sorted(found.keys),
        "through": found.through,
    }
    return given, BuiltAt(before.day, before.merges + 1, now, read)


def _is_large(mart: "Table", of: ByKey) -> bool:
    newest = newest_of(mart)
    return newest is not None and newest.total_rows >= of.from_rows


def _schemas(tables: Mapping[str, State]) -> dict[str, int]:
    return {name: schema for name, (_, schema) in tables.items()}


class _Found:
    """Keys, and the rows of other tables that have more of them."""

    def __init__(self) -> None:
        self.keys, self.through = set[str](), list[dict[str, Any]]()

    def add(self, table: "Table", since: int, lead: Lead) -> bool:
        """Adds what the rows that came since lead to; False if it is too much, or not to be told."""
        columns = sorted({*lead.keys, *(mine for mine, _ in lead.by)})
        if not {field.name for field in table.schema().fields}.issuperset(columns):  # declared, and not there
            return False
        rows = added_rows(table, since, columns, MOST_KEYS)
        if rows is None:
            return False
        values = {column: {row[column] for row in rows if row[column] is not None} for column in columns}
        self.keys |= set[Any]().union(*(values[column] for column in lead.keys))
        by = defaultdict[str, set[Any]](set)
        for mine, theirs in lead.by:
            by[theirs] |= values[mine]
        if lead.through and (given := {column: sorted(found) for column, found in by.items() if found}):
            self.through.append({"table": relation(*lead.through), "ends": list(lead.ends), "by": given})
        return True


def state_of(table: "Table") -> State:
    """The table's snapshot that changed data last, past those of compactions, and its schema."""
    newest = newest_of(table)
    known = newest.snapshot_id if newest else table.metadata.current_snapshot_id  # where only a compaction is kept
    return known, table.metadata.current_schema_id
