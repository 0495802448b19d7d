"""The vault's macros on an engine inside this process, so that thousands of histories take seconds.

What runs is the SQL that dbt would send to Trino, in the subset both engines read alike. What dbt provides (relations,
table properties, the `append_only` materialization) is stood in for by a few lines each; tests/test_dbt.py runs the
same macros through dbt on Trino.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import duckdb

from orchestration.worker.loads.facts import covers
from tests.unit.dbt_macros import ARRAY_JOIN, macro_texts, macros

START = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = [
    ("id", "integer"), ("line", "integer"), ("owner", "text"), ("a", "text"), ("b", "integer"), ("order", "text"),
    ("made", "text"),
]  # fmt: skip
STAGE = {
    "hk_thing": ["id"],
    "hk_row": ["id", "line"],
    "hk_owner": {"columns": ["!own", "owner"], "blank": "unknown"},
    "hk_row_owner": ["id", "line", "owner"],
    "hk_pair": [["owner", "a"]],
    "hk_other": [["owner", "order"]],
    "hk_row_pairs": ["id", "line", ["owner", "a"], ["owner", "order"]],
    "hk_thing_line": {"keys": ["hk_thing"], "columns": ["line"]},
    "hd_row": {"is_hashdiff": True, "columns": ["a", "b"]},
    "hd_owned": {"is_hashdiff": True, "columns": ["b"]},
    "hd_status": {"is_hashdiff": True, "columns": []},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hub_thing": ("hub", {"src_pk": "hk_thing", "src_nk": "id"}),
    "hub_row": ("hub", {"src_pk": "hk_row", "src_nk": ["id", "line"]}),
    "hub_owner": ("hub", {"src_pk": "hk_owner", "src_nk": "owner"}),
    "hub_pair": ("hub", {"src_pk": "hk_pair", "src_nk": ["owner", "a"], "source_model": [
        "stg", {"model": "stg", "src_pk": "hk_other", "src_nk": ["owner", "order"]}]}),
    "link_row_pairs": ("link", {"src_pk": "hk_row_pairs", "src_fk": ["hk_row", "hk_pair", "hk_other"]}),
    "eff_sat_row_pairs": ("eff_sat", {"src_pk": "hk_row_pairs", "src_dfk": "hk_row"}),
    "link_thing_line": ("link", {"src_pk": "hk_thing_line", "src_fk": ["hk_thing", "line"], "is_key": True}),
    "eff_sat_thing_line": ("eff_sat", {"src_pk": "hk_thing_line", "src_dfk": "hk_thing_line"}),
    "link_row_owner": ("link", {"src_pk": "hk_row_owner", "src_fk": ["hk_row", "hk_owner", "owner"]}),
    "eff_sat_row_owner": ("eff_sat", {"src_pk": "hk_row_owner", "src_dfk": "hk_row", "src_nk": ["id", "line"]}),
    "sat_row": (
        "sat", {"src_pk": "hk_row", "src_hashdiff": "hd_row", "src_payload": ["a", "b"], "src_nk": ["id", "line"]}),
    "sat_owned": ("sat", {"src_pk": "hk_row_owner", "src_hashdiff": "hd_owned", "src_payload": ["b"],
                          "src_nk": ["id", "line"], "is_key": False}),
    "nh_sat_row": ("nh_sat", {"src_pk": "hk_row", "src_payload": ["made"]}),
    "sts_row": ("sts_sat", {"src_pk": "hk_row"}),
    "ma_sat_thing": (
        "ma_sat", {"src_pk": "hk_thing", "src_cdk": "line", "src_hashdiff": "hd_row", "src_payload": ["a", "b"]}),
    "ref_row": ("ref_table", {"src_pk": ["id", "line"], "src_hashdiff": "hd_row", "src_payload": ["a", "b"]}),
    "rts_thing": ("rec_track_sat", {"src_pk": "hk_thing"}),
}  # fmt: skip
TIMELINES: dict[str, dict[str, Any]] = {
    "sat_row": {"src_pk": "hk_row", "src_hashdiff": "hd_row", "src_payload": ["a", "b"]},
    "sat_owned": {"src_pk": "hk_row_owner", "src_hashdiff": "hd_owned", "src_payload": ["b"]},
    "sts_row": {"src_pk": "hk_row", "src_hashdiff": "hd_status"},
    "ma_sat_thing": {"src_pk": ["hk_thing", "line"], "src_hashdiff": "hd_row", "src_payload": ["a", "b"]},
    "ref_row": {"src_pk": ["id", "line"], "src_hashdiff": "hd_row", "src_payload": ["a", "b"]},
    "eff_sat_row_owner": {"src_pk": "hk_row_owner", "src_hashdiff": "is_active", "src_payload": ["hk_row"]},
    "eff_sat_row_pairs": {"src_pk": "hk_row_pairs", "src_hashdiff": "is_active", "src_payload": ["hk_row"]},
    "eff_sat_thing_line": {"src_pk": "hk_thing_line", "src_hashdiff": "is_active"},
}
METADATA = {  # Iceberg's metadata tables
    "properties": "select key, value from properties where model = '{}'",
    "history": "select snapshot_id, is_current_ancestor from history where model = '{}'",
    "refs": "select 'main' as name, max(snapshot_id) as snapshot_id from history"
    " where model = '{}' and is_current_ancestor",
}
# Alike enough to be taken for one another by a hash without delimiters, escapes or a NULL of its own.
STATES = [("p|b=1", None), ("p", 1), ("p", None), ("", None), (None, None), (None, 1)]
IDS = [1, 11, 2, 111, 21, *range(30, 60)]
INSERT = "insert into {} values (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, 'the.source', ?)"
Event = dict[str, Any]
Key = Any  # what a hash key means: a code and texts, a tuple of keys, ZERO or ERROR
Timeline = dict[Any, list[tuple[Any, ...]]]


class Vault:
    """One vault in memory, made by the macros as they are or as a mutant has them."""

    def __init__(self, texts: dict[str, str] | None = None) -> None:
        self.models, self.stage = dict(MODELS), dict(STAGE)
        self.derived: dict[str, str] = {}  # columns of the stage, by what they are derived
        self.view_text = ""  # of the stage; of several there is none, and none is looked at
        self.redeclared = False
        self.few = 100  # rows of a batch that are compared with a table otherwise
        self.hands_over = False  # the rows of a load, as the worker does
        self.handed = 0  # loads of a table that had them
        self.environment: dict[str, str] = {}
        self.db = duckdb.connect()
        self.db.execute("set TimeZone = 'UTC'")
        self.db.execute("set threads = 1")
        self.db.execute("create macro to_utf8(x) as x")
        self.db.execute(ARRAY_JOIN)
        self.db.execute("create macro to_hex(x) as x")  # hash functions give hex here
        self.context = macros(texts or macro_texts(), **self._provided())
        self._build()

    def load(self, events: Iterable[Event], moment: datetime, failed: Collection[str] = ()) -> None:
        """Appends events to parsed, published at that moment, and loads every table but those whose load `failed`."""
        rows = [[*(e.get(name) for name, _ in COLUMNS), e["gone"], e["at"], e["lsn"], e["seq"], moment] for e in events]
        if rows:
            self.db.executemany(INSERT.format("parsed"), rows)
            self.commit("parsed")
        self.environment = {}
        if self.hands_over:
            self._hand_over(rows)
        for known in ("lakehouse_facts", "lakehouse_types"):
            self.context["graph"].pop(known, None)  # another run of dbt
        for name in [model for model in self.models if model not in failed]:
            self._append(name)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer."""
        return self.db.execute(sql.replace("timestamp(6) with time zone", "timestamptz")).fetchall()

    def counts(self) -> list[tuple[Any, ...]]:
        """Rows of each table."""
        return self.rows(" union all ".join(f"select '{name}', count(*) from {name}" for name in self.models))

    def clear(self) -> None:
        """Back to nothing."""
        for name in self.models:
            self.db.execute(f"drop table if exists {name} cascade")
        for table in ("parsed", "properties", "history"):
            self.db.execute(f"delete from {table}")

    def expire(self) -> None:
        """Only the newest snapshot of each table stays, as after days of loads."""
        self.db.execute(
            "delete from history where is_current_ancestor and snapshot_id < (select max(newer.snapshot_id)"
            " from history as newer where newer.model = history.model and newer.is_current_ancestor)"
        )

    def make_stage(self) -> None:
        """The stage's view."""
        self.db.execute(f"create or replace view stg as {self._stage()}")
        said = self.context["graph"]["nodes"]["model.p.stg"].config.meta
        self.view_text = f"{self.context['stage_marker'](said)}[definition …]"

    def say_stage(self) -> None:
        """The stage as the project has it, whose view stays as it is."""
        self._stage()

    def retype(self, column: str, data_type: str) -> None:
        """Another type of a column in Postgres that is text in the lake, too."""
        self.context["declared_table"]().columns[column].data_type = data_type
        self.make_stage()

    def _stage(self) -> str:
        stage = self._render(
            "stage", "stg", source_model="parsed", hashed_columns=self.stage, derived_columns=self.derived
        )
        return stage.replace("_op", "null")

    def _hand_over(self, rows: list[list[Any]]) -> None:
        """The rows of the stage for the loads to come, which read no other ones then, and for which watermarks."""
        self.db.execute("create or replace table _lh_parsed_parsed as select * from parsed limit 0")
        if rows:
            self.db.executemany(INSERT.format("_lh_parsed_parsed"), rows)
        self.environment = {"LAKEHOUSE_HANDED": '["_lh_parsed_parsed"]'}
        self.db.execute(f"create or replace table _lh_new_stg as {self._stage()}")
        values = self.rows("select value from properties where key like 'lakehouse.loaded.stg%'")
        marks = {tuple(value.split("|")[:-1]) for [value] in values}
        handed = ["|".join(("_lh_new_stg", *mark)) for mark in marks if covers(self._facts(mark), mark, len(rows))]
        self.environment = {"LAKEHOUSE_HANDED": json.dumps(handed)}

    def _facts(self, mark: tuple[str, ...]) -> list[Any]:
        sql = self.context["stage_facts"](["stg"], {"stg": mark}, "load_date", "source_seq")
        return list(self.rows(sql)[0][1:])

    def make_timelines(self) -> None:
        """The `_v1` views."""
        for name, arguments in TIMELINES.items():
            self.db.execute(
                f"create or replace view {name}_v1 as {self._render('timeline', name, source_model=name, **arguments)}"
            )

    def _build(self) -> None:
        types = ", ".join(f'"{name}" {kind.replace("text", "varchar")}' for name, kind in COLUMNS)
        self.db.execute(
            f"create table parsed ({types}, _is_deleted boolean, _valid_from timestamptz, _epoch integer,"
            " _commit_lsn bigint, _seq bigint, _record_source varchar, _loaded_at timestamptz)"
        )
        self.db.execute("create table properties (model varchar, key varchar, value varchar)")
        self.db.execute("create table history (model varchar, snapshot_id bigint, is_current_ancestor boolean)")
        self.db.execute(
            "create table run_bounds (invocation_id varchar, day_from date, day_to date, created_at timestamptz)"
        )
        self.make_stage()

    def _append(self, name: str) -> None:
        sql = self._sql(name)
        if not self._exists(name):
            self.db.execute(f"create table {name} as select * from ({sql}) limit 0")
            self.commit(name)
        header = self.context["load_header_of"](sql)
        self.handed += "_lh_new_stg" in sql
        if stored := header.get("stored"):
            keys = " union all ".join(f"select {key} from _lh_new_stg" for key in stored["keys"]["stg"])
            columns = ", ".join(stored["columns"])
            self.db.execute(
                f"create or replace table _lh_stored_a_model as select {columns} from {name}"
                f" where {stored['key']} in ({keys})"
            )
        if header["anew"]:
            self.db.execute(f"create or replace table {name} as select * from ({sql})")
            self.commit(name, replaces=True)
            if header["revised"]:
                self.revise(name)
        elif header["new_data"]:
            if self.redeclared:
                self._fit(name, sql)
            self.db.execute(f"insert into {name} by name {sql}")
            self.commit(name)
        for key, value in header["remember"].items():
            self.db.execute("delete from properties where model = ? and key = ?", [name, key])
            self.db.execute("insert into properties values (?, ?, ?)", [name, key, f"{value}|{self.snapshot(name)}"])

    def _fit(self, name: str, sql: str) -> None:
        """Adds the columns that the table lacks, as the materialization does."""
        self.db.execute(f"create or replace temp view added as {sql}")
        for column, kind, *_ in self.rows("describe added"):
            self.db.execute(f'alter table {name} add column if not exists "{column}" {kind}')

    def snapshot(self, name: str) -> int:
        """The table's current one."""
        [[newest]] = self.rows(f"select max(snapshot_id) from history where model = '{name}' and is_current_ancestor")
        return int(newest)

    def commit(self, name: str, replaces: bool = False) -> None:
        """A snapshot of the table; one that replaces it descends from none."""
        if replaces:
            self.db.execute("update history set is_current_ancestor = false where model = ?", [name])
        self.db.execute("insert into history select ?, coalesce(max(snapshot_id), 0) + 1, true from history", [name])

    def revise(self, name: str) -> None:
        """Says that rows that the table had were other ones before its snapshot."""
        key = self.context["revised_property"]()
        self.db.execute("delete from properties where model = ? and key = ?", [name, key])
        self.db.execute("insert into properties values (?, ?, ?)", [name, key, f"at {self.snapshot(name)}"])

    def _sql(self, name: str) -> str:
        kind, arguments = self.models[name]
        return self._render(kind, name, **{"source_model": "stg"} | arguments)

    def _render(self, macro: str, this: str, **arguments: Any) -> str:
        self.context["this"] = this
        return self.context[macro](**arguments)

    def _exists(self, name: str) -> bool:
        return bool(self.rows(f"select 1 from duckdb_tables() where table_name = '{name}'"))

    def _kind_there(self, name: str) -> str | None:
        found = self.rows(f"select table_type from information_schema.tables where table_name = '{name}'")
        return str(found[0][0]) if found else None

    def _query(self, sql: str) -> SimpleNamespace:
        rows = self.rows(sql)
        if sql.startswith("describe "):  # in Trino's words
            rows = [(name, kind.replace("FLOAT", "real"), *more) for name, kind, *more in rows]
        return SimpleNamespace(rows=rows)

    def _config(self, meta: dict[str, Any] | None = None, **_: Any) -> str:
        """What a stage or a hub says of itself, as dbt's manifest has it for all other models."""
        name = self.context["this"]
        if meta:
            new = SimpleNamespace(resource_type="model", config=SimpleNamespace(), database="", schema="", alias=name)
            config = self.context["graph"]["nodes"].setdefault(f"model.p.{name}", new).config
            config.meta = {**getattr(config, "meta", {}), **meta}
        return ""

    def _provided(self) -> dict[str, Any]:
        columns = {name: SimpleNamespace(name=name, data_type=kind) for name, kind in COLUMNS}
        node = SimpleNamespace(columns=columns, config={"meta": {"raw": {"key": ["id", "line"]}}})
        stage, parsed = (SimpleNamespace(materialized=kind) for kind in ("view", "append_only"))
        nodes = {
            "model.p.stg": SimpleNamespace(
                name="stg",
                resource_type="model",
                config=stage,
                depends_on=SimpleNamespace(nodes=["model.p.parsed"]),
                raw_code="",
            ),
            "model.p.parsed": SimpleNamespace(
                resource_type="model", config=parsed, database="", schema="", alias="parsed"
            ),
        }
        return {
            "graph": {"nodes": nodes},
            "model": SimpleNamespace(name="a_model", columns={}, depends_on=SimpleNamespace(nodes=["model.p.stg"])),
            "api": SimpleNamespace(Relation=SimpleNamespace(create=lambda *names: names[-1])),
            "ref": lambda name: name,
            "config": self._config,
            "existing_relation": lambda name: name if self._exists(name) else None,
            "relation_exists": self._exists,
            "kind_there": self._kind_there,
            "run_query": self._query,
            "view_text": lambda _: self.view_text,
            "run_bounds_relation": lambda: "run_bounds",
            "system_table": lambda name, kind: f"({METADATA[kind].format(name)})",
            "declared_table": lambda *_: node,
            "invocation_id": "this-run",
            "few_rows": lambda: self.few,
            "env_var": lambda name, default: self.environment.get(name, default),
        }


