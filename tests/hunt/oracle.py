"""The source's rows and columns against what the raw layer replays to, by the plainest code."""

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from ingestion.schema.former_names import Called, names_of
from tests.world import Row, position, replay

NATIVE = "'int2','int4','int8','text','varchar','bool','date','float8','timestamp','timestamptz'"
COLUMNS = f"""
SELECT attname, quote_ident(attname),
  t.typname IN ({NATIVE}) OR t.typname = 'numeric' AND a.atttypmod >= 0 AS native
FROM pg_attribute a LEFT JOIN LATERAL (SELECT * FROM pg_type WHERE oid = a.atttypid) t ON true
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
LAST = (1 << 63) - 1


class Log:
    """The raw tables, each data file read once as long as its table's schema is the same."""

    def __init__(self, catalog: Any, namespace: str) -> None:
        self._catalog, self._namespace = catalog, namespace
        self._read: dict[tuple[str, int], list[Row]] = {}

    def shows(self, table: str, text: str) -> str | None:
        """A value that begins with the text, of any row that has landed."""
        if self._catalog.table_exists((self._namespace, table)):
            for row in self.rows(table, LAST):
                for value in row.values():
                    if isinstance(value, str) and value.startswith(text):
                        return value
        return None

    def rows(self, table: str, until: int) -> list[Row]:
        """All rows of transactions up to and with the cut, in the source's order."""
        iceberg: Table = self._catalog.load_table((self._namespace, table))
        found: list[Row] = []
        for task in iceberg.scan().plan_files():
            at = (task.file.file_path, iceberg.schema().schema_id)
            if at not in self._read:
                scan = ArrowScan(iceberg.metadata, iceberg.io, iceberg.schema(), AlwaysTrue())
                self._read[at] = scan.to_table([task]).to_pylist()
            found += self._read[at]
        names = {name: names_of(name, iceberg.properties) for name in iceberg.schema().column_names}
        rows = [_by_todays_names(row, names) for row in found if row["_commit_lsn"] <= until]
        return sorted(rows, key=position)


def _by_todays_names(row: Row, names: dict[str, tuple[Called, ...]]) -> Row:
    """`_unchanged` names columns as they were called when the row landed."""
    if not row["_unchanged"]:
        return row
    at = row["_ingested_at"]

    def meant(called: str) -> str:
        return next(
            column
            for column, ever in names.items()
            for one in ever
            if one.name == called and (one.since is None or one.since <= at) and (one.until is None or at < one.until)
        )

    return row | {"_unchanged": [meant(called) for called in row["_unchanged"]]}


def difference(
    connection: psycopg.Connection[Any], relation: str, key: tuple[str, ...], rows: list[Row],
    withheld: Collection[str] = (),
) -> str | None:  # fmt: skip
    """How the replayed rows differ from the table, but for what is withheld; None where they do not."""
    if len({position(row) for row in rows}) != len(rows):
        return "two raw rows have one position"
    columns = [c for c in connection.execute(COLUMNS, (relation,)).fetchall() if c[0] not in withheld]
    listed = ", ".join(quoted if native else f"{quoted}::text" for _, quoted, native in columns)
    names = [name for name, _, _ in columns]
    there = [tuple(values) for values in connection.execute(f"SELECT {listed} FROM {relation}".encode()).fetchall()]
    here = []
    called = {name.lower(): name for row in rows[:1] for name in row}
    if lacking := [name for name in key if rows and name.lower() not in called]:
        return f"columns {lacking} of the key are not in the lake"
    for row in replay(rows, tuple(called.get(name.lower(), name) for name in key)).values():
        lake = {name.lower(): value for name, value in row.items()}
        if missing := [name for name in names if name.lower() not in lake]:
            return f"columns {missing} are not in the lake"
        here.append(tuple(_plain(lake[name.lower()]) for name in names))
    ours, theirs = Counter(here), Counter(tuple(map(_plain, values)) for values in there)
    if ours == theirs:
        return None
    wrong = sorted(map(str, (ours - theirs).elements())), sorted(map(str, (theirs - ours).elements()))
    return f"columns {names}; only in the lake: {wrong[0][:4]}; only in the source: {wrong[1][:4]}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    if isinstance(value, Decimal):
        return str(value)
    return f"{value[:20]}…{hash(value)}" if isinstance(value, str) and len(value) > 200 else value
