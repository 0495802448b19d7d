"""Generated vault models: mistakes of a declaration by code and line, the models, and files that users have edited."""

from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from lakehouse.declarations import Declarations, declarations_from
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.names import NAME
from lakehouse_cli.source.scaffold import write_models
from scaffold import apply, diagram, elsewhere, models_of, plan
from scaffold.declared import checked
from scaffold.propose import DbTable, proposal
from scaffold.text import flow
from scaffold.types import lake_type

TABLES = """
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: orders
        config:
          meta:
            raw: {relation: public.orders, key: [id]}
            vault:
              hub: {name: order, collision_code: web}
              references:
                buyer: {columns: [buyer_id], hub: person}
                payer: {columns: [payer_id], hub: person}
              links:
                order_parties: [buyer, payer]
              satellites:
                order_details: [total]
              ignored: [exported_at]
        columns: [{name: id, data_type: bigint}, {name: buyer_id, data_type: integer},
          {name: payer_id, data_type: integer}, {name: total, data_type: "numeric(8,2)"},
          {name: exported_at, data_type: date}]
      - name: people
        config:
          meta:
            raw: {relation: public.people, key: [id]}
            vault:
              hub: {name: person, blank: unknown}
              track_mentions: true
              satellites:
                person_pii: {columns: [name], personal: true}
        columns: [{name: id, data_type: text}, {name: name, data_type: text}]
      - name: currencies
        config:
          meta:
            raw: {relation: public.currencies, key: [code]}
            vault: {reference_table: currency, satellites: {currency: [label]}}
        columns: [{name: code, data_type: text}, {name: label, data_type: text}]
      - name: phones
        config:
          meta:
            raw: {relation: public.phones, key: [person_id, kind]}
            vault:
              children_of: owner
              references: {owner: {columns: [person_id], hub: person}}
              satellites: {phone: [digits]}
        columns: [{name: person_id, data_type: text}, {name: kind, data_type: text}, {name: digits, data_type: text}]
      - name: payments
        config:
          meta:
            raw: {relation: public.payments, key: [id]}
            vault:
              event: {name: payment, to: [order, payer], columns: [paid]}
              references: {order: order_id, payer: {columns: [payer_id], hub: person}}
        columns: [{name: id, data_type: bigint}, {name: order_id, data_type: bigint},
          {name: payer_id, data_type: text}, {name: paid, data_type: "numeric(8,2)"}]
"""


def declared(place: Path, text: str = TABLES) -> Declarations:
    """The declarations in this YAML, as read from dbt's manifest."""
    (place / "models").mkdir(exist_ok=True)
    (place / "models" / "shop.yml").write_text(text)
    nodes: dict[str, Any] = {}
    for source in yaml.safe_load(text)["sources"]:
        for table in source["tables"]:
            nodes[f"source.{source['name']}.{table['name']}"] = {
                "source_name": source["name"], "name": table["name"], "schema": source["schema"],
                "original_file_path": "models/shop.yml", "config": table["config"],
                "columns": {column["name"]: column for column in table["columns"]},
            }  # fmt: skip
    manifest = {"sources": nodes}
    return checked(declarations_from(manifest, place), manifest, place)


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("key: [id]}\n            vault:\n              hub: {name: order", "key: []}\n            vault:\n"
         "              hub: {name: order", "V1", "hub: {name: order"),
        ("order_parties: [buyer, payer]", "order_parties: []", "V2", "order_parties"),
        ("order_details: [total]", "order_details: [total, exported_at]", "V3", "ignored:"),
        ("ignored: [exported_at]", "ignored: []", "V4", "vault:"),
        ("order_parties: [buyer, payer]", "order_parties: [buyer, seller]", "V5", "order_parties"),
        ("hub: person}\n                payer", "hub: nobody}\n                payer", "V5", "buyer:"),
        ("order_details: [total]", "order_details: [total, nope]", "V6", "order_details"),
        ("hub: {name: person, blank: unknown}", "hub: order", "V7", None),
        ("{phone: [digits]}", "{phone: {columns: [digits], personal: true}}", "V8", "phone"),
        ("children_of: owner", "children_of: nobody", "V5", "children_of"),
        ("key: [person_id, kind]", "key: [person_id]", "V9", "children_of"),
        ("key: [person_id, kind]", "key: [kind]", "V9", "children_of"),
        ("children_of: owner", "children_of: owner\n              hub: phone", "V10", "children_of"),
        ("children_of: owner", "children_of: owner\n              track_mentions: true", "V1", "track_mentions"),
        ("to: [order, payer], columns", "to: [], columns", "V2", "event"),
        ("to: [order, payer], columns", "to: [order, seller], columns", "V5", "event"),
        ("columns: [paid]}", "columns: []}", "V4", "vault:"),
        ("columns: [paid]}", "columns: []}\n              satellites: {paid: [paid]}", "V10", "satellites"),
        ("columns: [paid]}", "columns: [paid, nope]}", "V6", "event"),
        ("event: {name: payment", "event: {name: order", "V7", "event"),
        ("key: [code]}\n            vault: {reference_table: currency, satellites: {currency: [label]}}",
         "key: []}", "V11", "raw: {relation: public.currencies"),
        ("reference_table: currency, ", "", "V11", "vault: {satellites"),
        ("reference_table: currency, ", "none: codes, ", "V11", "vault: {none"),
        ("children_of: owner", "link: {name: call, to: [owner]}", "V2", "link"),
        ("children_of: owner", "link: {name: call, to: [owner, seller]}", "V5", "link"),
        ("columns: [paid]}", "columns: [paid]}\n              link: {name: x, to: [order]}", "V10", "link"),
        ("key: [id]}\n            vault:\n              event: {name: payment, to: [order, payer], columns: [paid]}",
         "key: [order_id]}\n            vault:\n              link: {name: pay, to: [order, payer]}\n"
         "              ignored: [id, paid]", "V9", "link"),
    ],
)  # fmt: skip
def test_a_mistake_has_a_code_and_the_line_it_stands_on(
    tmp_path: Path, old: str, new: str, code: str, line: str | None
) -> None:
    text = TABLES.replace(old, new)
    assert text != TABLES
    with pytest.raises(LakehouseError, match=rf"models/shop\.yml:\d+: {code}: ") as caught:
        declared(tmp_path, text)
    if line is not None:
        number = int(str(caught.value).split("shop.yml:")[1].split(":")[0])
        assert line in text.splitlines()[number - 1]


