"""What a model's YAML lists is what its macro makes, in types that hold the values of its stage."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.dbt_macros import Refused, macro
from tests.unit.embedded_vault import START, Vault

MAY = START + timedelta(days=50)
MOMENT = "timestamp(6) with time zone"
EVENT = {"load_date": MOMENT, "applied_date": MOMENT, "source_seq": "varchar", "record_source": "varchar"}
SAT = {"hk_row": "varchar", "hd_row": "varchar", "a": "varchar", "b": "integer", "is_deleted": "boolean", **EVENT}


def vault_of(name: str, **models: Any) -> Vault:
    """With one table, which is loaded."""
    vault = Vault()
    vault.models = {name: models.get(name, vault.models[name])}
    vault.load([said(100)], MAY)
    return vault


def said(lsn: int) -> dict[str, Any]:
    """An event."""
    return {"id": 1, "line": 1, "owner": "x", "a": str(lsn), "b": lsn, "gone": False, "at": START, "lsn": lsn, "seq": 1}


def lists(vault: Vault, columns: dict[str, str | None]) -> None:
    """What the YAML of the table's model lists."""
    vault.context["model"].columns = {
        name: {"name": name, "data_type": kind, "description": ""} for name, kind in columns.items()
    }


def test_a_column_that_the_yaml_does_not_list_stops_the_load() -> None:
    """New rows had NULL in it, without a word."""
    vault = vault_of("sat_row")
    lists(vault, SAT)
    vault.load([said(110)], MAY + timedelta(days=1))
    lists(vault, {name: kind for name, kind in SAT.items() if name != "b"})
    refusal = "sat_row: column b is not in the model's YAML: list all columns there, or none with a data_type"
    with pytest.raises(Refused, match=f"^{refusal}$"):
        vault.load([said(120)], MAY + timedelta(days=2))
    lists(vault, {name: None if name == "a" else kind for name, kind in SAT.items() if name != "b"})
    vault.load([], MAY + timedelta(days=3))
    assert vault.rows("select b from sat_row where record_source <> 'ghost' order by 1") == [(100,), (110,), (120,)]


def test_a_table_that_is_made_anew_for_a_column_that_the_yaml_lacks_is_left_as_it_is() -> None:
    """It was made without the column, and remembered that it had it."""
    vault = vault_of("sat_row")
    lists(vault, SAT)
    before = vault.rows("select model, key, value from properties order by all")
    vault.models = {"sat_row": ("sat", vault.models["sat_row"][1] | {"src_payload": ["a", "b", "order"]})}
    with pytest.raises(Refused, match="sat_row: column order is not in the model's YAML"):
        vault.load([said(110)], MAY + timedelta(days=1))
    assert vault.rows("select model, key, value from properties order by all") == before


def test_a_column_that_the_model_does_not_make_stops_the_load() -> None:
    vault = vault_of("sat_row")
    lists(vault, {**SAT, "c": "varchar"})
    with pytest.raises(Refused, match="sat_row: column c is in the model's YAML and not made by the model"):
        vault.load([], MAY)


def test_every_kind_of_table_looks_at_what_is_listed() -> None:
    vault = Vault()
    models = dict(vault.models)
    vault.load([said(100)], MAY)
    for name in models:
        vault.models = {name: models[name]}
        made = [column for column, *_ in vault.rows(f"describe {name}")]
        lists(vault, dict.fromkeys(made, "varchar"))
        vault.load([], MAY)
        lists(vault, dict.fromkeys(made[1:], "varchar"))
        with pytest.raises(Refused, match=f"{name}: column {made[0]} is not in the model's YAML"):
            vault.load([], MAY)


REBUILD = (
    r"`dbt build --full-refresh --select 'a_model\+'`\. Where the source has changed the column's type, rows from "
    r"before have NULL in it then: raw alone keeps their values, as `<column>__<type>`"
)


SAYS_B = {"src_pk": "hk_row", "src_hashdiff": "hd_row", "src_payload": ["b"]}
OF_B: dict[str, tuple[str, dict[str, Any]]] = {
    "sat_b": ("sat", SAYS_B),
    "nh_sat_b": ("nh_sat", {"src_pk": "hk_row", "src_payload": ["b"]}),
    "ma_sat_b": ("ma_sat", SAYS_B | {"src_cdk": "line"}),
    "ref_b": ("ref_table", SAYS_B | {"src_pk": ["id", "line"]}),
    "nh_link_b": ("nh_link", {"src_pk": "hk_row", "src_fk": ["hk_owner"], "src_payload": ["b"]}),
    "hub_b": ("hub", {"src_pk": "hk_row", "src_nk": ["b"]}),
}


