"""Satellites that are not of the row's own thing, or that never change: what they become, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from scaffold import diagram, models_of
from tests.unit.test_scaffold import declared
from tests.unit.test_vault_hubs import sql_of
from tests.unit.test_vault_names import OWNERS, of, table

COLUMNS = {"id": "int", "owner_id": "int", "role": "text", "made_by": "text"}


def accounts(satellites: dict[str, Any], **more: Any) -> str:
    """A table of accounts, each with an owner, who is described by `role`."""
    vault = {
        "hub": "account", "references": {"owner": "owner_id"}, "links": {"account_owner": ["owner"]},
        "satellites": satellites, **more,
    }  # fmt: skip
    return of(("shop", [table("accounts", COLUMNS, vault), OWNERS]))


RIGHT = {
    "ownership": {"columns": ["role"], "link": "account_owner"},
    "account_origin": {"columns": ["made_by"], "historized": False},
}


def test_a_satellite_of_a_link_has_what_live_rows_say_and_one_without_history_has_no_hashdiff(tmp_path: Path) -> None:
    text = accounts(RIGHT)
    sql = sql_of(tmp_path, text, "shop")
    assert sql["sat_ownership"] == (
        "{{ cdc_vault.sat( src_pk='hk_account_owner', src_hashdiff='hd_ownership', src_payload=['role'],"
        " source_model='stg_shop__accounts', src_nk=['id'], is_key=false, ) }}"
    )
    assert sql["nh_sat_account_origin"] == (
        "{{ cdc_vault.nh_sat(src_pk='hk_account', src_payload=['made_by'], source_model='stg_shop__accounts') }}"
    )
    assert "hd_account_origin" not in sql["stg_shop__accounts"]
    assert "sat_ownership_v1" in sql and not any(name.startswith("nh_sat_account_origin_") for name in sql)
    found = declared(tmp_path, text)
    tests = {model.name: dict(model.tests) for model in models_of(found, "shop")}
    assert tests["sat_ownership"]["sat_is_sound"] == {"src_pk": "hk_account_owner", "parent": "link_account_owner"}
    assert tests["nh_sat_account_origin"]["nh_sat_is_sound"]["parent"] == "hub_account"
    drawn = diagram(found, "shop")
    assert 'link_account_owner ||--o{ sat_ownership : ""' in drawn
    assert 'hub_account ||--o| nh_sat_account_origin : ""' in drawn


@pytest.mark.parametrize(
    ("satellites", "more", "said"),
    [
        ({"ownership": {"columns": ["role"], "link": "owner"}}, {},
         "V13: meta.vault.links has no 'owner' that the satellite could describe"),
        ({"ownership": {"columns": ["role"], "link": "account_owner"}},
         {"links": {"account_owner": {"to": ["owner"], "effectivity": False}}},
         "V13: nothing says when link 'account_owner' ends"),
        ({"ownership": {"columns": ["role"], "link": "account_owner", "personal": True}}, {},
         "V8: personal data of a link could not be erased"),
        ({"origin": {"columns": ["role"], "historized": False, "personal": True}}, {},
         "V8: an erasure changes personal data"),
    ],
)  # fmt: skip
def test_a_satellite_that_its_table_cannot_have_is_refused(
    tmp_path: Path, satellites: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(LakehouseError, match=r"models/shop\.yml:\d+: V\d+: ") as caught:
        declared(tmp_path, accounts(satellites, **{"ignored": ["made_by"], **more}))
    assert said in str(caught.value)


def test_children_and_codes_keep_their_history(tmp_path: Path) -> None:
    codes = {"reference_table": "code", "satellites": {"code": {"columns": ["name"], "historized": False}}}
    with pytest.raises(LakehouseError, match=r"V13: children and codes are kept with their history"):
        declared(tmp_path, of(("shop", [table("codes", {"id": "int", "name": "text"}, codes)])))


@pytest.mark.parametrize("form", ["children_of", "reference_table"])
def test_the_key_of_children_and_codes_is_not_said_again(tmp_path: Path, form: str) -> None:
    """Their satellites have it already: each table had the column twice."""
    vault: dict[str, Any] = {form: "owner", "satellites": {"phone": ["code", "label"]}}
    if form == "children_of":
        vault["references"] = {"owner": "owner_id"}
    columns = {"owner_id": "int", "code": "text", "label": "text"} if form == "children_of" else KINDS_COLUMNS
    phones = table("phones", columns, vault)
    phones["config"]["meta"]["raw"]["key"] = [column for column in columns if column != "label"]
    with pytest.raises(LakehouseError, match=r"shop\.yml:\d+: V3: code is in the table's key, .*: leave it out"):
        declared(tmp_path, of(("shop", [OWNERS, phones])))


KINDS_COLUMNS = {"code": "text", "label": "text"}
CODES = {"reference_table": "kind", "satellites": {"kind": ["label"]}}
KINDS = table("kinds", KINDS_COLUMNS, CODES, key="code")
THINGS = {"id": "int", "kind_code": "text", "other": "int"}


def things(codes: dict[str, Any], *more: dict[str, Any]) -> str:
    """A table with two codes."""
    vault = {"hub": "thing", "codes": codes, "satellites": {"thing_details": ["kind_code", "other"]}}
    return of(("shop", [table("things", THINGS, vault), *more]))


def test_a_code_is_an_attribute_that_is_looked_for_in_its_reference_table(tmp_path: Path) -> None:
    found = declared(
        tmp_path, things({"kind": "kind_code", "second": {"columns": ["other"], "reference_table": "kind"}}, KINDS)
    )
    stage = next(model for model in models_of(found, "shop") if model.name == "stg_shop__things")
    kind = {"model": "ref_kind", "src_pk": ["code"]}
    assert dict(stage.tests)["codes_are_known"] == {
        "codes": [{"columns": ["kind_code"], **kind}, {"columns": ["other"], **kind, "as_text": True}]
    }
    assert "hk_kind" not in stage.sql and 'ref_kind |o--o{ sat_thing_details : "second"' in diagram(found, "shop")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (things({"kind": "kind_code"}), "V5: no table declares `reference_table: kind`, which shop.things refers"),
        (things({"kind": ["kind_code", "other"]}, KINDS), "V5: code 'kind' names kind_code, other; the key of 'kind'"),
        (things({"kind": "nope"}, KINDS), "V6: nope is not among the columns that land"),
        (things({"kind": "kind_code"}, KINDS, table("more", {"id": "int", "label": "text"},
                {"reference_table": "kind", "satellites": {"more": ["label"]}})),
         "V7: reference table 'kind' is that of tables kinds and more"),
        (of(("shop", [table("kinds", {"id": "int"}, {"reference_table": "kind"})])),
         "V11: nothing is made of this without a satellite"),
        (of(("shop", [table("things", {"id": "int", "k": "int"}, {"hub": "thing", "references": {"kind": "k"}})])),
         "V5: no table declares a hub 'kind', which shop.things refers to; a code of a reference table is named in"
         " `codes`"),
    ],
)  # fmt: skip
def test_a_code_that_names_no_reference_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LakehouseError, match=r"models/shop\.yml:\d+: V\d+: ") as caught:
        declared(tmp_path, text)
    assert said in str(caught.value)
