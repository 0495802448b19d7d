"""References of several columns: they may share one, and where one is NULL they refer to nothing, as in SQL."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from scaffold import models_of
from scaffold.propose import Found, proposal
from tests.unit.embedded_vault import START, Vault
from tests.unit.test_scaffold import declared
from tests.unit.test_vault_names import of, table

AGENTS = {
    "name": "agents",
    "config": {"meta": {"raw": {"relation": "public.agents", "key": ["tenant_id", "id"]}, "vault": {"hub": "agent"}}},
    "columns": [{"name": "tenant_id", "data_type": "int"}, {"name": "id", "data_type": "int"}],
}
TICKET = {"id": "int", "tenant_id": "int", "requester_id": "int", "assignee_id": "int"}
VAULT: dict[str, Any] = {
    "hub": "ticket",
    "references": {
        "requester": {"columns": ["tenant_id", "requester_id"], "hub": "agent"},
        "assignee": {"columns": ["tenant_id", "assignee_id"], "hub": "agent"},
    },
    "links": {"ticket_agents": ["requester", "assignee"]},
}
ZERO = "0" * 32


def test_two_references_share_a_column(tmp_path: Path) -> None:
    found = declared(tmp_path, of(("desk", [AGENTS, table("tickets", TICKET, VAULT)])))
    sql = {model.name: " ".join(model.sql.split()) for model in models_of(found, "desk")}
    assert "'hk_requester': [['tenant_id', 'requester_id']]" in sql["stg_desk__tickets"]
    link = "'hk_ticket_agents': ['id', ['tenant_id', 'requester_id'], ['tenant_id', 'assignee_id']]"
    assert link in sql["stg_desk__tickets"]
    assert "'src_pk': 'hk_assignee', 'src_nk': ['tenant_id', 'assignee_id']" in sql["hub_agent"]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        (["tenant_id", "requester_id", "assignee_id"], "V5"),
        (["requester_id"], "V5"),
        ([], "V5"),
        (["nope", "id"], "V6"),
    ],
)
def test_a_reference_has_as_many_columns_as_the_key_it_names(tmp_path: Path, columns: list[str], code: str) -> None:
    """With fewer or more, its hashes would be in no hub."""
    vault = {**VAULT, "links": {}, "references": {"requester": {"columns": columns, "hub": "agent"}}}
    vault["ignored"] = [column for column in TICKET if column not in [*columns, "id"]]
    with pytest.raises(LakehouseError, match=rf"shop\.yml:\d+: {code}: "):
        declared(tmp_path, of(("desk", [AGENTS, table("tickets", TICKET, vault)])))


def test_a_reference_that_is_partly_null_is_the_zero_key() -> None:
    """And all that are so are one combination of the link; keys of deletes, which have no more columns, as well."""
    vault = Vault()
    vault.stage |= {"hk_pair": [["owner", "b"]], "hk_row_pair": ["id", ["owner", "b"]]}
    vault.make_stage()
    hub = {"src_pk": "hk_pair", "src_nk": ["owner", "b"]}
    vault.models = {
        "hub_pair": ("hub", hub),
        "link_row_pair": ("link", {"src_pk": "hk_row_pair", "src_fk": ["hk_row", "hk_pair"]}),
    }
    states = [("x", 1), ("x", None), (None, 1), (None, None), ("x", 1)]
    vault.load(
        [
            {"id": 7, "line": 1, "owner": owner, "a": None, "b": b, "gone": False, "at": START, "lsn": n, "seq": 1}
            for n, (owner, b) in enumerate(states)
        ],
        START + timedelta(days=1),
    )
    assert vault.rows("select owner, b from hub_pair") == [("x", 1)]
    assert vault.rows("select count(*), count(distinct hk_pair) from link_row_pair") == [(2, 2)]
    assert vault.rows(f"select count(*) from link_row_pair where hk_pair = '{ZERO}'") == [(1,)]


def test_the_hash_of_a_whole_reference_is_that_of_its_columns() -> None:
    """Keys that were stored before references were taken as a whole stay what they are."""
    vault = Vault()
    vault.stage |= {"hk_whole": ["id", ["owner", "b"]], "hk_flat": ["id", "owner", "b"]}
    vault.make_stage()
    event = {"id": 7, "line": 1, "owner": "x|y", "a": None, "b": 1, "gone": False, "at": START, "lsn": 1, "seq": 1}
    vault.load([event], START)
    assert vault.rows("select hk_whole = hk_flat from stg") == [(True,)]


def test_a_foreign_key_that_shares_a_column_is_proposed(tmp_path: Path) -> None:
    """Under the name of the column that is its own."""
    agents = Found(1, "public", "agents", "", (("tenant_id", "int", ""), ("id", "int", "")), ("tenant_id", "id"))
    columns = tuple((name, "int", "") for name in TICKET)
    foreign = ((("tenant_id", "requester_id"), 1), (("tenant_id", "assignee_id"), 1))
    tickets = Found(2, "public", "tickets", "", columns, ("id",), foreign)
    vault = declared(tmp_path, proposal("desk", [agents, tickets], set())).source("desk").table("tickets").vault
    assert vault is not None
    found = {role: (reference.columns, vault.hub_of(role)) for role, reference in vault.references.items()}
    assert found == {"agent": (foreign[0][0], "agent"), "assignee": (foreign[1][0], "agent")}
