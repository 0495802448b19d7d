"""Trino's rules follow the declarations, and close what nobody has spoken of."""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion.sink.meta_tables import known_schemas
from lakehouse.declarations import Declarations, declarations_from
from lakehouse.declarations.access.model_policies import policies_of
from lakehouse.declarations.access.rules import (
    OWN,
    REMEMBERED,
    RULES,
    Relation,
    ensure_rules,
    not_for_readers,
    personal_above,
    read_relations,
    relations,
    rules,
    write_rules,
)
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import PROJECT_DIR, load_settings
from lakehouse.text.generated import stamped
from maintenance.planning.history import HISTORY
from tests.unit.test_scaffold import declared

PROJECT = PROJECT_DIR / "dbt_project"
Read = tuple[dict[str, Any], Declarations]


@pytest.fixture(scope="module")
def read(home: Path) -> Read:
    manifest = load_manifest(load_settings(home=home))
    return manifest, declarations_from(manifest, PROJECT)


@pytest.mark.slow
def test_what_dbt_keeps_is_its_owners_alone(tmp_path: Path) -> None:
    """Its log and its results have values of rows, and every user of the machine could read them."""
    load_manifest(load_settings(home=tmp_path))
    assert list(tmp_path.rglob("dbt.log"))
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"dbt": "0o700"}


@pytest.fixture(scope="module")
def found(read: Read) -> dict[str, Relation]:
    return {f"{relation.schema}.{relation.name}": relation for relation in related(*read)}


def related(manifest: dict[str, Any], declarations: Declarations, project: Path = PROJECT) -> tuple[Relation, ...]:
    """As where nothing is remembered."""
    policies = policies_of(manifest, project)
    hidden = not_for_readers(manifest, declarations, policies, {})
    return relations(manifest, declarations, policies, hidden, personal_above(manifest, declarations, hidden, {}))


def model(name: str, *above: str, schema: str = "marts", folder: str = "marts", **meta: Any) -> dict[str, Any]:
    return {
        "resource_type": "model", "name": name, "alias": name, "schema": schema, "fqn": ["lakehouse", folder, name],
        "config": {"meta": meta, "materialized": "view"}, "depends_on": {"nodes": list(above)},
        "columns": {name.lower(): {"name": name} for name in meta.get("personal", ())},
        "original_file_path": f"models/{folder}/{name}.sql",
    }  # fmt: skip


