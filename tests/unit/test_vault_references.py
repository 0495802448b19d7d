"""References of several columns: they may share one, and where one is NULL they refer to nothing, as in SQL."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from scaffold import models_of
from scaffold.propose import DbTable, proposal
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
        (["tenant_id", "tenant_id"], "V3"),
    ],
)
def test_a_reference_has_as_many_columns_as_the_key_it_names(tmp_path: Path, columns: list[str], code: str) -> None:
    """With fewer or more, its hashes would be in no hub."""
    vault = {**VAULT, "links": {}, "references": {"requester": {"columns": columns, "hub": "agent"}}}
    vault["ignored"] = [column for column in TICKET if column not in [*columns, "id"]]
    with pytest.raises(LakehouseError, match=rf"shop\.yml:\d+: {code}: "):
        declared(tmp_path, of(("desk", [AGENTS, table("tickets", TICKET, vault)])))


@pytest.mark.parametrize("form", ["reference", "extension"])
def test_the_columns_of_a_key_in_another_order_are_refused(tmp_path: Path, form: str) -> None:
    """(id, tenant_id) beside (tenant_id, id): its hashes would be those of other keys."""
    hub: dict[str, Any] = {"hub": {"name": "agent", "extends": True}, "satellites": {"agent_mail": ["mail"]}}
    mails = table("mails", {"tenant_id": "int", "id": "int", "mail": "text"}, hub)
    mails["config"]["meta"]["raw"]["key"] = ["id", "tenant_id"]
    if form == "reference":
        agent = {"agent": {"columns": ["id", "tenant_id"]}}
        mails["config"]["meta"]["vault"] = {"event": {"name": "mail", "to": ["agent"], "columns": ["mail"]}}
        mails["config"]["meta"]["vault"]["references"] = agent
    said = r"V5: .*id, tenant_id; the key of hub 'agent' is tenant_id, id, in this order"
    with pytest.raises(LakehouseError, match=rf"shop\.yml:\d+: {said}"):
        declared(tmp_path, of(("desk", [AGENTS, mails])))
    mails["config"]["meta"]["raw"]["alias"] = {"id": "agent_id"}
    assert models_of(declared(tmp_path, of(("desk", [AGENTS, mails]))), "desk"), "other names may be in any order"


@pytest.mark.parametrize("mask", ["sha256", "null"])
@pytest.mark.parametrize("part", ["references", "codes"])
def test_a_masked_column_names_nothing(tmp_path: Path, part: str, mask: str) -> None:
    """A digest would be in no hub, or rather, in its hub as a key of its own."""
    vault: dict[str, Any] = {"hub": "ticket", "references": {"agent": "agent_id"}, "links": {"ticket_agent": ["agent"]}}
    if part == "codes":
        vault = {"hub": "ticket", "codes": {"kind": "agent_id"}, "satellites": {"ticket": ["agent_id"]}}
    kinds = table("kinds", {"id": "text"}, {"reference_table": "kind", "satellites": {"kind": []}})
    agents = table("agents", {"id": "text"}, {"hub": "agent"})
    tickets = table("tickets", {"id": "int", "agent_id": "text"}, vault, mask={"agent_id": mask})
    with pytest.raises(LakehouseError, match=rf"shop\.yml:\d+: V6: agent_id lands masked, .*'{mask}'"):
        declared(tmp_path, of(("desk", [agents, kinds, tickets])))


@pytest.mark.parametrize(
    ("key", "reference", "cast", "types"),
    [
        ("numeric", "numeric(10,3)", ["varchar"], {"agent_id": "numeric"}),
        ("numeric(10,3)", "numeric", ["decimal(10,3)"], None),
        ("character(5)", "character(8)", None, {"agent_id": "character(5)"}),
        ("text", "character(8)", None, {"agent_id": "character(8)"}),
        ("integer", "bigint", None, None),
        ("text", "text", None, None),
    ],
)
def test_a_reference_of_another_type_is_of_the_hubs_type_there(
    tmp_path: Path, key: str, reference: str, cast: list[str] | None, types: dict[str, str] | None
) -> None:
    """A hub whose key one table has as text and the other as a number could not be loaded."""
    agents = table("agents", {"id": key}, {"hub": {"name": "agent", "column": "agent_id"}, "track_deletes": True})
    columns = {"id": "int", "agent_id": reference}
    vault = {"hub": "ticket", "references": {"agent": "agent_id"}, "links": {"ticket_agent": ["agent"]}}
    found = declared(tmp_path, of(("desk", [agents, table("tickets", columns, vault)])))
    models = {model.name: model for model in models_of(found, "desk")}
    sql, ((_, test),) = " ".join(models["hub_agent"].sql.split()), models["hub_agent"].tests
    assert ("src_types" in sql) == (cast is not None)
    assert cast is None or f"'src_types': {cast}" in sql
    assert test.get("types") == types
    finds_all = key in ("numeric(10,3)", "integer", "text")
    assert ("src_nk=['id']" in models["sts_agent"].sql) == finds_all, "else an equal sign finds no other spelling"


@pytest.mark.parametrize(
    ("key", "reference"),
    [("int", "text"), ("date", "text"), ("numeric", "text"), ("int", "date"), ("int", "boolean"), ("text", "bytea")],
)
def test_a_reference_that_its_hub_could_not_hold_is_refused(tmp_path: Path, key: str, reference: str) -> None:
    """`007` is no number of a hub: 7 was there twice, or the hub was never loaded again."""
    vault = {"hub": "ticket", "references": {"agent": "agent_id"}, "links": {"ticket_agent": ["agent"]}}
    tickets = table("tickets", {"id": "int", "agent_id": reference}, vault)
    with pytest.raises(LakehouseError, match=rf"yml:\d+: V5: agent_id is {reference}, and .* is {key}: the vault"):
        declared(tmp_path, of(("desk", [table("agents", {"id": key}, {"hub": "agent"}), tickets])))


def test_no_link_leads_to_one_reference_twice(tmp_path: Path) -> None:
    """Its table would have the column twice."""
    twice = {**VAULT, "links": {"ticket_agents": ["requester", "requester"]}}
    for text in (
        CASTING.replace("to: [film, actor]", "to: [film, film]"),
        of(("desk", [AGENTS, table("tickets", TICKET, twice)])),
    ):
        with pytest.raises(LakehouseError, match=r"shop\.yml:\d+: V3: \w+ is named twice here"):
            declared(tmp_path, text)


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
    agents = DbTable(1, "public", "agents", "", (("tenant_id", "int", ""), ("id", "int", "")), ("tenant_id", "id"))
    columns = tuple((name, "int", "") for name in TICKET)
    foreign = ((("tenant_id", "requester_id"), 1), (("tenant_id", "assignee_id"), 1))
    tickets = DbTable(2, "public", "tickets", "", columns, ("id",), foreign)
    vault = declared(tmp_path, proposal("desk", [agents, tickets], set())).source("desk").table("tickets").vault
    assert vault is not None
    found = {role: (reference.columns, vault.hub_of(role)) for role, reference in vault.references.items()}
    assert found == {"requester": (foreign[0][0], "agent"), "assignee": (foreign[1][0], "agent")}


CASTING = """
sources:
  - name: films
    schema: raw_films
    tables:
      - name: film
        config: {meta: {raw: {relation: public.film, key: [id]}, vault: {hub: film}}}
        columns: [{name: id, data_type: int}]
      - name: actor
        config: {meta: {raw: {relation: public.actor, key: [id]}, vault: {hub: {name: actor, blank: unknown}}}}
        columns: [{name: id, data_type: int}]
      - name: film_actor
        config: {meta: {raw: {relation: public.film_actor, key: [film_id, actor_id, take]}, vault: {
          link: {name: casting, to: [film, actor]}, references: {film: film_id, actor: actor_id},
          satellites: {casting_details: [role]}}}}
        columns: [{name: film_id, data_type: int}, {name: actor_id, data_type: int}, {name: take, data_type: int},
          {name: role, data_type: text}]
