"""A hub that two sources share is loaded from the one that comes first, and misses nothing of the other."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from orchestration.worker.loader import NOT_MADE
from tests.unit.dbt_macros import Refused, macro
from tests.unit.embedded_vault import INSERT, START, Event, Vault

MAY = START + timedelta(days=50)
JUNE = MAY + timedelta(days=31)
BOTH = ["stg", "stg_erp"]
TABLE = "model.p.parsed_erp"
NO_GHOSTS = "where record_source <> 'ghost'"
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "hub_owner": ("hub", {"src_pk": "hk_owner", "src_nk": "owner", "source_model": BOTH}),
    "hub_row": ("hub", {"src_pk": "hk_row", "src_nk": ["id", "line"], "source_model": BOTH}),
    "link_row_owner": (
        "link", {"src_pk": "hk_row_owner", "src_fk": ["hk_row", "hk_owner", "owner"], "source_model": BOTH}),
    "rts_row": ("rec_track_sat", {"src_pk": "hk_row", "source_model": BOTH}),
}  # fmt: skip
OF_ERP: dict[str, tuple[str, dict[str, Any]]] = {
    "sat_erp": ("sat", {"src_pk": "hk_row", "src_hashdiff": "hd_row", "src_payload": ["a", "b"],
                        "source_model": "stg_erp"}),
    "eff_sat_erp": ("eff_sat", {"src_pk": "hk_row_owner", "src_dfk": "hk_row", "source_model": "stg_erp"}),
}  # fmt: skip


class TwoSources(Vault):
    """The vault of the source `stg` and of `stg_erp`, whose parsed table is not there before it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.models = dict(SHARED)
        self.views: dict[str, str] = {"stg": self.view_text}
        nodes = self.context["graph"]["nodes"]
        nodes["model.p.stg_erp"] = SimpleNamespace(
            name="stg_erp", resource_type="model", config=SimpleNamespace(materialized="view"), raw_code="",
            depends_on=SimpleNamespace(nodes=[TABLE]),
        )  # fmt: skip
        nodes[TABLE] = SimpleNamespace(
            resource_type="model", config=SimpleNamespace(materialized="append_only"), database="", schema="",
            alias="parsed_erp",
        )  # fmt: skip
        self.context["model"].depends_on.nodes.append("model.p.stg_erp")
        self.make_other()

    def make_other(self) -> None:
        """The view of the second stage, as the project would have it now."""
        sql = self.other()
        self.db.execute(f"create or replace view stg_erp as {sql}")
        said = self.context["graph"]["nodes"]["model.p.stg_erp"].config.meta
        self.views["stg_erp"] = f"{self.context['stage_marker'](said)}[definition …] {sql}"

    def other(self) -> str:
        """The SQL of the second stage."""
        self.context["this"] = "stg_erp"
        sql: str = self.context["stage"]("parsed_erp", dict(self.stage))
        return sql.replace("_op", "null").replace("timestamp(6) with time zone", "timestamptz")

    def parse(self, *events: Event, at: Any = MAY) -> None:
        """Loads the second source's parsed table, and makes it where it is not there."""
        self.db.execute("create table if not exists parsed_erp as select * from parsed limit 0")
        insert = INSERT.format("parsed_erp").replace("the.source", "erp.table")
        names = ("id", "line", "owner", "a", "b", "order", "made", "gone", "at", "lsn", "seq")
        for said in events:
            self.db.execute(insert, [*(said.get(name) for name in names), at])
        self.commit("parsed_erp")

    def _provided(self) -> dict[str, Any]:
        return {**super()._provided(), "view_text": lambda name: self.views[name]}


def event(lsn: int, id_: int, owner: str) -> Event:
    return {"id": id_, "line": 1, "owner": owner, "a": "p", "b": 1, "order": None, "made": None, "gone": False,
            "at": START, "lsn": lsn, "seq": 1}  # fmt: skip


def keys(vault: Vault) -> dict[str, list[Any]]:
    """The owners in the hub and in the link, and how often each row was mentioned."""
    return {
        "hub": vault.rows("select owner from hub_owner order by 1"),
        "link": vault.rows("select owner from link_row_owner order by 1"),
        "rows": vault.rows("select id from hub_row order by 1"),
        "mentions": vault.rows("select record_source, count(*) from rts_row group by 1 order by 1"),
    }


def remembered(vault: Vault) -> set[str]:
    return {key for [key] in vault.rows("select key from properties where key like 'lakehouse.loaded.stg%'")}


def test_the_first_load_of_a_source_needs_nothing_of_another_one_that_shares_its_hubs() -> None:
    """Its job failed until the other source had been loaded: that one's stage read a table that was not there."""
    vault = TwoSources()
    vault.load([event(100, 1, "x")], MAY)
    assert keys(vault) == {
        "hub": [("x",)], "link": [("x",)], "rows": [(1,)], "mentions": [("the.source", 1)],
    }  # fmt: skip
    assert remembered(vault) == {"lakehouse.loaded.stg"}, "nothing says that the other source was loaded"
    vault.load([event(110, 2, "y")], MAY + timedelta(days=1))
    before = keys(vault)
    assert before["hub"] == [("x",), ("y",)]
    vault.load([], MAY + timedelta(days=2))
    assert keys(vault) == before