def by_our_restore(vault: Vault, name: str, _: int) -> None:
    """`lakehouse maintain restore --in-place`: the table remembers no load then."""
    vault.db.execute("delete from properties where model = ? and key like 'lakehouse.loaded.%'", [name])


def by_rollback(vault: Vault, name: str, snapshot: int) -> None:
    """Trino's or Spark's `rollback_to_snapshot`: the properties stay as they are."""
    vault.db.execute("update history set is_current_ancestor = snapshot_id <= ? where model = ?", [snapshot, name])


def by_replacement(vault: Vault, name: str, _: int) -> None:
    """`create or replace table … as select … for version as of`: another history, and the properties stay."""
    vault.commit(name, replaces=True)


WAYS = [by_our_restore, by_rollback, by_replacement]


def restore(vault: Vault, tables: list[str], way: Callable[[Vault, str, int], None]) -> Callable[[], None]:
    """Puts these tables back, when it is called, as they are now."""
    snapshots = {name: vault.snapshot(name) for name in tables}
    for name in tables:
        vault.db.execute(f"create or replace table was_{name} as select * from {name}")

    def put_back() -> None:
        for name in tables:
            if way is by_our_restore:
                vault.db.execute(f"create or replace table {name} as select * from was_{name}")
            else:  # the table keeps its columns of today
                columns = [row[0] for row in vault.rows(f"describe {name}")]
                both = [f'"{row[0]}"' for row in vault.rows(f"describe was_{name}") if row[0] in columns]
                vault.db.execute(f"delete from {name}")
                vault.db.execute(f"insert into {name} by name select {', '.join(both)} from was_{name}")
            way(vault, name, snapshots[name])

    return put_back