"""


def test_a_junction_table_is_a_link_with_a_satellite_and_effectivity_of_its_own(tmp_path: Path) -> None:
    """By the rules of the hubs it names; what else is in its key tells rows of one pair apart."""
    sql = {model.name: " ".join(model.sql.split()) for model in models_of(declared(tmp_path, CASTING), "films")}
    assert "'hk_casting': {'keys': ['hk_film', 'hk_actor'], 'columns': ['take']}" in sql["stg_films__film_actor"]
    assert "src_fk=['hk_film', 'hk_actor', 'take']" in sql["link_casting"] and "is_key=true" in sql["link_casting"]
    assert "src_pk='hk_casting', src_dfk='hk_casting'" in sql["eff_sat_casting"]
    assert "src_pk='hk_casting', src_hashdiff='hd_casting_details'" in sql["sat_casting_details"]
    assert {"sat_casting_details_v1", "eff_sat_casting_v1"} <= set(sql)
    plain = declared(tmp_path, CASTING.replace("{name: actor, blank: unknown}", "actor"))
    stage = next(model.sql for model in models_of(plain, "films") if model.name == "stg_films__film_actor")
    assert "'hk_casting': ['film_id', 'actor_id', 'take']" in stage


def test_a_junction_table_with_an_id_is_a_link_that_its_rows_drive(tmp_path: Path) -> None:
    """It was refused. A delete names the id alone, so neither the link nor its satellites are read from deletes."""
    text = CASTING.replace("key: [film_id, actor_id, take]", "key: [take]")
    sql = {model.name: " ".join(model.sql.split()) for model in models_of(declared(tmp_path, text), "films")}
    assert "'columns': ['take']}, 'hk_casting_row': ['take']" in sql["stg_films__film_actor"]
    assert "src_fk=['hk_film', 'hk_actor', 'take']" in sql["link_casting"] and "is_key" not in sql["link_casting"]
    assert "src_pk='hk_casting', src_dfk='hk_casting_row'" in sql["eff_sat_casting"]
    assert "is_key=false" in sql["sat_casting_details"]
    clash = text.replace("name: role,", "name: hk_casting_row,").replace("[role]", "[hk_casting_row]")
    with pytest.raises(LakehouseError, match=r"V7: .*'hk_casting_row' twice, .*the driving key of link 'casting'"):
        declared(tmp_path, clash)


def test_a_link_that_is_its_tables_key_begins_and_ends_with_its_row() -> None:
    """Again when the row comes back; a delete names the link, so one that was never seen alive is there too."""
    vault = Vault()
    vault.stage |= {"hk_pair": ["id", "line"]}
    vault.make_stage()
    vault.models = {
        "link_pair": ("link", {"src_pk": "hk_pair", "src_fk": ["hk_thing", "line"], "is_key": True}),
        "eff_sat_pair": ("eff_sat", {"src_pk": "hk_pair", "src_dfk": "hk_pair"}),
        "sat_pair": ("sat", {"src_pk": "hk_pair", "src_hashdiff": "hd_row", "src_payload": ["a", "b"]}),
    }
    states = [(1, False, "p"), (2, False, "p"), (1, True, None), (1, False, "q"), (3, True, None)]
    for load in (states[:3], states[3:], states):
        events = [
            {"id": 7, "line": line, "owner": None, "a": a, "b": None, "gone": gone, "lsn": 100 + states.index(state),
             "seq": 1, "at": START + timedelta(hours=states.index(state))}
            for state in load for line, gone, a in [state]
        ]  # fmt: skip
        vault.load(events, START + timedelta(days=len(load)))
    effectivity = vault._render(
        "timeline", "v", source_model="eff_sat_pair", src_pk="hk_pair", src_hashdiff="is_active"
    )
    found = vault.rows(
        f"select line, is_active, hour(valid_from) from ({effectivity}) join link_pair using (hk_pair) order by all"
    )
    assert found == [(1, False, 2), (1, True, 0), (1, True, 3), (2, True, 1)]
    assert vault.rows("select line from link_pair order by 1") == [(1,), (2,), (3,)]
    assert vault.rows("select count(*) from sat_pair where record_source <> 'ghost'") == [(5,)]
    assert not vault.rows(
        "select 1 from sat_pair where record_source <> 'ghost' and hk_pair not in (from link_pair select hk_pair)"
    )


def test_a_table_of_foreign_keys_alone_is_proposed_as_a_link(tmp_path: Path) -> None:
    """Unless something refers to it, or it holds personal data, which a link cannot forget."""
    columns = (("id", "int", ""),)
    film, actor = (DbTable(n, "public", name, "", columns, ("id",)) for n, name in ((1, "films"), (2, "actors")))
    pair = (("film_id", "int", ""), ("actor_id", "int", ""))
    foreign = ((("film_id",), 1), (("actor_id",), 2))
    casting = DbTable(3, "public", "film_actor", "", (*pair, ("role", "text", "")), ("film_id", "actor_id"), foreign)
    contact = DbTable(4, "public", "contact", "", (*pair, ("email", "text", "")), ("film_id", "actor_id"), foreign)
    scene = DbTable(5, "public", "scene", "", pair, ("film_id", "actor_id"), foreign)
    cut = DbTable(6, "public", "cut", "", (*columns, *pair), ("id",), ((("film_id", "actor_id"), 5),))
    found = declared(tmp_path, proposal("films", [film, actor, casting, contact, scene, cut], set())).source("films")
    forms = {table.name: table.vault.forms for table in found.tables if table.vault}
    assert forms == {**dict.fromkeys(("films", "actors", "contact", "scene", "cut"), ("hub",)), "film_actor": ("link",)}
    assert found.table("cut").vault.references["scene"].columns == ("film_id", "actor_id")  # type: ignore[union-attr]


def test_no_two_links_and_no_two_hubs_of_a_proposal_have_one_name(tmp_path: Path) -> None:
    """A user has a group, and `user_groups` further ones; of `order` and `orders` both names are taken."""
    one = (("id", "int", ""),)
    group = DbTable(1, "public", "groups", "", one, ("id",))
    user = DbTable(2, "public", "users", "", (*one, ("group_id", "int", "")), ("id",), ((("group_id",), 1),))
    pair = (("user_id", "int", ""), ("group_id", "int", ""))
    foreign = ((("user_id",), 2), (("group_id",), 1))
    more = DbTable(3, "public", "user_groups", "", pair, ("user_id", "group_id"), foreign)
    orders = [DbTable(n, "public", name, "", one, ("id",)) for n, name in ((4, "order"), (5, "orders"))]
    found = declared(tmp_path, proposal("shop", [group, user, more, *orders], {"order"})).source("shop")
    assert list(found.table("users").vault.links) == ["user_group_2"]  # type: ignore[union-attr]
    names = {
        model.name for model in models_of(declared(tmp_path, proposal("shop", [group, *orders], {"order"})), "shop")
    }
    assert {"hub_shop_order", "hub_shop_order_2"} <= names
