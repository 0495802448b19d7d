"""The vault follows its declaration: what is declared of a table that is loaded already holds for its whole history."""

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.dbt_macros import Refused
from tests.unit.embedded_vault import START, Event, Vault

MAY = START + timedelta(days=50)


def test_a_new_reference_to_a_hub_brings_the_keys_that_were_loaded_before() -> None:
    """They reached the link and never the hub: its watermark was that of the whole stage."""
    vault = Vault()
    vault.models["rts_owner"] = ("rec_track_sat", {"src_pk": "hk_owner"})
    vault.load([event(100, owner="x", a="p1"), event(101, owner="y", a="p2", id_=2)], MAY)
    vault.stage |= {"hk_payer": ["a"], "hk_row_payer": ["id", "line", "a"]}
    vault.make_stage()
    mentions = ["stg", {"model": "stg", "src_pk": "hk_payer", "src_nk": "a"}]
    vault.models |= {
        "hub_owner": ("hub", {"src_pk": "hk_owner", "src_nk": "owner", "source_model": mentions}),
        "rts_owner": ("rec_track_sat", {"src_pk": "hk_owner", "source_model": mentions}),
        "link_row_payer": ("link", {"src_pk": "hk_row_payer", "src_fk": ["hk_row", "hk_payer"]}),
    }
    vault.load([event(110, owner="z", a="p3", id_=3)], MAY + timedelta(days=1))
    before = vault.counts()
    vault.load([], MAY + timedelta(days=2))
    assert vault.counts() == before
    assert vault.rows("select owner from hub_owner order by 1") == [(k,) for k in ("p1", "p2", "p3", "x", "y", "z")]
    keys = vault.rows("select hk_owner from hub_owner order by 1")
    assert vault.rows("select distinct hk_owner from rts_owner order by 1") == keys
    assert set(vault.rows("select hk_payer from link_row_payer")) <= set(keys)


def test_a_satellite_with_another_column_has_it_for_its_whole_past() -> None:
    """Its hashdiffs were others: a backfill stored each event again, and every next one counted as a change."""
    vault = Vault()
    say(vault, ["a"])
    vault.load([event(100, a="A", b=1), event(110, a="A", b=2), event(120, a="B", b=2)], MAY)
    assert said(vault, "a") == [(100, "A"), (120, "B")]
    say(vault, ["a", "b"])
    vault.load([event(130, a="B", b=2)], MAY + timedelta(days=1))
    assert said(vault, "a, b") == [(100, "A", 1), (110, "A", 2), (120, "B", 2)]
    assert vault.rows("select count(*) from sat_row where record_source = 'ghost'") == [(2,)]
    before = vault.counts()
    vault.load([], MAY + timedelta(days=1))
    assert vault.counts() == before


def test_an_event_is_not_stored_again_by_a_backfill_of_a_satellite_that_has_other_hashdiffs() -> None:
    """One that was made before satellites remembered their columns."""
    vault = Vault()
    vault.load([event(100, a="A", b=1), event(110, a="B", b=2)], MAY)
    vault.stage["hd_row"] = {"is_hashdiff": True, "columns": ["a"]}
    vault.make_stage()
    vault.db.execute("delete from properties where key = 'lakehouse.loaded.columns'")
    vault.db.execute("insert into run_bounds values ('this-run', date '2026-03-01', date '2026-03-31', now())")
    before = vault.counts()
    vault.load([event(120, a="C", b=3)], MAY + timedelta(days=1))
    vault.load([], MAY + timedelta(days=2))
    assert said(vault, "a, b") == [(100, "A", 1), (110, "B", 2), (120, "C", 3)]
    assert dict(vault.counts())["ma_sat_thing"] == dict(before)["ma_sat_thing"] + 1