def test_a_declaration_becomes_thin_models(tmp_path: Path) -> None:
    sql = {model.name: " ".join(model.sql.split()) for model in models_of(declared(tmp_path), "shop")}
    assert "'hk_order': ['!web', 'id']" in sql["stg_shop__orders"], "the collision code"
    assert "'hk_order_parties': {'keys': ['hk_order', 'hk_buyer', 'hk_payer']}" in sql["stg_shop__orders"]
    assert "'hk_buyer': {'columns': ['buyer_id'], 'blank': 'unknown'}" in sql["stg_shop__orders"], "by the hub's rules"
    assert "'src_pk': 'hk_payer', 'src_nk': ['payer_id']" in sql["hub_person"], "a hub is fed by all who mention it"
    assert "src_fk=['hk_order', 'hk_buyer', 'hk_payer']" in sql["link_order_parties"]
    assert "src_dfk='hk_order'" in sql["eff_sat_order_parties"]
    assert "src_pk=['code']" in sql["ref_currency"]
    assert sql["ma_sat_phone"] == (
        "{{ cdc_vault.ma_sat( src_pk='hk_owner', src_cdk=['kind'], src_hashdiff='hd_phone', src_payload=['digits'],"
        " source_model='stg_shop__phones', src_nk=['person_id', 'kind'], ) }}"
    )
    assert "src_pk=['hk_owner', 'kind']" in sql["ma_sat_phone_v1"]
    assert "'src_pk': 'hk_owner', 'src_nk': ['person_id']" in sql["hub_person"], "children name their parent"
    assert sql["nh_link_payment"] == (
        "{{ cdc_vault.nh_link( src_pk='hk_payment', src_fk=['hk_order', 'hk_payer'], src_payload=['id', 'paid'],"
        " source_model='stg_shop__payments', ) }}"
    )
    assert "'hk_order': ['!web', 'order_id']" in sql["stg_shop__payments"], "a reference hashes as the hub does"
    mentions = ["stg_shop__people", *("hk_buyer", "hk_payer"), "hk_owner", "stg_shop__payments"]
    assert all(mention in sql["rts_person"] for mention in mentions), "all that mention the hub"
    assert {"sat_person_pii_v1", "sts_person_v1", "parsed_shop__people", "current_shop__people"} <= set(sql)


def test_a_link_of_hubs_without_rules_hashes_their_columns(tmp_path: Path) -> None:
    tables = declared(tmp_path, TABLES.replace("hub: {name: person, blank: unknown}", "hub: person"))
    stage = next(model.sql for model in models_of(tables, "shop") if model.name == "stg_shop__orders")
    assert "'hk_order_parties': ['!web', 'id', 'buyer_id', 'payer_id']" in " ".join(stage.split())


