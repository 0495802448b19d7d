"""Rows with personal data that no subject's key names are reported as left: an erasure cannot tell whose they are."""

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from erasure import plan as planning
from erasure import steps
from erasure.key_periods import Key, Period
from erasure.plan import Plan, make_plan
from erasure.proof import Trace
from erasure.rows import SubjectRows
from erasure.steps import strays_of
from erasure.targets import Target, raw_target, stages_above
from ingestion.schema.facts import ColumnFacts, TableFacts
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.declarations.vault.policy import VaultPolicy

SCHEMA = pa.schema([
    ("customer_id", pa.int64()), ("account", pa.string()), ("name", pa.string()), ("_op", pa.string()),
    ("_epoch", pa.int32()), ("_commit_lsn", pa.int64()), ("_seq", pa.int64()), ("_old_key", pa.string()),
    ("_xid", pa.int64()), ("_ingested_at", pa.timestamp("us", "UTC")),
])  # fmt: skip
ACCOUNT = ColumnFacts("account", 2, "text", 25, "text", "b", -1, 25, -1, "", lake="account")
FACTS = TableFacts(oid=1, filenode=1, relkind="r", replica_identity="d", key=("account",), columns=(ACCOUNT,))
Row = dict[str, Any]


def alone(raw: Any, keys: Collection[Key], kept: Collection[Key]) -> dict[Key, tuple[Key, ...]]:
    """Spellings of keys that have no other ones."""
    return dict.fromkeys(keys, ())


def customers(*key: str, vault: Row | None = None) -> RawTable:
    return RawTable(
        source="retail", name="customers", description="", load=LoadPolicy(), maintenance=None, owners=(),
        columns=tuple(Column(name=n, data_type=None, description="") for n in ("customer_id", "account", "name")),
        raw=RawPolicy(relation="public.customers", key=key or ("account",), personal=("name",)),
        vault=VaultPolicy.model_validate(vault) if vault else None,
    )  # fmt: skip


def row(op: str, lsn: int, account: str | None, name: str | None = None, **more: Any) -> Row:
    return {
        "customer_id": 42,
        "account": account,
        "name": name,
        "_op": op,
        "_epoch": 1,
        "_commit_lsn": lsn,
        "_seq": 0,
    } | more


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for name in ("raw_retail", "meta", "vault", "snapshots"):
        catalog.create_namespace(name)
    monkeypatch.setattr(steps, "read_lake", lambda *given: None)
    monkeypatch.setattr(steps, "strays", lambda *given: [])
    return catalog


def landed(catalog: SqlCatalog, *rows: Row) -> None:
    catalog.create_table(("raw_retail", "customers"), SCHEMA).append(pa.Table.from_pylist(list(rows), schema=SCHEMA))


def left(catalog: SqlCatalog, table: RawTable) -> list[Trace]:
    own = (Period(("a-42",)),)
    part = SubjectRows(raw_target(table, tuple(OF_KINDS[table.kind])), own)
    return strays_of(
        cast(Any, SimpleNamespace(warehouse="")),
        catalog,
        cast(Any, None),
        Plan(table, {("a-42",): own}, (part,), (), 0, {}),
    )


def test_rows_from_before_the_column_that_is_the_key_now_are_left(lake: SqlCatalog) -> None:
    """They were of nobody, and the erasure said that nothing was left."""
    landed(
        lake, row("c", 10, None, "Jane Doe-Smith"), row("u", 20, None, "Jane Doe-Smith"), row("d", 25, None),
        row("t", 28, None, customer_id=None), row("r", 30, "a-42"), row("r", 30, "a-7", "Bob", _seq=1),
    )  # fmt: skip
    [found] = left(lake, customers())
    assert (found.table, found.rows) == ("raw_retail.customers", 2)
    assert found.why.startswith("2 rows with personal data have no account: they are from before that was the key")