def test_tables_that_have_a_ghost_record_of_the_zero_key_alone_get_that_of_the_error_key() -> None:
    """Those of releases before it was there; a reference that is wrong found no row in any satellite."""
    vault = Vault()
    vault.load([event(100, a="A")], MAY)
    tables = {"sat_row": "hk_row", "ma_sat_thing": "hk_thing", "eff_sat_row_owner": "hk_row_owner"}
    for name, key in tables.items():
        vault.db.execute(f"delete from {name} where {key} = '{'f' * 32}'")
        vault.db.execute(f"update properties set value = '1|' || split_part(value, '|', 2) where model = '{name}'"
                         " and key = 'lakehouse.loaded.ghost'")  # fmt: skip
    for _ in range(2):
        vault.load([], MAY)
        for name, key in tables.items():
            found = vault.rows(f"select {key} from {name} where record_source = 'ghost' order by 1")
            assert found == [("0" * 32,), ("f" * 32,)], name


def test_a_load_refuses_a_table_that_was_hashed_by_another_function() -> None:
    """It added keys of the new one beside those of the old one, and every row as a change. A full refresh mends it."""
    for release in ("one that remembers its function", "one that did not"):
        vault = Vault()
        vault.load([event(100, a="A")], MAY)
        assert vault.rows("select distinct value like 'md5|%' from properties where key = 'lakehouse.loaded.hash'") == [
            (True,)
        ]
        if release == "one that did not":
            vault.db.execute("delete from properties where key = 'lakehouse.loaded.hash'")
        models = dict(vault.models)
        vault.context["var"] = lambda name, default: "sha256" if name == "vault_hash" else default
        vault.make_stage()
        for name in models:
            vault.models = {name: models[name]}
            with pytest.raises(Refused, match=f"{name} has keys of another hash function than vars.vault_hash, which"):
                vault.load([], MAY)
        vault.models = models
        vault.context["should_full_refresh"] = lambda: True
        for name in models:
            vault.db.execute(f"drop table {name}")
        vault.load([], MAY)
        vault.context["should_full_refresh"] = lambda: False
        vault.load([event(110, a="B")], MAY + timedelta(days=1))
        assert vault.rows("select distinct length(hk_row), count(*) from sat_row group by 1") == [(64, 4)]


def test_a_table_that_remembers_nothing_of_its_keys_is_kept_where_they_are_right() -> None:
    """As every table after an update; where the declaration has changed before it, the table is built anew."""
    vault = Vault()
    vault.load([event(100, a="A"), event(110, a="B", owner="y")], MAY)
    forget = "delete from properties where key = 'lakehouse.loaded.keys'"
    for table in ("sat_row", "link_row_owner", "eff_sat_row_owner", "hub_owner"):
        vault.db.execute(f"delete from {table} where source_seq like '%110.%'")
    vault.db.execute(forget)
    before = vault.counts()
    vault.load([], MAY)
    assert vault.counts() == before
    assert vault.rows("select count(*) from properties where key = 'lakehouse.loaded.keys'") == [
        (len(vault.models) - 1,)
    ]
    vault.db.execute(forget)
    vault.stage["hk_row"] = ["!code", "id", "line"]
    vault.make_stage()
    vault.load([], MAY)
    assert said(vault, "a") == [(100, "A"), (110, "B")], "it was left as it is"
    assert vault.rows("select count(*) from sat_row join hub_row using (hk_row)") == [(2,)]
    assert dict(vault.counts())["hub_owner"] == dict(before)["hub_owner"], "whose keys are what they were"


def test_a_key_of_another_type_that_is_as_much_text_in_the_lake_is_built_anew() -> None:
    """From citext to text nothing lands otherwise, and 'AB' is hashed otherwise: its next event made a second key."""
    vault = Vault()
    vault.retype("owner", "citext")
    vault.load([event(100, owner="AB", a="A")], MAY)
    [before] = vault.rows("select hk_owner from hub_owner")
    vault.retype("owner", "text")
    vault.load([event(110, owner="AB", a="B")], MAY + timedelta(days=1))
    [[owner, key]] = vault.rows("select owner, hk_owner from hub_owner")
    assert (owner, (key,) != before) == ("AB", True)
    active = "select hk_owner, is_active from link_row_owner join eff_sat_row_owner using (hk_row_owner)"
    assert vault.rows(active) == [(key, True)]
    assert_nothing_changes(vault)
    vault.load([event(120, owner="ab", id_=2)], MAY + timedelta(days=2))
    assert vault.rows("select owner from hub_owner order by 1") == [("AB",), ("ab",)]


