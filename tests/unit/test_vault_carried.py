"""A table that is declared otherwise keeps the rows of which its stages say nothing any more, or is left as it is.

As after `lakehouse remove shop.t --drop-tables`: the vault stays, and parsed begins anew.
"""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.dbt_macros import Refused, macro_texts
from tests.unit.embedded_vault import MODELS, START, Event, Vault, assert_nothing_changes
from tests.unit.test_vault_reals import of_seven_digits, release, retype

MAY = START + timedelta(days=50)
OLD = [(100, "old", None), (105, "old2", None), (107, "old2", None)]
NEW = [(200, "old2", None), (205, "new", 5)]
SATELLITES: dict[str, tuple[str, dict[str, Any]]] = {
    "sat_row": ("sat", {"src_pk": "hk_row"}), "ma_sat_thing": ("ma_sat", {"src_pk": "hk_thing", "src_cdk": "line"}),
    "ref_row": ("ref_table", {"src_pk": ["id", "line"]}),
}  # fmt: skip


def test_rows_from_before_a_table_was_begun_again_stay_where_a_column_is_added() -> None:
    """They were gone: the history of all columns from before the drop."""
    vault, at_once = begun_again(), Vault()
    at_once.models = {}
    for each in (vault, at_once):
        say(each, ["a", "b"])
    vault.load([], MAY + timedelta(days=3))
    assert said(vault, "a, b") == [(100, "old", None), (105, "old2", None), (205, "new", 5)]
    at_once.load(list(map(event, OLD)), MAY)
    at_once.load(list(map(event, NEW)), MAY + timedelta(days=2))
    for name in SATELLITES:
        all_rows = f"select * from {name} order by all"
        assert vault.rows(all_rows) == at_once.rows(all_rows), name
    assert_nothing_changes(vault, MAY + timedelta(days=4))


def test_such_rows_have_the_hashdiff_of_all_digits_of_their_reals() -> None:
    """An equal row that comes later was a change."""
    vault = Vault()
    retype(vault, "real")
    release(vault, of_seven_digits())
    vault.models = {}
    say(vault, ["a", "b"])
    vault.load([event((100, "A", 0.1))], MAY)
    begin_again(vault, [(200, "A", 0.1), (205, "A", 12345678.0)])
    release(vault, macro_texts())
    vault.load([event((206, "A", 12345679.0))], MAY + timedelta(days=3))
    assert [row[0] for row in said(vault, "b")] == [100, 205, 206]
    assert_nothing_changes(vault, MAY + timedelta(days=4))


def test_what_never_changes_is_kept_with_null_in_a_new_column() -> None:
    vault = Vault()
    vault.models = {
        "nh_sat_row": ("nh_sat", {"src_pk": "hk_row", "src_payload": ["a"]}),
        "nh_link_row": ("nh_link", {"src_pk": "hk_row", "src_fk": ["hk_owner"], "src_payload": ["a"]}),
    }
    vault.load([event((100, "old", None))], MAY)
    begin_again(vault, [(200, "new", 5, 2)])
    for _, arguments in vault.models.values():
        arguments["src_payload"] = ["a", "b"]
    vault.load([], MAY + timedelta(days=3))
    for name in vault.models:
        found = vault.rows(f"select a, b from {name} where record_source <> 'ghost' order by 1")
        assert found == [("new", 5), ("old", None)], name


def test_values_of_a_column_that_goes_are_not_lost_unless_somebody_drops_it() -> None:
    """It may have been renamed, or have moved to another satellite."""
    vault = begun_again()
    before = vault.rows("select * from sat_row order by all")
    vault.models = {}
    say(vault, ["made"], ["sat_row"])
    with pytest.raises(Refused, match=r"sat_row: it has to be made anew, and 2 of its rows, .* have values in a that"):
        vault.load([], MAY + timedelta(days=3))
    assert vault.rows("select * from sat_row order by all") == before
    vault.db.execute("alter table sat_row rename a to made")
    vault.load([], MAY + timedelta(days=3))
    assert said(vault, "made") == [(100, "old"), (105, "old2"), (200, None)]


def test_rows_whose_keys_would_be_others_are_not_lost_without_a_word() -> None:
    """Their hashes are of what is gone. `--full-refresh` does without them."""
    vault = begun_again("hub_row", "link_row_owner", "eff_sat_row_owner", "sat_row", "rts_thing")
    vault.stage |= {"hk_row": ["!code", "id", "line"], "hk_row_owner": ["!code", "id"], "hk_thing": ["!code", "id"]}
    vault.make_stage()
    models = vault.models
    for name in models:
        vault.models = {name: models[name]}
        before = vault.rows(f"select * from {name} order by all")
        why = rf"{name}: it has to be made anew, and [12] of its rows, .* cannot get the keys .* --full-refresh"
        with pytest.raises(Refused, match=why):
            vault.load([], MAY + timedelta(days=3))
        assert vault.rows(f"select * from {name} order by all") == before
    vault.context["should_full_refresh"] = lambda: True
    vault.db.execute("drop table sat_row")
    vault.models = {"sat_row": models["sat_row"]}
    vault.load([], MAY + timedelta(days=3))
    assert [row[0] for row in said(vault, "a")] == [200, 205]


def begun_again(*models: str) -> Vault:
    """After the parsed table was dropped, and landed again; satellites of column a, or these tables of the harness."""
    vault = Vault()
    vault.models = {name: MODELS[name] for name in models}
    if not models:
        say(vault, ["a"])
    vault.load(list(map(event, OLD)), MAY)
    begin_again(vault, NEW)
    return vault


def begin_again(vault: Vault, rows: list[Any]) -> None:
    """Parsed is dropped, and has these rows."""
    vault.db.execute("delete from parsed")
    vault.commit("parsed", replaces=True)
    vault.load([event(row) for row in rows], MAY + timedelta(days=2))


def say(vault: Vault, columns: list[str], names: Any = SATELLITES) -> None:
    """Declares what the satellites say."""
    vault.stage["hd_row"] = {"is_hashdiff": True, "columns": columns}
    for name in names:
        kind, arguments = SATELLITES[name]
        vault.models[name] = (kind, {**arguments, "src_hashdiff": "hd_row", "src_payload": columns})
    vault.make_stage()


def event(row: Any) -> Event:
    """An event of one row: LSN, a, b and the id."""
    lsn, a, b, id_ = (*row, 1)[:4]
    return {"id": id_, "line": 1, "owner": "x", "a": a, "b": b, "gone": False, "at": START + timedelta(hours=lsn),
            "lsn": lsn, "seq": 1}  # fmt: skip


def said(vault: Vault, columns: str) -> list[tuple[Any, ...]]:
    """LSN and these columns of each row of the satellite."""
    lsn = "cast(split_part(source_seq, '.', 2) as bigint)"
    return vault.rows(f"select {lsn}, {columns} from sat_row where record_source <> 'ghost' order by 1")