def first_rule(group: str, schema: str, table: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The rule that Trino would take."""

    def fits(rule: dict[str, Any]) -> bool:
        given = {"group": group, "catalog": "lake", "schema": schema, "table": table}
        return all(re.fullmatch(rule[key], value) for key, value in given.items() if key in rule)

    return next(rule for rule in wanted["tables"] if fits(rule))


def test_every_relation_that_dbt_makes_has_a_rule(read: Read, found: dict[str, Relation]) -> None:
    made = {f"{n['schema']}.{n['alias']}" for n in read[0]["nodes"].values() if n["resource_type"] == "model"}
    own = {f"{own.schema}.{own.name}" for own in OWN}
    assert made | own == {name for name in found if not name.startswith("mirror_")}
    mirrors = {f"{schema}.{name}" for schema, name in (t.mirror_identifier for t in read[1].tables if t.is_mirrored)}
    assert mirrors == {name for name in found if name.startswith("mirror_")}
    assert {name.split(".")[0] for name in set(found) - mirrors} == {"parsed", "vault", "marts", "meta"}


def test_raw_and_the_lakes_own_tables_are_the_writers_alone(read: Read, found: dict[str, Relation]) -> None:
    wanted = rules(found.values())
    closed = [table.identifier for table in read[1].tables] + [*known_schemas(), tuple(HISTORY), ("meta", "run_bounds")]
    for schema, name in closed:
        for group in ("reader", "privacy", ""):
            opened = (schema, name) in (("meta", "cuts"), ("meta", "mirrors")) and group
            assert first_rule(group, schema, name, wanted)["privileges"] == (["SELECT"] if opened else [])
        assert "OWNERSHIP" in first_rule("writer", schema, name, wanted)["privileges"]


def test_readers_read_everything_but_stage_and_personal_satellites(found: dict[str, Relation]) -> None:
    closed = {name: relation.least for name, relation in found.items() if relation.least != "reader"}
    stage = {name for name in closed if name.startswith("vault.stg_")}
    assert all(closed.pop(name) == "writer" for name in stage) and len(stage) > 5
    assert closed == {
        f"vault.sat_{name}{suffix}": "privacy" for name in ("customer_pii", "user_details") for suffix in ("", "_v1")
    }


def test_personal_columns_are_hidden_wherever_they_go(read: Read, found: dict[str, Relation]) -> None:
    """By what the models say of their columns: personal data is marked there for people."""
    for node in read[0]["nodes"].values():
        if node["resource_type"] == "model" and found[f"{node['schema']}.{node['alias']}"].least == "reader":
            said = {c["name"] for c in node["columns"].values() if "personal data" in c["description"]}
            assert said <= found[f"{node['schema']}.{node['alias']}"].personal, node["name"]
    assert found["marts.dim_customer"].personal == {"first_name", "last_name", "email"}
    for name in ("marts.dim_store", "marts.mart_sales_by_store_day", "marts.fct_transactions", "vault.hub_customer"):
        assert not found[name].personal


def test_what_is_said_of_an_employee_is_personal(found: dict[str, Relation]) -> None:
    assert found["parsed.current_payroll__employee"].personal == {"name", "salary"}


def test_a_mirror_is_read_by_whom_the_current_view_is_read(read: Read, found: dict[str, Relation]) -> None:
    assert (
        found["mirror_retail.customers"].personal == found["parsed.current_retail__customers"].personal != frozenset()
    )
    view = model("current_retail__customers", "source.lakehouse.retail.customers", schema="parsed", access="privacy")
    nodes = {**read[0], "nodes": {"view": view}}
    made = {(r.schema, r.name): r for r in related(nodes, read[1])}
    assert made["mirror_retail", "customers"].least == "privacy"
    assert ("mirror_retail", "stores") not in made
    assert first_rule("reader", "mirror_retail", "stores", rules(made.values()))["privileges"] == []


def test_a_model_says_who_reads_it_and_what_it_renames(read: Read) -> None:
    nodes = {
        "contacts": model("contacts", "source.lakehouse.retail.customers", personal=["Mail"]),
        "report": model("report", "contacts"),
        "secret": model("secret", access="writer"),
        "elsewhere": model("elsewhere", schema="analytics"),
        "opened": model("opened", schema="analytics", access="reader"),
    }
    made = {r.name: r for r in related({**read[0], "nodes": nodes}, read[1])}
    assert made["contacts"].personal == made["report"].personal == {"mail", "email", "first_name", "last_name"}
    assert {name: r.least for name, r in made.items()} == {
        "cuts": "reader", "mirrors": "reader", "contacts": "reader", "report": "reader", "secret": "writer",
        "elsewhere": "writer", "opened": "reader",
    }  # fmt: skip


def test_personal_data_is_hidden_below_a_snapshot_of_dbt(read: Read) -> None:
    nodes = {
        "kept": model("kept", "source.lakehouse.retail.customers") | {"resource_type": "snapshot"},
        "report": model("report", "kept"),
    }
    (*_, report) = related({**read[0], "nodes": nodes}, read[1])
    assert report.personal == {"email", "first_name", "last_name"}


@pytest.mark.parametrize(
    ("schema", "name"),
    [("mirror_retail", "customers"), ("MIRROR_RETAIL", "Customers"), ("live_raw_retail", "customers"),
     ("parsed", "current_retail__customers"), ("snapshots", "kept"), ("RAW_RETAIL", "customers"), ("marts", "report")],
)  # fmt: skip
def test_personal_data_is_hidden_that_a_model_reads_by_a_source_of_dbt(read: Read, schema: str, name: str) -> None:
    """Readers saw the addresses of every customer in a mart over a mirror."""
    raw, own = "source.lakehouse.retail.customers", "source.lakehouse.own.relation"
    nodes = {
        "view": model("current_retail__customers", raw, schema="parsed", folder="parsed"),
        "kept": model("kept", raw, schema="snapshots") | {"resource_type": "snapshot"},
        "report": model("report", own, *([raw] if schema == "marts" else [])),
    }
    sources = {**read[0]["sources"], own: {"schema": schema, "name": "theirs", "identifier": name}}
    made = {r.name: r for r in related({**read[0], "sources": sources, "nodes": nodes}, read[1])}
    assert made["report"].personal == {"email", "first_name", "last_name"}


def test_a_source_of_dbt_that_is_not_of_the_lake_hides_nothing(read: Read) -> None:
    sources = {**read[0]["sources"], "other": {"schema": "mirror_", "name": "customers"}}
    nodes = {"report": model("report", "other")}
    (*_, report) = related({**read[0], "sources": sources, "nodes": nodes}, read[1])
    assert report.name == "report" and not report.personal


SHOP = """
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: people
        config:
          meta:
            raw: {relation: public.people, key: [id]@raw@}
            vault: {@vault@}
        columns: [{name: id, data_type: bigint}@columns@]
"""


def shop(place: Path, columns: str, vault: str, raw: str = "") -> Read:
    """A project whose table has these columns, with its parsed table and its satellites."""
    text = SHOP.replace("@columns@", "".join(f", {{name: {name}, data_type: text}}" for name in columns.split()))
    declared_as = declared(place, text.replace("@vault@", vault).replace("@raw@", raw))
    below = ("parsed_shop__people", "parsed"), ("sat_pii", "vault"), ("ref_codes", "vault"), ("ref_codes_v1", "vault")
    nodes = {name: model(name, "source.x.shop.people", schema=schema, folder=schema) for name, schema in below}
    return {"nodes": nodes, "sources": {"source.x.shop.people": {"schema": "raw_shop", "name": "people"}}}, declared_as


def hidden_from_readers(folder: Path, project: Read, place: Path) -> set[str]:
    write_rules(folder, *project, place)
    rule = first_rule("reader", "parsed", "parsed_shop__people", json.loads((folder / RULES).read_text()))
    assert rule["privileges"] == ["SELECT"]
    return {column["name"] for column in rule.get("columns", ())}


@pytest.mark.parametrize(
    ("columns", "vault", "raw"),
    [
        ("city", 'none: "no"', ""),  # as after the source has dropped it
        ("city email", 'none: "no"', ", exclude: [email]"),
        ("city email", 'none: "no"', ", exclude: [email], personal: [email]"),
        ("city email", "hub: person, satellites: {person: [city], pii: {columns: [email], personal: true}}",
         ", alias: {email: mail}"),
    ],
)  # fmt: skip
def test_a_personal_column_that_is_declared_otherwise_stays_hidden_in_what_was_loaded(
    folder: Path, tmp_path: Path, columns: str, vault: str, raw: str
) -> None:
    """Its values stay in the parsed table, and under the former name in its snapshots."""
    before = shop(tmp_path, "city Email email", 'none: "no"', ", personal: [email], alias: {Email: other}")
    assert hidden_from_readers(folder, before, tmp_path) == {"email"}
    after = shop(tmp_path, columns, vault, raw)
    assert "email" in hidden_from_readers(folder, after, tmp_path)
    assert "email" in hidden_from_readers(folder, after, tmp_path)  # and at the next look
    opened = shop(tmp_path, "city email", 'none: "no"')
    assert "email" not in hidden_from_readers(folder, opened, tmp_path)


def hidden_in(folder: Path, project: Read, place: Path, name: str) -> set[str]:
    """What a reader may not see of a mart, by the rules that are written now."""
    write_rules(folder, *project, place)
    made = {f"{relation.schema}.{relation.name}": relation for relation in read_relations(folder)}
    return set(made[name].personal)


def of_marts(project: Read, *marts: dict[str, Any]) -> Read:
    return {**project[0], "nodes": {mart["name"]: mart for mart in marts}}, project[1]


def test_what_a_model_renamed_once_stays_hidden_until_the_model_shows_it(folder: Path, tmp_path: Path) -> None:
    """Readers got the whole folder of the mart, with older snapshots, as soon as it had dropped the column."""
    project = shop(tmp_path, "city", 'none: "no"')
    before = model("report", "source.x.shop.people", personal=["Full_Name"])
    after, below = model("report", "source.x.shop.people"), model("below", "report")
    assert hidden_in(folder, of_marts(project, before), tmp_path, "marts.report") == {"full_name"}
    for _ in range(2):
        assert hidden_in(folder, of_marts(project, after, below), tmp_path, "marts.report") == {"full_name"}
        assert hidden_in(folder, of_marts(project, after, below), tmp_path, "marts.below") == {"full_name"}
    shown = {**after, "columns": {"full_name": {"name": "full_name"}}}
    assert hidden_in(folder, of_marts(project, shown, below), tmp_path, "marts.report") == set()
    assert hidden_in(folder, of_marts(project, shown, below), tmp_path, "marts.below") == set()


def test_what_a_model_read_once_stays_hidden_until_the_table_shows_it(folder: Path, tmp_path: Path) -> None:
    """As of a mart that no longer reads the table with the addresses, and whose snapshots still have them."""
    project = shop(tmp_path, "city email", 'none: "no"', ", personal: [email]")
    reading, alone = model("report", "source.x.shop.people"), model("report")
    alone["columns"] = {"email": {"name": "email"}}  # that of another table, which is not personal
    assert hidden_in(folder, of_marts(project, reading), tmp_path, "marts.report") == {"email"}
    below = model("below", "report")
    for name in ("marts.report", "marts.below", "marts.report"):
        assert hidden_in(folder, of_marts(project, alone, below), tmp_path, name) == {"email"}
    assert hidden_in(folder, of_marts(project, model("other")), tmp_path, "marts.other") == set()
    assert hidden_in(folder, of_marts(project, alone), tmp_path, "marts.report") == {"email"}, "it was gone for a while"
    opened = shop(tmp_path, "city email", 'none: "no"')
    assert hidden_in(folder, of_marts(opened, alone), tmp_path, "marts.report") == set()


def test_what_an_earlier_release_remembered_is_hidden(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / REMEMBERED).write_text('{"raw_shop.people": ["email"]}')
    project = shop(tmp_path, "city", 'none: "no"')
    report = model("report", "source.x.shop.people")
    assert hidden_in(folder, of_marts(project, report), tmp_path, "marts.report") == {"email"}


def test_a_fingerprint_of_personal_codes_is_not_for_readers(tmp_path: Path) -> None:
    vault = "reference_table: codes, satellites: {codes: {columns: [email], personal: true}}"
    project = shop(tmp_path, "email", vault)
    least = {relation.name: relation.least for relation in related(*project, tmp_path)}
    assert least["ref_codes"] == least["ref_codes_v1"] == "privacy"


def test_a_wrong_policy_is_one_line(read: Read) -> None:
    nodes = {"m": model("m", access="everybody")}
    with pytest.raises(LakehouseError, match=r"models/marts/m\.sql:\d+: m: meta\.access: .*'reader'"):
        related({**read[0], "nodes": nodes}, read[1])


NONE = "is none of the columns that its YAML describes"


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ("personel: [mail]", ":4: m: meta: unknown key `personel`: did you mean `personal`?"),
        ("personnel: [mail]", ":4: m: meta: unknown key `personnel`: did you mean `personal`?"),
        ("PERSONAL: [mail]", ":4: m: meta: unknown key `PERSONAL`: did you mean `personal`?"),
        ("personl: [mail]", ":4: m: meta: unknown key `personl`: did you mean `personal`?"),
        ("persona: [mail]", ":4: m: meta: unknown key `persona`: did you mean `personal`?"),
        ("acess: privacy", ":4: m: meta: unknown key `acess`: did you mean `access`?"),
        ("personal: [mial]", f":4: m: meta.personal: 'mial' {NONE}: did you mean 'mail'?"),
        ("personal: [mail, x]", f":4: m: meta.personal: 'x' {NONE}: correct it, or describe the column"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["model", "snapshot", "seed"])
def test_what_would_open_a_column_by_a_misspelling_is_refused_before_there_are_rules(
    folder: Path, read: Read, tmp_path: Path, meta: str, told: str, kind: str
) -> None:
    """Only the code location of Dagster knew of it, and any other command had opened the column by then."""
    text = f"{kind}s:\n  - name: m\n    meta:\n      {meta}\n    columns: [{{name: mail}}]\n"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.yml").write_text(text)
    wrong = model("m", "source.lakehouse.retail.customers", **yaml.safe_load(meta))
    wrong |= {"resource_type": kind, "patch_path": "x://models/m.yml", "columns": {"mail": {"name": "mail"}}}
    with pytest.raises(LakehouseError) as refused:
        write_rules(folder, {**read[0], "nodes": {"m": wrong}}, read[1], tmp_path)
    assert f"{tmp_path.name}/models/m.yml{told}" in str(refused.value)
    assert not folder.exists()


def test_personal_columns_that_nothing_reads_in_config_itself_are_refused(read: Read) -> None:
    wrong = model("m")
    wrong["config"]["personal"] = ["mail"]
    with pytest.raises(LakehouseError, match=r"models/marts/m\.sql: m: `personal` is in `config` itself"):
        related({**read[0], "nodes": {"m": wrong}}, read[1])


def test_keys_of_other_tools_and_of_dagster_are_not_taken_for_those_of_readers(read: Read) -> None:
    nodes = {"m": model("m", person_id="x", contains_personal_data=True, success="y", process="z", owner="o")}
    nodes["n"] = model("n", persona="analyst", personas=["buyer", "seller"], accessed="2024-01-01", personal=["mail"])
    assert related({**read[0], "nodes": nodes}, read[1])


def test_a_folders_personal_column_is_described_by_one_of_its_models(read: Read, tmp_path: Path) -> None:
    project = "models:\n  lakehouse:\n    marts:\n      +meta: {personal: [mail, phone]}\n"
    (tmp_path / "dbt_project.yml").write_text(project)
    meta = {"personal": ["mail", "phone"]}
    nodes = {"a": model("a", **meta), "b": model("b", **meta)}
    nodes["b"]["columns"] = {"mail": {"name": "mail"}}
    made = {r.name: r for r in related({**read[0], "nodes": nodes}, read[1], tmp_path)}
    assert made["b"].personal == {"mail", "phone"}
    nodes["a"]["columns"] = nodes["b"]["columns"]
    with pytest.raises(LakehouseError, match=r"dbt_project\.yml:4: a: meta\.personal: 'phone' is none of"):
        related({**read[0], "nodes": nodes}, read[1], tmp_path)


@pytest.mark.parametrize("kind", ["snapshot", "seed"])
def test_what_a_snapshot_or_seed_calls_personal_is_hidden_below_it(read: Read, kind: str) -> None:
    """It was read of models alone, so that readers saw the column in each mart of it."""
    kept = model("kept", schema="snapshots", personal=["Mail"]) | {"resource_type": kind}
    (*_, report) = related({**read[0], "nodes": {"kept": kept, "report": model("report", "kept")}}, read[1])
    assert report.name == "report" and report.personal == {"mail"}


def vault_model(name: str, sql: str, *above: str) -> dict[str, Any]:
    """As dbt has it, which strips the text."""
    return model(name, *above, schema="vault", folder="vault") | {"raw_code": sql.strip()}


PERSON = "hub: person, satellites: {person: [city], pii: {columns: [email], personal: true}}"
HUB = "{{ cdc_vault.hub(src_pk='hk_person', src_nk='person_id', source_model=['stg_shop__people']) }}\n"


@pytest.mark.parametrize(
    ("name", "sql", "hides"),
    [
        ("hub_person", stamped(".sql", HUB), False),
        ("hub_person", stamped(".sql", HUB).replace("\n", "\r\n"), False),  # as git checks it out on Windows
        ("hub_person", stamped(".sql", HUB.replace("person_id", "person_no")), False),  # that of a former declaration
        ("hub_person", HUB, True),
        ("hub_person", stamped(".sql", HUB).replace("'person_id'", "'email'"), True),
        ("hub_person", stamped(".sql", HUB.replace("person_id", "email")), True),  # the former key is personal by now
        ("hub_person", stamped(".sql", HUB.replace("person_id", "Email")), True),
        ("hub_person", stamped(".sql", HUB.replace("'person_id'", "['person_id', 'email']")), True),
        ("hub_other", stamped(".sql", HUB), True),
        ("hub_other", stamped(".sql", HUB.replace("'person_id'", "[]")), True),
        ("link_customer_contact", "select email from {{ ref('stg_shop__people') }}", True),
        ("hub_contact", "select email from {{ ref('stg_shop__people') }}", True),
    ],
)
def test_only_a_hub_as_it_was_written_of_the_declarations_passes_no_personal_data_on(
    tmp_path: Path, name: str, sql: str, hides: bool
) -> None:
    """By its name alone a model of the project's own showed the addresses, and so did all that was made of it."""
    project = shop(tmp_path, "city email", PERSON)
    nodes = {name: vault_model(name, sql, "source.x.shop.people"), "report": model("report", name)}
    made = {r.name: r.personal for r in related({**project[0], "nodes": nodes}, project[1], tmp_path)}
    assert made[name] == made["report"] == ({"email"} if hides else set())


def test_a_hub_that_is_not_written_anew_yet_hides_nothing_for_ever(tmp_path: Path, folder: Path) -> None:
    """Dagster read the edited declaration before `lakehouse scaffold` ran. The hub and its marts hid the addresses from
    then on, as what a relation was made of once is remembered."""
    edited = PERSON.replace("hub: person", "hub: {name: person, column: person_no}")
    for vault, column in ((PERSON, "person_id"), (edited, "person_id"), (edited, "person_no")):
        manifest, declarations = shop(tmp_path, "city email", vault)
        hub = vault_model("hub_person", stamped(".sql", HUB.replace("person_id", column)), "source.x.shop.people")
        manifest["nodes"] = {"hub": hub, "report": model("report", "hub")}
        write_rules(folder, manifest, declarations, tmp_path)
        made = {relation.name: relation.personal for relation in read_relations(folder)}
        assert made["hub_person"] == made["report"] == set()


def test_a_key_that_a_stage_calls_personal_goes_where_its_hub_goes(tmp_path: Path) -> None:
    project = shop(tmp_path, "city email", PERSON)
    stage = model("stg_shop__people", schema="vault", folder="stage", personal=["person_id"])
    nodes = {"stage": stage, "hub": vault_model("hub_person", stamped(".sql", HUB), "stage")}
    made = {r.name: r.personal for r in related({**project[0], "nodes": nodes}, project[1], tmp_path)}
    assert made["hub_person"] == {"person_id"}


def test_every_hub_and_link_that_the_scaffold_writes_passes_nothing_on(read: Read, found: dict[str, Relation]) -> None:
    names = [name for name in found if re.match(r"vault\.(hub|link)_", name)]
    assert len(names) > 8 and not any(found[name].personal for name in names)


def test_names_are_no_patterns() -> None:
    wanted = rules([Relation("marts", "a.b|c", "reader")])
    assert first_rule("reader", "marts", "a.b|c", wanted)["privileges"] == ["SELECT"]
    for other in ("aXb", "a.b", "c", "secret", "a.b|c$files"):
        assert first_rule("reader", "marts", other, wanted)["privileges"] == []


def test_no_rule_for_readers_lacks_the_filter_that_keeps_them_from_table_procedures(found: dict[str, Relation]) -> None:
    lake = [rule for rule in rules(found.values())["tables"] if rule.get("catalog", "lake") == "lake"]
    assert [rule for rule in lake if "filter" not in rule] == [
        {"group": "writer", "privileges": rules([])["tables"][0]["privileges"]}
    ]


def test_a_login_with_namespaces_gets_there_what_its_role_gets_and_nothing_elsewhere(
    found: dict[str, Relation],
) -> None:
    """In Trino it is in the group `reader@marts`, and in none that is for all namespaces."""
    wanted = rules(found.values())

    def read(group: str, relation: Relation) -> tuple[Any, Any]:
        rule = first_rule(group, relation.schema, relation.name, wanted)
        return rule["privileges"], rule.get("columns")

    for relation in found.values():
        for role in ("reader", "privacy"):
            assert read(f"{role}@{relation.schema}", relation) == read(role, relation)
            for other in {"marts", "parsed", "vault", "meta", "mirror_retail", "", ".*"} - {relation.schema}:
                assert read(f"{role}@{other}", relation) == ([], None)
    for group in ("reader@marts", "privacy@marts"):
        assert first_rule(group, "raw_retail", "customers", wanted)["privileges"] == []
        shown = {
            re.fullmatch(rule.get("schema", ".*"), schema) is not None
            for rule in wanted["tables"]
            for schema in ("parsed", "vault", "meta", "mirror_retail", "raw_retail")
            if rule["privileges"] and rule.get("catalog") == "lake" and re.fullmatch(rule["group"], group)
        }
        assert shown == {False}, "Trino lists a schema with any rule that opens something in it"


def test_a_login_with_namespaces_logs_in_and_queries_like_its_role(found: dict[str, Relation]) -> None:
    wanted = rules(found.values())

    def first(kind: str, group: str, **place: str) -> dict[str, Any]:
        given = {"group": group, **place}
        fits = (r for r in wanted[kind] if all(re.fullmatch(r.get(key, ".*"), value) for key, value in given.items()))
        return {key: value for key, value in next(fits, {}).items() if key != "group"}

    for role in ("reader", "privacy"):
        for kind, place in (
            *(("catalogs", {"catalog": catalog}) for catalog in ("lake", "system", "other")),
            *(
                ("tables", {"catalog": "system", "schema": s, "table": "queries"})
                for s in ("jdbc", "metadata", "runtime")
            ),
            ("tables", {"catalog": "system", "schema": "runtime", "table": "nodes"}),
            *((kind, {}) for kind in ("queries", "procedures", "functions", "schemas")),
        ):
            assert first(kind, f"{role}@marts", **place) == first(kind, role, **place), (kind, place)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "access"


def test_before_declarations_are_read_nobody_but_the_writer_reads_anything(folder: Path, read: Read) -> None:
    ensure_rules(folder)
    wanted = json.loads((folder / RULES).read_text())
    assert first_rule("reader", "marts", "dim_store", wanted)["privileges"] == []
    assert first_rule("writer", "marts", "dim_store", wanted)["privileges"]
    assert stat.S_IMODE((folder / RULES).stat().st_mode) == 0o600
    write_rules(folder, *read, PROJECT)
    ensure_rules(folder)
    assert first_rule("reader", "marts", "dim_store", json.loads((folder / RULES).read_text()))["privileges"] == [
        "SELECT"
    ]