def history(rng: random.Random, keys: int, most: int) -> list[Event]:
    """Events of several keys in source order. Few different values, so that states recur and spell alike. In one
    history of two some keys have a NULL in them, as in a table without a primary key; all else its seed gives."""
    lines = random.Random(repr(rng.getstate())).choice([(1, 2, 11), (1, None, 11)])
    events: list[Event] = []
    alive: dict[tuple[int, int | None], Event | None] = {}
    lsn, seq, at = 100, 0, START
    for _ in range(rng.randint(most // 3 + 1, most)):
        key = (rng.choice(IDS[:keys]), rng.choice(lines))
        if rng.random() < 0.7:
            lsn, seq, at = lsn + rng.randint(1, 5), 0, at + timedelta(seconds=rng.choice([0, 1, 3600, -2]))
        seq += 1
        if rng.random() < (0.25 if alive.get(key) is not None else 0.05 if key not in alive else 0):
            alive[key] = None  # also of a row that nobody has seen alive
        else:
            before = alive.get(key)
            state = before if before and rng.random() < 0.5 else dict(zip("ab", rng.choice(STATES), strict=True))
            owner = before["owner"] if before and rng.random() < 0.5 else rng.choice(["x", "y", None, ""])
            order = before["order"] if before and rng.random() < 0.5 else rng.choice(["p", "q", None])
            alive[key] = {"a": state["a"], "b": state["b"], "owner": owner, "order": order, "made": f"of {key}"}
        values = alive[key] or dict.fromkeys(("owner", "a", "b", "order", "made"))
        events.append({"id": key[0], "line": key[1], **values, "gone": alive[key] is None, "at": at, "lsn": lsn,
                       "seq": seq})  # fmt: skip
    return events


def position(event: Event) -> str:
    """The vault's sortable position, by the contract."""
    return f"{1:010}.{event['lsn']:019}.{event['seq']:019}"


def arrivals(rng: random.Random, events: list[Event]) -> list[tuple[list[Event], datetime]]:
    """The same events as loads: any split, any order, some delivered again, some loads at one moment, some empty."""
    way = rng.choice(["in order", "gaps filled", "gaps filled", "nearly in order", "any order"])
    order = list(events)
    if way == "any order":
        rng.shuffle(order)
    elif way == "gaps filled":
        late = set(rng.sample(range(len(order)), len(order) // 2))
        order = [e for i, e in enumerate(order) if i not in late] + [e for i, e in enumerate(order) if i in late]
    elif way == "nearly in order":
        for _ in range(3):
            i, j = rng.randrange(len(order)), rng.randrange(len(order))
            order[i], order[j] = order[j], order[i]
    again = way != "gaps filled" and rng.random() < 0.5
    parts = (9, 6) if way == "gaps filled" else (20, 6, 3, 2, 1)
    loads, moment, i = [], START + timedelta(days=50), 0
    while i < len(order):
        size = len(order) // rng.choice(parts) + 1
        batch = order[i : i + size]
        if again and i and rng.random() < 0.5:
            batch = batch + rng.sample(order[:i], min(i, rng.randint(1, 4)))
        i += size
        moment += timedelta(minutes=1 if way == "gaps filled" else rng.choice([0, 1, 1, 60]))
        loads.append((batch, moment))
        if rng.random() < 0.1:
            loads.append(([], moment))
    return loads


def effectivity(said: Iterable[tuple[Key, Event]], link_of: Callable[[Event], Key]) -> Timeline:
    """Per link, where it began and ended; each key has one at a time."""
    found: Timeline = defaultdict(list)
    link_now: dict[Key, Key | None] = {}
    for key, event in said:
        now, before = None if event["gone"] else link_of(event), link_now.get(key)
        if now != before:
            for link, active in ((before, False), (now, True)):
                if link is not None:
                    found[link].append((position(event), active))
        link_now[key] = now
    return dict(found)


def assert_nothing_changes(vault: Vault, at: datetime) -> None:
    """A load without news at that time builds nothing."""
    before = vault.counts(), vault.rows("select max(snapshot_id) from history")
    vault.load([], at)
    assert (vault.counts(), vault.rows("select max(snapshot_id) from history")) == before