def test_a_key_that_is_derived_by_another_expression_is_built_anew() -> None:
    vault = Vault()
    vault.derived, vault.stage["hk_owner"] = {"holder": "lower(owner)"}, ["holder"]
    vault.models["hub_owner"] = ("hub", {"src_pk": "hk_owner", "src_nk": "holder"})
    vault.make_stage()
    vault.load([event(100, owner="AB")], MAY)
    vault.derived["holder"] = "owner"
    vault.make_stage()
    vault.load([event(110, owner="AB")], MAY + timedelta(days=1))
    assert vault.rows("select holder from hub_owner") == [("AB",)]
    assert_nothing_changes(vault)


def test_a_table_of_a_release_that_remembered_no_columns_of_its_keys_is_kept() -> None:
    """It remembers them from the first load after the update, and what is declared later counts."""
    vault = Vault()
    vault.retype("owner", "citext")
    vault.load([event(100, owner="AB", a="A"), event(110, owner="Y", id_=2)], MAY)
    remembered = "select model, value from properties where key = 'lakehouse.loaded.keys' order by 1"
    now = dict(vault.rows(remembered))
    assert '"stg owner": "citext"' in now["hub_owner"]
    for model, value in now.items():
        keys, _, snapshot = value.rpartition("|")
        kept = json.dumps({name: signature for name, signature in json.loads(keys).items() if " " not in name})
        vault.db.execute("update properties set value = ? where model = ? and key = 'lakehouse.loaded.keys'",
                         [f"{kept}|{snapshot}", model])  # fmt: skip
    vault.db.execute("delete from hub_owner where source_seq like '%110.%'")
    before = vault.counts()
    vault.load([], MAY)
    assert vault.counts() == before, "a table was built anew"
    assert {model: value.rpartition("|")[0] for model, value in vault.rows(remembered)} == {
        model: value.rpartition("|")[0] for model, value in now.items()
    }
    vault.retype("owner", "text")
    vault.load([], MAY)
    linked = "select hub.owner from hub_owner as hub join link_row_owner using (hk_owner) order by 1"
    assert vault.rows(linked) == [("AB",), ("Y",)]


@pytest.mark.parametrize("way", ["next load", "full refresh", "first load"])
def test_a_table_is_not_made_of_a_view_from_before_its_stage_was_declared_otherwise(way: str) -> None:
    """By `dbt run --select sat_row`: it was made of the former hashdiff, without changes of b, and believed."""
    vault = Vault()
    say(vault, ["a"])
    events = [event(100, a="A", b=1), event(110, a="A", b=2)]
    vault.load(events[:1] if way == "first load" else events, MAY, failed=["sat_row"] if way == "first load" else [])
    say(vault, ["a", "b"], makes_view=False)
    vault.models = {"sat_row": vault.models["sat_row"]}
    vault.context["should_full_refresh"] = lambda: way == "full refresh"
    later = events[1:] if way == "first load" else []
    with pytest.raises(Refused, match=r"sat_row: it has to be made of the view stg, .* `dbt run --select stg`"):
        vault.load(later, MAY)
    vault.make_stage()
    if way == "full refresh":
        vault.db.execute("drop table sat_row")
    vault.load([], MAY)
    assert said(vault, "a, b") == [(100, "A", 1), (110, "A", 2)]


def test_a_hub_is_not_made_of_a_view_that_reads_its_keys_as_before() -> None:
    """The job of another source, which does not make that view, built it anew."""
    vault = Vault()
    vault.load([event(100, owner="a ")], MAY)
    vault.stage["hk_owner"] = {"columns": ["owner"], "normalize": "upper_trim"}
    vault.say_stage()
    vault.models = {"hub_owner": vault.models["hub_owner"]}
    with pytest.raises(Refused, match="hub_owner: it has to be made of the view stg"):
        vault.load([event(110, owner="A")], MAY + timedelta(days=1))
    vault.make_stage()
    vault.load([], MAY + timedelta(days=1))
    assert vault.rows("select count(*) from hub_owner") == [(1,)]