def test_an_edited_file_is_never_overwritten_and_drift_is_seen(tmp_path: Path) -> None:
    models = models_of(declared(tmp_path), "shop")
    apply(plan(tmp_path, "shop", models))
    assert {change.kind for change in plan(tmp_path, "shop", models)} == {"same"}

    edited = tmp_path / "models/vault/shop/hub_order.sql"
    edited.write_text(edited.read_text() + "-- mine\n")
    own = tmp_path / "models/vault/shop/my_own.sql"
    own.write_text("select 1\n")
    other = declared(tmp_path, TABLES.replace("person_pii", "person_private"))
    changes = plan(tmp_path, "shop", models_of(other, "shop"))
    kinds = {change.path.name: change.kind for change in changes}
    assert kinds["hub_order.sql"] == kinds["my_own.sql"] == "yours"
    assert kinds["sat_person_private.sql"] == "new" and kinds["sat_person_pii.sql"] == "gone"
    assert kinds["stg_shop__people.sql"] == "changed"
    apply(changes)
    assert edited.read_text().endswith("-- mine\n") and own.exists()
    assert not (tmp_path / "models/vault/shop/sat_person_pii.sql").exists()


def test_a_table_that_would_break_the_application_is_proposed_in_comments_with_the_reason(tmp_path: Path) -> None:
    """It can be uncommented, and nothing of the rest refers to it."""
    columns = (("id", "integer", ""), ("late_id", "integer", ""))
    late = DbTable(1, "public", "late", "", columns[:1], ("id",), unfit="its primary key is DEFERRABLE; run ALTER …")
    orders = DbTable(2, "public", "orders", "", columns, ("id",), foreign=((("late_id",), 1),))
    text = proposal("shop", [late, orders], taken=set())
    assert "# public.late is left out: its primary key is DEFERRABLE; run ALTER …" in text
    assert [table.name for table in declared(tmp_path, text).source("shop").tables] == ["orders"]
    start = text.index("      # - name: late")
    end = text.index("      - name: orders")
    uncommented = text[start:end].replace("      # ", "      ")
    again = declared(tmp_path, text[:start] + uncommented + text[end:])
    assert [table.name for table in again.source("shop").tables] == ["late", "orders"]
    assert "tables: []" in proposal("shop", [late], taken=set())


def test_tables_whose_names_meet_in_the_lake_are_proposed_under_names_of_their_own(tmp_path: Path) -> None:
    """Of several schemas, and of one where capitals alone tell them apart."""
    places = [("app", "order"), ("app", "Order"), ("app", "ORDER"), ("Front Desk", "order")]
    tables = [DbTable(n, schema, name, "", (("id", "int", ""),), ("id",)) for n, (schema, name) in enumerate(places)]
    found = {table.name: table for table in declared(tmp_path, proposal("shop", tables, taken=set())).tables}
    assert {name: table.relation for name, table in found.items()} == {
        "order": places[0], "app_order": places[1], "app_order_2": places[2], "front_desk_order": places[3],
    }  # fmt: skip


def test_a_database_becomes_a_proposal_that_holds(tmp_path: Path) -> None:
    """A reference to the own table, two to one table, a composite key, a column in two foreign keys, odd names."""
    people = DbTable(1, "public", "people", "People.", (("id", "bigint", ""), ("first_name", "text", "")), ("id",))
    order = DbTable(
        2, "public", "orders", "", (("id", "bigint", ""), ("buyer_id", "bigint", ""), ("payer_id", "bigint", ""),
        ("previous_id", "bigint", ""), ("total", "numeric(8,2)", "Sum: all")), ("id",),
        ((("buyer_id",), 1), (("payer_id",), 1), (("previous_id",), 2)),
    )  # fmt: skip
    lines = DbTable(
        3, "public", "OrderLines", "", (("order_id", "bigint", ""), ("no", "integer", "")), ("order_id", "no"),
        ((("order_id",), 2), (("order_id",), 1)),
    )  # fmt: skip
    notes = DbTable(4, "public", "notes", "", (("text", "text", ""),), ())
    found = declared(tmp_path, proposal("shop", [people, order, lines, notes], taken={"person"}))
    tables = {table.name: table for table in found.tables}
    vault = tables["orders"].vault
    assert vault is not None and vault.hub is not None and vault.hub.name == "order"
    assert {role: vault.hub_of(role) for role in vault.references} == {
        "buyer": "shop_person", "payer": "shop_person", "previous": "order"}  # fmt: skip
    assert set(vault.links) == {"order_buyer", "order_payer", "order_previous"}
    assert tables["people"].vault and tables["people"].vault.satellites["shop_person_pii"].personal
    assert tables["notes"].vault and tables["notes"].vault.none == "it has no key"
    assert tables["order_lines"].relation == ("public", "OrderLines")
    assert models_of(found, "shop")


TICKETS = """\
  - name: crm
    schema: raw_crm
    tables:
      - name: tickets
        config:
          meta:
            raw: {relation: public.tickets, key: [id]}
            vault: {hub: ticket, references: {person: person_id}, links: {ticket_person: [person]}}
        columns: [{name: id, data_type: bigint}, {name: person_id, data_type: text}]
"""