def test_a_type_that_does_not_hold_the_values_of_the_stage_stops_the_load() -> None:
    """`data_type` was corrected and `lakehouse scaffold` not run: parsed had 1.2345, and the satellite 1.23."""
    vault = Vault()
    vault.models = OF_B
    vault.load([said(100)], MAY)
    scaffold, rebuild = "run `lakehouse scaffold`, then ", f"build the table anew, and what is below it, with {REBUILD}"
    for name in OF_B:
        vault.models = {name: OF_B[name]}
        made = [column for column, *_ in vault.rows(f"describe {name}")]
        for declared, there, listed, remedy in (
            ("double precision", "double", "real", "load it again"),
            ("numeric(10,4)", r"decimal\(10,4\)", r"decimal\(10, 2\)", rebuild),
            ("timestamp", r"timestamp\(6\)", "date", rebuild),
        ):
            vault.context["declared_table"]("s", "t").columns["b"].data_type = declared
            lists(vault, dict.fromkeys(made, "varchar") | {"b": listed.replace("\\", "")})
            refusal = f"{name}: column b is {there} in stg, and as {listed} its values would change: {scaffold}{remedy}"
            with pytest.raises(Refused, match=f"^{refusal}$"):
                vault.load([], MAY)
        vault.context["declared_table"]("s", "t").columns["b"].data_type = "integer"
        lists(vault, dict.fromkeys(made, "varchar") | {"b": "bigint"})
        vault.load([said(110)], MAY + timedelta(days=1))


def test_a_table_whose_yaml_has_no_types_is_looked_at_itself() -> None:
    vault = vault_of("sat_row")
    vault.db.execute("alter table sat_row alter b type decimal(10,2)")
    b = vault.context["declared_table"]("s", "t").columns["b"]
    b.data_type = "numeric(12,2)"
    vault.load([said(110)], MAY + timedelta(days=1))
    b.data_type = "numeric(12,4)"
    vault.load([], MAY + timedelta(days=1))
    with pytest.raises(Refused, match=rf"^sat_row: column b is decimal\(12,4\) in stg, .*: build .* {REBUILD}$"):
        vault.load([said(120)], MAY + timedelta(days=2))


def test_a_key_is_looked_at_under_the_name_that_it_has_in_its_hub() -> None:
    """A table calls its key otherwise than its hub; what is derived by SQL is text, and as its author lists it."""
    vault = Vault()
    vault.derived = {"number": "b", "size": "length(made)"}
    vault.make_stage()
    vault.models = {"hub_row": ("hub", {"src_pk": "hk_row", "src_nk": ["number", "size"]})}
    vault.retype("b", "numeric(10,4)")
    for listed in ("decimal(10,4)", "decimal(10,2)"):
        lists(vault, {"hk_row": "varchar", "number": listed, "size": "integer", **EVENT})
        if listed == "decimal(10,4)":
            vault.load([], MAY)
        else:
            says = r"^hub_row: column number is decimal\(10,4\) in stg, and as decimal\(10,2\)"
            with pytest.raises(Refused, match=says):
                vault.load([], MAY)


def test_a_hub_takes_keys_of_further_stages_in_any_type_that_its_declaration_allows() -> None:
    """A key of 1.0000 in another system is the 1 of the hub."""
    mentions = ["stg", {"model": "stg", "src_pk": "hk_owner", "src_nk": "b"}]
    vault = vault_of("hub_thing", hub_thing=("hub", {"src_pk": "hk_thing", "src_nk": "id", "source_model": mentions}))
    lists(vault, {"hk_thing": "varchar", "id": "integer", **EVENT})
    vault.context["declared_table"]("s", "t").columns["b"].data_type = "numeric(10,4)"
    vault.load([said(110)], MAY + timedelta(days=1))


@pytest.mark.parametrize(
    ("there", "listed", "held"),
    [
        ("integer", "decimal(10,0)", True),
        ("decimal(10,2)", "varchar", True),
        ("decimal(10,2)", "DECIMAL(12, 2)", True),
        ("decimal(10,2)", "decimal", False),
        ("decimal(10,2)", "integer", False),
        ("real", "varchar", False),  # Trino's text of it has seven digits
        ("varchar", "varchar(20)", True),
        ("integer", "INT", True),
        ("timestamp(6) with time zone", "timestamp(6)", False),
    ],
)
def test_how_somebody_spells_a_type_of_a_model_of_theirs_is_their_matter(there: str, listed: str, held: bool) -> None:
    assert macro("holds_values")(there, listed) is held