def test_the_key_of_a_source_that_was_never_loaded_may_be_declared_otherwise() -> None:
    """The hub would be built anew from the whole history of the other one, or refuse to lose rows."""
    vault = TwoSources()
    vault.load([event(100, 1, "x")], MAY)
    before = vault.rows("select model, max(snapshot_id) from history group by 1 order by 1")
    declared = dict(vault.stage)
    vault.stage = {**declared, "hk_owner": {"columns": ["!erp", "owner"], "blank": "unknown"}}
    vault.make_other()
    vault.stage = declared
    vault.say_stage()
    vault.load([], JUNE)
    assert vault.rows("select model, max(snapshot_id) from history group by 1 order by 1") == before


@pytest.mark.parametrize("at", [MAY - timedelta(days=9), MAY, JUNE], ids=["before", "at once", "after"])
def test_what_a_source_brings_that_is_loaded_later_arrives_once(at: Any) -> None:
    """Whenever it was published: also where that was before what the hub has loaded."""
    vault = TwoSources()
    vault.load([event(100, 1, "x")], MAY)
    vault.parse(event(50, 1, "x"), event(60, 7, "z"), at=at)
    vault.make_other()
    vault.models |= OF_ERP
    for day in range(3):
        vault.load([event(110, 2, "y")] if day == 1 else [], JUNE + timedelta(days=day))
    assert keys(vault) == {
        "hub": [("x",), ("y",), ("z",)], "link": [("x",), ("y",), ("z",)], "rows": [(1,), (2,), (7,)],
        "mentions": [("erp.table", 2), ("the.source", 2)],
    }  # fmt: skip
    for name in OF_ERP:
        assert vault.rows(f"select count(*), count(distinct hk_row) from {name} {NO_GHOSTS}") == [(2, 2)]
    assert remembered(vault) == {"lakehouse.loaded.stg", "lakehouse.loaded.stg_erp"}


def test_a_stage_of_before_the_first_load_has_the_columns_and_types_that_it_will_have() -> None:
    vault = TwoSources()
    before = vault.rows("describe stg_erp")
    assert vault.rows("select * from stg_erp") == []
    vault.parse()
    vault.make_other()
    assert [row[:2] for row in vault.rows("describe stg_erp")] == [row[:2] for row in before]


def test_a_hub_is_not_loaded_from_a_view_of_before_a_table_that_is_there() -> None:
    """The load that makes it was killed before it did. The hub would have gone on without the table's rows."""
    vault = TwoSources()
    vault.load([event(100, 1, "x")], MAY)
    vault.parse(event(60, 7, "z"))
    with pytest.raises(Refused, match=r"hub_owner: the view stg_erp is of before .* parsed_erp, .*--select stg_erp`"):
        vault.load([event(110, 2, "y")], JUNE)
    vault.models = dict(OF_ERP)
    with pytest.raises(Refused, match="sat_erp: the view stg_erp is of before the first load"):
        vault.load([], JUNE)
    vault.make_other()
    vault.models = SHARED | OF_ERP
    vault.load([], JUNE)
    assert keys(vault)["hub"] == [("x",), ("y",), ("z",)]
    assert vault.rows(f"select count(*) from sat_erp {NO_GHOSTS}") == [(1,)]


@pytest.mark.parametrize("view", ["stays", "is dropped too"])
@pytest.mark.parametrize("way", ["next load", "full refresh"])
def test_a_parsed_table_that_was_dropped_is_not_taken_for_one_that_was_never_loaded(view: str, way: str) -> None:
    vault = TwoSources()
    vault.parse(event(60, 7, "z"))
    vault.make_other()
    vault.load([event(100, 1, "x")], MAY)
    vault.db.execute("drop table parsed_erp")
    if view == "is dropped too":
        vault.db.execute("drop view stg_erp")
        vault.make_other()
    else:
        assert "from parsed_erp" in vault.other(), "its view fails as well"
    vault.context["should_full_refresh"] = lambda: way == "full refresh"
    with pytest.raises(Refused, match=r"hub_owner: parsed_erp, which stg_erp reads, is not there: run the load job"):
        vault.load([event(110, 2, "y")], JUNE)


def test_what_is_made_of_no_other_table_is_refused_before_the_first_load_of_its_own() -> None:
    """It would be an empty table, and taken for a loaded one."""
    vault = TwoSources()
    vault.models = dict(OF_ERP)
    with pytest.raises(Refused, match=r"sat_erp: parsed_erp, which stg_erp reads, is not there: run the load job"):
        vault.load([], MAY)


