"""Rows that loads are handed, so that they read no table for them; the macros in `handed.sql` say which there are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehouse.text.sql import literal, relation, trino_ident
from orchestration.resources import TableKey
from orchestration.worker.loads.rows import Columns, Rows, relation_of

VARIABLE = "LAKEHOUSE_HANDED"
RAW, PARSED, NEW, STORED = "_lh_raw_", "_lh_parsed_", "_lh_new_", "_lh_stored_"


@dataclass(frozen=True)
class Handed:
    """Rows of raw by parsed model, new rows by stage, and for which watermarks these are all (`stage|watermark`)."""

    raw: Mapping[str, Rows] = field(default_factory=dict)
    stages: Mapping[str, Rows] = field(default_factory=dict)
    marks: Sequence[str] = ()

    def names(self, parsed: Iterable[str]) -> list[str]:
        """What the macros ask for: of these parsed models, the rows that they get are handed to their stages."""
        names = [*(RAW + name for name in self.raw), *(PARSED + name for name in parsed)]
        return names + [NEW + mark for mark in self.marks]

    def relations(self) -> dict[str, str]:
        """By the name of the expression, a query that gives its rows."""
        raw = {RAW + name: relation_of(rows) for name, rows in self.raw.items()}
        return raw | {NEW + name: relation_of(rows) for name, rows in self.stages.items()}

    def keys(self, stored: Mapping[str, Any]) -> list[str]:
        """The keys whose rows of its own a load reads, by what its header says."""
        found: dict[str, None] = {}
        for stage, columns in stored["keys"].items():
            names, rows = [name.lower() for name, _ in self.stages[stage].columns], self.stages[stage].rows
            places = [names.index(column.strip('"').lower()) for column in columns]
            found |= {key: None for row in rows for at in places if (key := row[at]) is not None}
        return list(found)


NOTHING = Handed()


def stored_rows(table: TableKey, stored: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The rows of these keys, as a query of the table. The header has names as they stand in SQL."""
    among = f"{stored['key']} IN ({', '.join(map(literal, keys))})" if keys else "false"
    return f"SELECT {', '.join(stored['columns'])} FROM {relation(*table)} WHERE {among}"


def parsed_rows(sql: str, columns: Columns) -> str:
    """The rows of a query as a table with such columns stores them."""
    cast = ", ".join(f"cast({trino_ident(name)} as {kind}) AS {trino_ident(name)}" for name, kind in columns)
    return f"SELECT {cast} FROM (\n{sql}\n)"