def test_a_row_whose_key_the_lake_cannot_hold_had_one(lake: SqlCatalog) -> None:
    landed(lake, row("c", 10, None, "Jane"), row("c", 20, None, "Bob"))
    texts = pa.Table.from_pylist([
        {"source": "retail", "table": "customers", "column": "account", "epoch": 1, "commit_lsn": 20, "seq": 0},
        {"source": "retail", "table": "customers", "column": "name", "epoch": 1, "commit_lsn": 10, "seq": 0},
    ])  # fmt: skip
    lake.create_table(("meta", "unrepresentable"), texts.schema).append(texts)
    assert [found.rows for found in left(lake, customers())] == [1]


def test_an_old_key_of_other_columns_is_no_change_of_this_one(lake: SqlCatalog) -> None:
    """It ended every erasure of the table, and the way out that it named made somebody else's key of it."""
    landed(
        lake, row("d", 10, None), row("c", 10, "a-42", "Jane", customer_id=43, _seq=1, _old_key='{"customer_id":"42"}')
    )
    made = make_plan(cast(Any, None), lake, {}, customers(), FACTS, [{"account": "a-42"}], alone)
    assert made.periods == {("a-42",): (Period(("a-42",)),)}


HASHED = {"hub": "customer", "satellites": {"pii": {"columns": ["name"], "personal": True}}}


def stage(name: str, **hashed: list[str]) -> Row:
    return {
        "resource_type": "model", "name": name, "schema": "vault", "alias": name, "fqn": ["p", "stage", name],
        "config": {"materialized": "view", "meta": {"hashed_keys": hashed}}, "depends_on": {"nodes": []},
        "original_file_path": "x",
    }  # fmt: skip


def snapshot(*above: str) -> Row:
    return {
        "resource_type": "snapshot", "name": "kept", "schema": "snapshots", "alias": "kept", "fqn": ["p", "kept"],
        "config": {"materialized": "snapshot", "unique_key": "hk_customer"}, "original_file_path": "snapshots/kept.sql",
        "depends_on": {"nodes": list(above)},
    }  # fmt: skip


KEPT = Target(("snapshots", "kept"), "empty", ("hk_customer",), frozenset({"name"}), is_hashed=True)


def test_the_stages_that_make_a_hash_key_are_those_that_its_table_is_made_of() -> None:
    own, sales = (
        stage("stg_retail__customers", hk_customer=["account"]),
        stage("stg_retail__sales", hk_customer=["account"]),
    )
    nodes = {
        "own": own,
        "sales": sales,
        "other": stage("stg_x", hk_customer=["a"]),
        "line": stage("stg_y", hk_line=["a"]),
    }
    manifest = {"nodes": nodes | {"kept": snapshot("own", "sales", "line")}}
    found = stages_above(customers(vault=HASHED), manifest, KEPT)
    assert found == [("vault", "stg_retail__customers"), ("vault", "stg_retail__sales")]