def test_a_hub_is_loaded_from_the_former_view_of_a_source_whose_new_column_is_not_there_yet() -> None:
    """The view named a column that parsed had not got, and another source's job could not load the hub for days."""
    vault = Vault()
    vault.load([event(100, owner="x")], MAY)
    columns = vault.context["declared_table"]().columns
    columns["email"] = SimpleNamespace(name="email", data_type="text")
    vault.stage["hd_row"] = {"is_hashdiff": True, "columns": ["a", "b", "email"]}
    vault.say_stage()
    stage, of_a_table = vault.context["graph"]["nodes"]["model.p.stg"], vault.context["model"]
    there, marker, stays = SimpleNamespace(is_view=True), "[definition 2]", vault.context["why_view_stays"]
    vault.context["model"] = stage
    assert stays(there, marker) == "waits"
    assert stays(there, vault.view_text) == "unchanged"
    assert stays(None, marker) is None
    columns["line"].data_type = "bigint"
    assert vault.context["columns_awaited"](stage) == ["line", "email"], "its type is widened by the load"
    columns["line"].data_type = "integer"
    vault.context["model"] = of_a_table
    vault.models = {"hub_owner": vault.models["hub_owner"]}
    vault.load([event(110, owner="y")], MAY + timedelta(days=1))
    assert vault.rows("select owner from hub_owner order by 1") == [("x",), ("y",)]
    vault.stage["hk_owner"] = {"columns": ["owner"], "normalize": "upper_trim"}
    vault.say_stage()
    with pytest.raises(Refused, match="cannot be made yet: parsed lacks email as declared"):
        vault.load([event(120, owner="z")], MAY + timedelta(days=2))
    vault.db.execute("alter table parsed add column email varchar")
    vault.context["model"] = stage
    assert stays(there, marker) is None


def test_a_table_that_has_nothing_to_remember_anew_is_loaded_from_any_view() -> None:
    """Also from one that dbt-trino has made, which does not say of what."""
    vault = Vault()
    say(vault, ["a"])
    vault.load([event(100, a="A")], MAY)
    vault.view_text = "a view of an earlier release [definition 1a]"
    vault.load([event(110, a="B")], MAY + timedelta(days=1))
    say(vault, ["a", "b"])
    vault.view_text = "a view of dbt-trino"
    vault.load([], MAY + timedelta(days=1))
    assert said(vault, "a") == [(100, "A"), (110, "B")]


def assert_nothing_changes(vault: Vault) -> None:
    """A load without news adds nothing, and builds nothing."""
    before = vault.counts(), vault.rows("select max(snapshot_id) from history")
    vault.load([], MAY + timedelta(days=1))
    assert (vault.counts(), vault.rows("select max(snapshot_id) from history")) == before


def said(vault: Vault, columns: str) -> list[tuple[Any, ...]]:
    """LSN and these columns of each row of the satellite."""
    lsn = "cast(split_part(source_seq, '.', 2) as bigint)"
    return vault.rows(f"select {lsn}, {columns} from sat_row where record_source <> 'ghost' order by 1")


def say(vault: Vault, columns: list[str], makes_view: bool = True) -> None:
    """Declares what the satellite says."""
    vault.stage["hd_row"] = {"is_hashdiff": True, "columns": columns}
    vault.models["sat_row"] = ("sat", {"src_pk": "hk_row", "src_hashdiff": "hd_row", "src_payload": columns})
    vault.make_stage() if makes_view else vault.say_stage()


def event(lsn: int, id_: int = 1, owner: str = "x", a: str | None = None, b: int | None = None) -> Event:
    """An event of one row."""
    return {"id": id_, "line": 1, "owner": owner, "a": a, "b": b, "gone": False, "at": START + timedelta(hours=lsn),
            "lsn": lsn, "seq": 1}  # fmt: skip
