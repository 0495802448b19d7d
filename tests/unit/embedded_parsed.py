"""The macros of one parsed table on an engine inside this process: a raw table, cuts and backfills of it.

Like embedded_vault: the SQL that dbt would send to Trino, put into DuckDB's words where the two differ.
tests/test_dbt.py runs the same macros through dbt on Trino.
"""

import re
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import duckdb

from ingestion.schema.former_names import FORMERLY, renamed
from lakehouse.catalog.loads.load_facts import LANDED_LATE, LEFT_OUT
from tests.unit.dbt_macros import macro, macro_texts, macros

METADATA = {
    "_op": "varchar", "_epoch": "integer", "_commit_lsn": "bigint", "_seq": "bigint", "_committed_at": "timestamptz",
    "_ingested_at": "timestamptz", "_unchanged": "varchar[]", "_old_key": "varchar",
}  # fmt: skip
DIALECT = [  # Trino's → DuckDB's
    (r"timestamp\(6\) with time zone", "timestamptz"),
    (
        r"contains\(map_keys\(cast\(json_parse\((\w+)\) as map\(varchar, varchar\)\)\), '(\w+)'\)",
        r"json_exists(\1, '$.\2')",
    ),
    (r"\bcontains\(", "list_contains("),
    (r"last_value\(((?:[^()]|\([^()]*\))*?)\) ignore nulls over", r"last_value(\1 ignore nulls) over"),
    (
        r"element_at\(cast\(json_parse\((\w+)\) as map\(varchar, varchar\)\), '(\w+)'\)",
        r"json_extract_string(\1, '$.\2')",
    ),
    (r"cast\(array_distinct\((.*)\) as json\)", r"to_json(list_distinct(\1))"),
]


class Raw(str):
    """A relation's name."""

    identifier = "raw"