def test_a_stage_with_sql_of_its_own_waits_for_all_that_it_reads() -> None:
    """Rows of one table may come before the moment up to which it has loaded the other."""
    vault = TwoSources()
    vault.context["graph"]["nodes"]["model.p.stg_erp"].depends_on.nodes.append("model.p.parsed")
    with pytest.raises(Refused, match="parsed_erp, which stg_erp reads, is not there"):
        vault.load([event(100, 1, "x")], MAY)


def test_the_view_of_a_stage_is_made_as_soon_as_its_table_is_there() -> None:
    vault = TwoSources()
    stage, text = vault.context["graph"]["nodes"]["model.p.stg_erp"], vault.views["stg_erp"]
    vault.context["model"] = stage
    there, stays = SimpleNamespace(is_view=True), vault.context["why_view_stays"]
    vault.context["view_text"] = vault.context["cdc_vault"].view_text = lambda _: text
    assert stays(there, "[definition …]") == "unchanged"
    assert vault.context["why_unready"](vault.other()) in NOT_MADE, "the worker makes it again"
    vault.parse()
    vault.db.execute("alter table parsed_erp drop column a")
    assert vault.context["columns_awaited"](stage) == ["a"]
    assert stays(there, "[definition 2]") is None, "one that waits for a column shows the rows that are there"
    assert vault.context["why_unready"](vault.other()) is None
    text = text.replace("_lh_awaited", "parsed_erp")
    assert stays(there, "[definition 2]") == "waits"


def test_a_table_that_another_run_has_made_is_asked_for_in_trino() -> None:
    """dbt knows what was there when its run began, and an empty view would have taken the place of the other run's."""
    asked, answers = list[str](), {"parsed_erp": "BASE TABLE"}

    def run_query(sql: str) -> SimpleNamespace:
        asked.append(sql)
        return SimpleNamespace(rows=[(kind,) for name, kind in answers.items() if f"'{name}'" in sql])

    def relation(name: str) -> SimpleNamespace:
        return SimpleNamespace(database="lake", schema="Vault", identifier=name, is_cte=False)

    text = ["select 1 from x as _lh_awaited"]
    is_awaited = macro("is_awaited", relation_exists=lambda _: False, run_query=run_query, view_text=lambda _: text[-1])
    assert not is_awaited(relation("parsed_erp"), relation("stg_erp"))
    assert asked == [
        'select table_type from "lake".information_schema.tables'
        " where table_schema = 'vault' and table_name = 'parsed_erp'"
    ]
    answers.clear()
    assert is_awaited(relation("parsed_erp"), relation("stg_erp"))
    answers["stg_erp"] = "VIEW"
    assert is_awaited(relation("parsed_erp"), relation("stg_erp"))
    text.append("select 1 from parsed_erp")
    assert not is_awaited(relation("parsed_erp"), relation("stg_erp"))
    answers["stg_erp"] = "BASE TABLE"
    assert not is_awaited(relation("parsed_erp"), relation("stg_erp"))
    assert not is_awaited(SimpleNamespace(is_cte=True), relation("stg_erp")), "what a unit test gives"


def test_a_load_asks_once_of_a_stage_that_waits_however_many_keys_it_has() -> None:
    """Each of the keys asked whether the table is there and what the view shows, in every load until it was."""
    vault, asked = TwoSources(), list[str]()
    other = {"src_pk": "hk_other", "src_nk": ["owner", "order"]}
    third = {"src_pk": "hk_third", "src_nk": ["order", "a"]}
    vault.stage["hk_third"] = [["order", "a"]]
    vault.make_stage()
    vault.views["stg"] = vault.view_text
    vault.make_other()
    sources = ["stg", "stg_erp", {"model": "stg_erp", **other}, {"model": "stg_erp", **third}]
    vault.models = {"hub_pair": ("hub", {"src_pk": "hk_pair", "src_nk": ["owner", "a"], "source_model": sources})}
    for name in ("kind_there", "view_text"):
        ask = vault.context[name]

        def counted(relation: str, name: str = name, ask: Any = ask) -> Any:
            asked.append(f"{name} {relation}")
            return ask(relation)

        vault.context[name] = counted
        setattr(vault.context["cdc_vault"], name, counted)
    vault.load([event(100, 1, "x")], MAY)
    assert sorted(asked) == ["kind_there parsed_erp", "view_text stg", "view_text stg_erp"]
    asked.clear()
    vault.load([event(110, 2, "y")], JUNE)
    assert sorted(asked) == ["kind_there parsed_erp", "view_text stg_erp"]


def test_no_rows_are_typed_as_they_are_declared() -> None:
    columns = [
        {"name": "id", "type": "integer", "is_key": True}, {"name": 'a "b"', "type": "decimal(8,2)", "is_key": False},
    ]  # fmt: skip
    sql = macro("no_rows")(columns).replace("timestamp(6) with time zone", "timestamptz")
    found = duckdb.sql(sql)
    assert [(name, str(kind)) for name, kind in zip(found.columns, found.types, strict=True)][:2] == [
        ("id", "INTEGER"), ('a "b"', "DECIMAL(8,2)"),
    ]  # fmt: skip
    assert found.fetchall() == []
