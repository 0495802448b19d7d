"""A hub with the keys of several tables: equal keys of two systems stay two, those of one system are one."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from scaffold import diagram, models_of
from tests.unit.test_scaffold import declared
from tests.unit.test_vault_names import of, table

TEXTS = {"number": "text", "name": "text"}
CRM = table(
    "customers", TEXTS, {"hub": {"name": "customer", "collision_code": "crm"}, "satellites": {"person": ["name"]}},
    key="number",
)  # fmt: skip
EXTENDS = {"name": "customer", "extends": True}
ERP_HUB = {**EXTENDS, "collision_code": "erp"}


def clients(hub: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A second table of customers."""
    vault = {"hub": hub, "satellites": {"credit": ["amount"]}, **more}
    return table("clients", {"nr": "text", "amount": "int"}, vault, key="nr")


def orders(**reference: Any) -> dict[str, Any]:
    """A table that refers to a customer."""
    vault = {
        "hub": "order", "links": {"order_customer": ["customer"]},
        "references": {"customer": {"columns": ["customer_nr"], **reference}},
    }  # fmt: skip
    return table("orders", {"id": "int", "customer_nr": "text"}, vault)


TWO_COLUMNS = table("clients", {"a": "int", "b": "int"}, {"hub": ERP_HUB}, key="a")
TWO_COLUMNS["config"]["meta"]["raw"]["key"] = ["a", "b"]


def sql_of(place: Path, text: str, *sources: str) -> dict[str, str]:
    """The models of these sources, each on one line."""
    found = declared(place, text)
    return {model.name: " ".join(model.sql.split()) for source in sources for model in models_of(found, source)}


def test_two_systems_own_one_hub_and_each_reference_names_the_keys_of_one(tmp_path: Path) -> None:
    """By default those of its own source."""
    desk = table(
        "tickets", {"id": "int", "customer_no": "text"},
        {"hub": "ticket", "references": {"customer": {"columns": ["customer_no"], "collision_code": "crm"}}},
    )  # fmt: skip
    sql = sql_of(
        tmp_path, of(("crm", [CRM]), ("erp", [clients(ERP_HUB), orders()]), ("desk", [desk])), "crm", "erp", "desk"
    )
    assert "'hk_customer': ['!crm', 'number']" in sql["stg_crm__customers"]
    assert "'hk_customer': ['!erp', 'nr']" in sql["stg_erp__clients"]
    assert "'hk_customer': ['!erp', 'customer_nr']" in sql["stg_erp__orders"]
    assert "'hk_customer': ['!crm', 'customer_no']" in sql["stg_desk__tickets"]
    inputs = (
        "{'model': 'stg_crm__customers', 'code': 'crm'}",
        "{'model': 'stg_erp__clients', 'src_pk': 'hk_customer', 'src_nk': ['nr'], 'code': 'erp'}",
        "{'model': 'stg_erp__orders', 'src_pk': 'hk_customer', 'src_nk': ['customer_nr'], 'code': 'erp'}",
        "{'model': 'stg_desk__tickets', 'src_pk': 'hk_customer', 'src_nk': ['customer_no'], 'code': 'crm'}",
    )
    assert all(one in sql["hub_customer"] for one in inputs) and "src_code='collision_code'" in sql["hub_customer"]
    assert {"sat_person", "sat_credit", "sts_customer", "sts_customer_erp_clients"} <= set(sql)


def test_a_table_that_extends_another_shares_its_keys(tmp_path: Path) -> None:
    """One system, so there is no code to tell keys apart; the hub's rules for keys hold for it too."""
    ruled = table(
        "customers", TEXTS, {"hub": {"name": "customer", "blank": "error"}, "ignored": ["name"]}, key="number"
    )
    text = of(("crm", [clients(EXTENDS), ruled, orders()]))
    sql = sql_of(tmp_path, text, "crm")
    assert "'hk_customer': {'columns': ['nr'], 'blank': 'error'}" in sql["stg_crm__clients"]
    extension = "{'model': 'stg_crm__clients', 'src_pk': 'hk_customer', 'src_nk': ['nr']}"
    assert f"'stg_crm__customers', {extension}" in sql["hub_customer"]
    assert "src_code" not in sql["hub_customer"]
    found = declared(tmp_path, text)
    assert 'hub_customer ||--o{ sts_customer_crm_clients : "exists"' in diagram(found, "crm")
    tests = {model.name: dict(model.tests).get("keys_are_given") for model in models_of(found, "crm")}
    assert tests["stg_crm__orders"] == {"src_pk": "hk_order", "references": ["hk_customer"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of(("crm", [CRM, clients({"name": "customer"})])),
         "V7: hub_customer would be hub 'customer' and hub 'customer' of table clients; if both are about the same kind"
         " of thing, one of them says `hub: {name: …, extends: true}`"),
        (of(("erp", [clients(ERP_HUB)])), "V5: no table declares the hub 'customer' that erp.clients extends"),
        (of(("erp", [clients(ERP_HUB), orders()])), "V5: no table declares"),
        (of(("crm", [CRM, clients({**ERP_HUB, "blank": "error"})])),
         "V12: blank of a hub is said once, by table customers"),
        (of(("crm", [CRM, clients(ERP_HUB, track_mentions=True)])),
         "V12: table customers, which declares the hub, tracks mentions"),
        (of(("crm", [CRM, clients(ERP_HUB), orders()])),
         "V12: the keys of hub 'customer' have the collision codes 'crm', 'erp': name one with `collision_code`"),
        (of(("crm", [CRM, orders(collision_code="erp")])),
         "V12: the keys of hub 'customer' have the collision codes 'crm': name one"),
        (of(("crm", [CRM, TWO_COLUMNS])),
         "V5: the key of hub 'customer' is number; the key of this table is a, b"),
        (of(("crm", [table("customers", {"collision_code": "text"}, {"hub": "customer"}, key="collision_code"),
                     clients(ERP_HUB)])), "V7: hub 'customer' would have 'collision_code' twice"),
    ],
)  # fmt: skip
def test_a_hub_of_several_tables_that_is_not_clear_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LakehouseError, match=r"models/shop\.yml:\d+: V\d+: ") as caught:
        declared(tmp_path, text)
    assert said in str(caught.value)


def test_a_key_of_another_type_is_cast_to_that_of_the_hub(tmp_path: Path) -> None:
    """Trino does not put a number and a text into one column; the hash is of the text in both."""
    numbers = table("clients", {"nr": "int"}, {"hub": ERP_HUB}, key="nr")
    sql = sql_of(tmp_path, of(("crm", [CRM]), ("erp", [numbers])), "crm")
    assert "'src_nk': ['nr'], 'src_types': ['varchar'], 'code': 'erp'" in sql["hub_customer"]