def test_rows_under_a_hash_that_no_stage_makes_any_more_are_left(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of dbt keeps the hashes from before a rehash, and the erasure found no row and said so."""
    lake.create_table(KEPT.identifier, pa.schema([("hk_customer", pa.string()), ("name", pa.string())]))
    lake.create_table(("vault", "stg_retail__customers"), pa.schema([("hk_customer", pa.string())]))
    asked: list[str] = []
    cursor = SimpleNamespace(execute=lambda statement, values: asked.append(statement), fetchall=lambda: [[3]])
    monkeypatch.setattr(planning, "connect", lambda settings: SimpleNamespace(cursor=lambda: cursor))
    nodes = {"own": stage("stg_retail__customers", hk_customer=["account"]), "kept": snapshot("own", "gone")}
    nodes["gone"] = stage("stg_retail__unused", hk_customer=["account"])
    plan = Plan(customers(vault=HASHED), {}, (), (SubjectRows(KEPT, ()),), 0, {"nodes": nodes})
    [found] = strays_of(cast(Any, SimpleNamespace(warehouse="")), lake, cast(Any, None), plan)
    assert (found.table, found.rows) == ("snapshots.kept", 3) and "a hk_customer that no stage makes" in found.why
    assert asked == [
        'SELECT count(*) FROM "snapshots"."kept" AS t WHERE (t."name" IS NOT NULL) AND NOT EXISTS '
        '(SELECT 1 FROM "vault"."stg_retail__customers" AS s WHERE s."hk_customer" = t."hk_customer")'
    ]


def test_somebody_whom_the_vault_does_not_know_yet_is_loaded_first(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage had no hash of them, and no row of the vault was looked for."""
    landed(lake, row("c", 10, "a-42", "Jane"))
    lake.create_table(KEPT.identifier, pa.schema([("hk_customer", pa.string()), ("name", pa.string())]))
    raw = {"source_name": "retail", "name": "customers", "schema": "raw_retail", "identifier": "customers"}
    manifest = {"sources": {"raw": raw}, "nodes": {"kept": snapshot("raw")}}
    hashes: list[str] = []
    monkeypatch.setattr(planning, "_hash_keys", lambda *given: hashes)
    keys = [{"account": "a-42"}, {"account": "a-9"}]
    made = make_plan(cast(Any, None), lake, manifest, customers(vault=HASHED), FACTS, keys, alone)
    assert [bool(why) for why in made.unloaded("streaming")] == [True, False], "of the other one nothing has landed"
    resume = "the table is paused: `lakehouse ingest --resume retail.customers`, then load it, then run this again"
    assert str(made.unloaded("paused")[0]).endswith(resume), "a load alone would not take it"
    hashes.append("0a")
    monkeypatch.setattr(planning, "ask", lambda *given: [])
    made = make_plan(cast(Any, None), lake, manifest, customers(vault=HASHED), FACTS, keys, alone)
    assert made.unloaded("streaming") == [None, None]


def test_somebody_whose_hash_key_is_also_that_of_others_is_refused_while_these_have_personal_data(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a hub that normalizes, the personal satellite lost the versions of `AB1`, who lives, once `ab1` was erased."""
    landed(
        lake, row("c", 10, "ab1", "Jane"), row("d", 20, "ab1"), row("c", 30, "AB1", "Bob"), row("c", 40, "xy", "Ann"),
        row("c", 50, "XY"), row("c", 60, " ", "Zoe"), row("c", 70, "", "Eve"),
    )  # fmt: skip
    lake.create_table(KEPT.identifier, pa.schema([("hk_customer", pa.string()), ("name", pa.string())]))
    raw = {"source_name": "retail", "name": "customers", "schema": "raw_retail", "identifier": "customers"}
    manifest = {"sources": {"raw": raw}, "nodes": {"kept": snapshot("raw")}}
    stage = {"ab1": "a1", "AB1": "a1", "xy": "b2", "XY": "b2", " ": "00", "": "00"}
    monkeypatch.setattr(planning, "_hash_keys", lambda settings, table, key: [stage[key[0]]])
    monkeypatch.setattr(
        planning, "ask", lambda settings, query, hashes: [[h, key] for key, h in stage.items() if h in hashes]
    )
    keys = [{"account": "ab1"}, {"account": "xy"}, {"account": " "}]
    made = make_plan(cast(Any, None), lake, manifest, customers(vault=HASHED), FACTS, keys, alone)
    told, *others = made.mixed
    assert told and "declare the hub without `normalize`, run `lakehouse rehash`" in told and "AB1" not in told
    assert others == [None, None], "of XY there is nothing to lose, and no satellite has a blank key"

    def same(raw: Any, keys: Collection[Key], kept: Collection[Key]) -> dict[Key, list[Key]]:
        return {key: [("AB1",)] for key in keys}

    made = make_plan(cast(Any, None), lake, manifest, customers(vault=HASHED), FACTS, keys[:1], same)
    assert made.mixed == [None], "to the source the two are one"