class Parsed:
    """`raw` with an integer key `id` and columns of text, and `parsed`, loaded from it as dbt does.

    `policy` is what `meta.raw` declares beside that; `declared` are the columns as the source spells them.
    """

    after_look: Callable[[], None] | None = None  # what happens once, when a load has looked at raw

    def __init__(self, *declared: str, **policy: Any) -> None:
        self.declared, self.key, self.policy = declared, "id", policy
        self.types: dict[str, str] = {}  # of columns that are not declared as text
        self.db = duckdb.connect()
        self.db.execute("set TimeZone = 'UTC'")
        self.db.execute("create macro json_format(x) as cast(x as varchar)")
        alias = policy.get("alias", {})
        landing = [alias.get(name, name) for name in declared if name not in policy.get("exclude", ())]
        columns = {"id": "integer", **dict.fromkeys(landing, "varchar"), **METADATA}
        self.db.execute("create table raw_properties (key varchar, value varchar)")
        self.db.execute("create table parsed_properties (key varchar, value varchar)")
        self.db.execute("create table parsed_snapshots (snapshot_id integer, committed_at timestamptz)")
        self.db.execute("create table parsed_history (snapshot_id integer, is_current_ancestor boolean)")
        self.db.execute(f"create table raw ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")

    def land(self, op: str, key: int | None, lsn: int, committed: str, ingested: str, **values: Any) -> None:
        """One row of raw, its moments as `DD hh:mm` of November 2026."""
        at = [f"2026-11-{moment}:00+00" for moment in (committed, ingested)]
        row = {self.key: key, "_op": op, "_epoch": 1, "_commit_lsn": lsn, "_seq": 0, "_committed_at": at[0],
               "_ingested_at": at[1], **values}  # fmt: skip
        self.db.execute(f"insert into raw ({', '.join(row)}) values ({', '.join('?' * len(row))})", list(row.values()))

    def replay(self, *row: Any, **values: Any) -> None:
        """One row of raw that lands late."""
        self.land(*row, **values)
        self.db.execute("delete from raw_properties where key = ?", [LANDED_LATE])
        newest = "select ?, cast(max(_ingested_at) as varchar) from raw"
        self.db.execute(f"insert into raw_properties {newest}", [LANDED_LATE])

    def is_revised(self) -> bool:
        """Whether the table says that rows it had were other ones since."""
        [[found]] = self.rows(f"select count(*) from parsed_properties where key = '{macro('revised_property')()}'")
        return bool(found)

    def load(self, cut: int, day: int | None = None, covered: bool = True) -> bool:
        """A run of dbt that reads up to the cut, for a backfill of one day; whether there was new data."""
        bounds = {
            "epoch": 1, "cut_lsn": cut, "tables": ["t"] if covered else [],
            "day_from": f"2026-11-{day:02}" if day else None, "day_after": f"2026-11-{day + 1:02}" if day else None,
        }  # fmt: skip
        made = self.is_made()
        sql = self._context(run_bounds=lambda _: bounds, is_loaded=lambda: made)["parsed_table"]("s", "t")
        header = macro("load_header_of")(sql)
        columns = header["columns"]
        if not made:
            self.rows(f"create table parsed ({', '.join('{name} {type}'.format(**column) for column in columns)})")
        elif not header["anew"]:
            self._fit(columns)
        if header["left_out"]:
            self._note(header["left_out"])
        if not header["new_data"]:
            return False
        names = ", ".join(column["name"] for column in columns)
        if header["anew"]:
            self.rows(f"create or replace table parsed as select {names} from ({sql})")
        else:
            self.insert(names, sql)
        self._commit(header["anew"], header["revised"])
        return True

    def _fit(self, columns: list[dict[str, str]]) -> None:
        """As the macro `fit_columns` does."""
        for column in columns:
            self.rows("alter table parsed add column if not exists {name} {type}".format(**column))
            self.rows("alter table parsed alter {name} type {type}".format(**column))

    def _note(self, left_out: str) -> None:
        """As the materialization does."""
        self.db.execute("delete from parsed_properties where key = ?", [LEFT_OUT])
        self.db.execute("insert into parsed_properties values (?, ?)", [LEFT_OUT, left_out])

    def insert(self, names: str, sql: str) -> None:
        """Adds the rows of the load's query."""
        self.rows(f"insert into parsed ({names}) select {names} from ({sql})")

    def _commit(self, anew: bool, revised: bool) -> None:
        [[number]] = self.rows("select count(*) + 1 from parsed_snapshots")
        if anew:
            self.rows("update parsed_history set is_current_ancestor = false")
            for name in ["made_anew_property", *(["revised_property"] if revised else [])]:
                self.db.execute("delete from parsed_properties where key = ?", [macro(name)()])
                made = [macro(name)(), f"2026-12-01 {number // 60:02}:{number % 60:02}:00 UTC"]
                self.db.execute("insert into parsed_properties values (?, ?)", made)
        self.db.execute(
            "insert into parsed_snapshots values (?, ?)",
            [number, f"2026-12-01 {number // 60:02}:{number % 60:02}:01+00"],
        )
        self.db.execute("insert into parsed_history values (?, true)", [number])
        self.rows(f"create table parsed_{number} as from parsed")

    def roll_back(self, snapshot: int) -> None:
        """Trino's `rollback_to_snapshot`: columns and properties stay, and older rows have nulls in newer columns."""
        self.rows(f"update parsed_history set is_current_ancestor = snapshot_id = {snapshot}")
        self.rows("delete from parsed")
        self.rows(f"insert into parsed by name from parsed_{snapshot}")

    def is_made(self) -> bool:
        """Whether parsed is there."""
        return bool(self.rows("select 1 from duckdb_tables() where table_name = 'parsed'"))

    def rename(self, column: str, to: str, at: str) -> None:
        """In source, raw and declaration, at `DD hh:mm`."""
        self.db.execute(f"alter table raw rename column {column} to {to}")
        properties = dict(self.db.execute("select key, value from raw_properties").fetchall())
        moment = datetime.fromisoformat(f"2026-11-{at}:00+00:00")
        self.db.execute("delete from raw_properties where key = ?", [f"{FORMERLY}{to}"])
        ((key, value),) = renamed(column, to, moment, properties).items()
        self.db.execute("insert into raw_properties values (?, ?)", [key, value])
        self.declared = tuple(to if name == column else name for name in self.declared)
        self.key = to if column == self.key else self.key

    def add(self, column: str) -> None:
        """In source, raw and declaration."""
        self.db.execute(f"alter table raw add column {column} varchar")
        self.declared = (*self.declared, column)

    def forget(self) -> None:
        """As a release leaves the table that did not note which columns its loads leave out."""
        self.db.execute("delete from parsed_properties where key = ?", [LEFT_OUT])

    def retype(self, column: str, data_type: str) -> None:
        """In source, raw and declaration: raw has what landed before under another name."""
        [[number]] = self.rows("select count(*) from duckdb_columns() where table_name = 'raw'")
        self.db.execute(f"alter table raw rename column {column} to {column}__{number}")
        self.db.execute(f"alter table raw add column {column} {macro('lake_type')(data_type)}")
        self.types[column] = data_type

    def is_made_anew(self) -> bool:
        """Whether the table ever was."""
        return bool(self.rows(f"select 1 from parsed_properties where key = '{macro('made_anew_property')()}'"))

    def current(self) -> list[tuple[Any, ...]]:
        """The rows of the current view, in order of the key."""
        context = self._context(has_arrived=lambda *_: True)
        return self.rows(f"{context['current_table']('s', 't')} order by {self.key}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer."""
        for trino, ours in DIALECT:
            sql = re.sub(trino, ours, sql)
        return self.db.execute(sql).fetchall()

    def _context(self, **more: Any) -> dict[str, Any]:
        columns = {name: SimpleNamespace(name=name, data_type=self.types.get(name, "text")) for name in self.declared}
        key = {lake: name for name, lake in self.policy.get("alias", {}).items()}.get(self.key, self.key)
        columns = {key: SimpleNamespace(name=key, data_type="integer"), **columns}
        config = {"meta": {"raw": {"key": [key], "relation": "public.t", **self.policy}}}
        node = SimpleNamespace(columns=columns, config=config, source_name="s", name="t")
        return macros(
            macro_texts(),
            this="parsed",
            source=lambda *_: Raw("raw"),
            ref=lambda _: "parsed",
            system_table=lambda relation, name: f"{relation}_{name}",
            declared_table=lambda *_: node,
            relation_exists=lambda _: True,
            run_query=self._query,
            **more,
        )

    def _query(self, sql: str) -> SimpleNamespace:
        rows, then = self.rows(sql), self.after_look
        if then and "count_if(_op" in sql:
            self.after_look = None
            then()
        if sql.startswith("describe "):  # in Trino's words
            rows = [(name, kind.replace("TIMESTAMP", "timestamp(6)"), *more) for name, kind, *more in rows]
        return SimpleNamespace(rows=rows)