def test_models_of_a_shared_hub_follow_the_other_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They lacked the keys of the source that was scaffolded, and afterwards named a stage that was gone."""
    settings = load_settings(home=tmp_path / "home", project_dir=tmp_path)
    shop, both, models = declared(tmp_path), declared(tmp_path, TABLES + TICKETS), settings.dbt_project_dir / "models"
    write_models(settings, shop, ["shop"])
    edited, dropped = models / "vault/shop/hub_order.sql", models / "parsed/shop/parsed_shop__phones.sql"
    edited.write_text("SELECT 1\n")
    dropped.unlink()
    capsys.readouterr()
    before = {path: path.read_text() for path in models.rglob("*") if path.is_file()}

    assert write_models(settings, both, ["crm"], check=True) == write_models(settings, both, ["crm"]) > 2

    said = capsys.readouterr().out.splitlines()
    shared = [f"models/vault/shop/{name}" for name in ("hub_person.sql", "rts_person.sql")]
    assert [line for line in said if "shop" in line] == 2 * [f"changed {name}" for name in shared]
    assert all("stg_crm__tickets" in (settings.dbt_project_dir / name).read_text() for name in shared)
    assert not dropped.exists(), "whoever dropped a model of another source does not get it back"
    apply(elsewhere(settings.dbt_project_dir, shop, ["crm"]))
    assert before == {path: path.read_text() for path in before}


def test_a_diagram_has_every_table_of_the_vault(tmp_path: Path) -> None:
    found = declared(tmp_path)
    text = diagram(found, "shop")
    for model in models_of(found, "shop"):
        if model.folder.startswith("vault/"):
            assert model.name in text, model.name


@pytest.mark.parametrize(
    ("declared_type", "expected"),
    [("numeric(10,2)", "decimal(10,2)"), ("decimal(5)", "decimal(5,0)"), ("numeric", "varchar"), ("int", "integer"),
     ("timestamp(3) with time zone", "timestamp(6) with time zone"), ("time", "bigint"), ("text[]", "varchar")],
)  # fmt: skip
def test_a_model_has_the_type_that_ingestion_gives(declared_type: str, expected: str) -> None:
    assert lake_type(declared_type) == expected


def test_any_text_is_written_so_that_dbt_reads_it_as_it_is() -> None:
    """dbt renders the values of its YAML as Jinja, and not the keys."""
    odd = (
        "{{ x }}",
        "{% x %}",
        "{# x #}",
        "{{{",
        "a\nb\t",
        "\x7f\u2028",
        'say "no"',
        "it's\\",
        " ",
        "no",
        "é🐎",
        "{",
        "- x",
    )
    for text in odd:
        value = yaml.safe_load(f"a: {flow([text, {text: text}])}")["a"]
        assert jinja2.Environment().from_string(value[0]).render() == text
        assert [(key, jinja2.Environment().from_string(item).render()) for key, item in value[1].items()] == [
            (text, text)
        ]


def test_a_truth_value_is_written_as_one() -> None:
    """A proposed personal satellite said `personal: "True"`."""
    assert flow({"personal": True, "historized": False}) == "{personal: true, historized: false}"


def test_names_that_the_lake_cannot_keep_get_aliases_that_differ() -> None:
    """Two spellings of one plain name, a name that another column bears, one that a layer gives itself."""
    names = ("id", "a b", "a-b", "a_b", "Load Date", "load_date", "日本", "🐎", "is_deleted")
    table = DbTable(1, "public", "t", "", tuple((name, "text", "") for name in names), ("id",))
    raw = yaml.safe_load(proposal("shop", [table], set()))["sources"][0]["tables"][0]["config"]["meta"]["raw"]
    landed = [raw["alias"].get(name, name) for name in names]
    assert len(set(landed)) == len(names) and all(NAME.fullmatch(name) for name in landed)
    assert not {"load_date", "is_deleted"} & set(landed) and raw["alias"]["a b"] == "a_b_2"


def test_a_time_of_day_is_one_in_the_view_also_under_an_alias_and_text_where_it_is_masked(tmp_path: Path) -> None:
    text = """
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: t
        config: {meta: {raw: {relation: public.t, key: [id], alias: {Opens: opens}, mask: {closes: sha256}}}}
        columns: [{name: id, data_type: int}, {name: Opens, data_type: time}, {name: closes, data_type: time}]
"""
    view = next(m for m in models_of(declared(tmp_path, text), "shop") if m.name == "current_shop__t")
    assert {name: kind for name, kind, _ in view.columns if name in ("opens", "closes")} == {
        "opens": "time(6)", "closes": "varchar",
    }  # fmt: skip
