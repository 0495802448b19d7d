"""A wrong maintenance policy is refused where it stands: a source, a model, a folder of models, vars.maintenance."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.declarations.times import Window, check_cron, ticks_within
from lakehouse.errors import LakehouseError
from maintenance.inventory.declared import maintained_tables

PROJECT = """\
vars:
  maintenance:
    longest_write_hours: 6
    max_failed_share: 0.1
    groups:
      nightly:
        cron: "30 1 * * *"
        budget_minutes: 120
        window: "01:00-05:00"
models:
  lake:
    vault:
      +meta:
        maintenance:
          schedule_group: nightly
          compact: {target_file_size_mb: 128, min_input_files: 5}
"""
SOURCES = """\
sources:
  - name: shop
    schema: raw_shop
    config:
      meta:
        maintenance: &common
          schedule_group: nightly
          compact: {target_file_size_mb: 128, min_input_files: 5}
          expire_snapshots: {older_than_hours: 72, retain_last: 5, keep_metadata_files: 20}
          keep_removed_hours: 72
    tables:
      - name: sales
        config:
          meta:
            raw: {relation: public.sales, key: [id], alias: {Total: total_amount}, exclude: [card]}
            maintenance:
              <<: *common
              probe: {key: id}
        columns: [{name: id}, {name: Total}, {name: card}]
"""
SECOND = """\
      - name: wares
        config:
          meta:
            raw: {relation: public.wares, key: [id]}
            mirror: {refresh_seconds: 6}
        columns: [{name: id}, {name: Total}, {name: card}]
"""
MODELS = """\
models:
  - name: hub_sale
    config:
      meta:
        maintenance:
          schedule_group: nightly
          compact: {target_file_size_mb: 128, min_input_files: 5, sort_by: [hk_sale]}
    columns: [{name: hk_sale}, {name: load_date}]
"""


def manifest(place: Path, project: str = PROJECT, sources: str = SOURCES, models: str = MODELS) -> dict[str, Any]:
    """What dbt's manifest would hold of these files: a source's table, a model of its own, one of its folder."""
    (place / "models").mkdir()
    for name, text in (("dbt_project.yml", project), ("models/shop.yml", sources), ("models/vault.yml", models)):
        (place / name).write_text(text)
    [source] = yaml.safe_load(sources)["sources"]
    [table] = source["tables"]
    [model] = yaml.safe_load(models)["models"]
    folder = yaml.safe_load(project)["models"]["lake"]["vault"]["+meta"]
    common = {"resource_type": "model", "schema": "vault", "original_file_path": "models/hub.sql"}
    own = {**folder, **model["config"]["meta"]}
    return {
        "sources": {
            "sales": {
                "resource_type": "source", "schema": "raw_shop", "source_name": "shop", "name": "sales",
                "original_file_path": "models/shop.yml", "columns": {c["name"]: c for c in table["columns"]},
                "config": {"meta": {**source["config"]["meta"], **table["config"]["meta"]}},
            },
        },
        "nodes": {
            "hub": {
                **common, "name": "hub_sale", "patch_path": "lake://models/vault.yml",
                "fqn": ["lake", "vault", "hub_sale"],
                "columns": {c["name"]: c for c in model["columns"]},
                "config": {"materialized": "append_only", "meta": own},
            },
            "sat": {
                **common, "name": "sat_sale", "patch_path": None, "fqn": ["lake", "vault", "sat_sale"],
                "config": {"materialized": "append_only", "meta": folder},
            },
        },
    }  # fmt: skip


def test_right_policies_are_read(tmp_path: Path) -> None:
    tables = {str(table.name): table.policy for table in maintained_tables(manifest(tmp_path), tmp_path)}
    assert list(tables) == ["mirror_shop.sales", "raw_shop.sales", "vault.hub_sale", "vault.sat_sale"]
    assert tables["mirror_shop.sales"].compact.sort_by == ("id",) and tables["mirror_shop.sales"].probe is None
    assert tables["vault.hub_sale"].compact.sort_by == ("hk_sale",)
    assert project_maintenance(tmp_path).groups["nightly"].budget_minutes == 120


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "older_than_hours: 72",
            "older_than_hours: -1",
            9,
            "expire_snapshots.older_than_hours: Input should be greater",
        ),
        ("older_than_hours: 72", "older_than_hours: yes", 9, "older_than_hours: a number is wanted, not true$"),
        ("retain_last: 5", "retain_last: on", 9, "retain_last: a number is wanted, not true$"),
        ("older_than_hours: 72", "older_than_hours: 1e9", 9, "older_than_hours: Input should be less than or equal"),
        ("older_than_hours: 72", "older_than_hours: .nan", 9, "older_than_hours: Input should be a finite number"),
        (
            "older_than_hours: 72",
            "older_than_hours: 5",
            9,
            "expire_snapshots.older_than_hours: 5 h is below vars.maint",
        ),
        (
            "removed_hours: 72",
            "removed_hours: 1",
            10,
            "keep_removed_hours: 1 h is below vars.maintenance.longest_write",
        ),
        (", keep_metadata_files: 20", "", 9, "expire_snapshots.keep_metadata_files: Field required"),
        ("min_input_files: 5}", "min_input_files: 1}", 8, "compact.min_input_files: Input should be greater than 1"),
        ("probe: {key: id}", "probe: {key: card}", 18, "probe.key: 'card' is no column of the table"),
        ("probe: {key: id}", "probe: {key: total}", 18, "probe.key: 'total' is no column of the table"),
        ("probe: {key: id}", "probe: {kee: id}", 18, "probe: unknown key `kee`: did you mean `key`"),
        ("probe: {key: id}", "opt_out: read by nobody", 16, "opt_out excludes every other part; take out compact"),
    ],
)
def test_a_wrong_policy_of_a_source_has_the_line_of_its_key(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    wrong = SOURCES.replace(old, new)
    with pytest.raises(
        LakehouseError, match=rf"/models/shop\.yml:{line}: sales: meta\.maintenance.*{message}"
    ) as caught:
        maintained_tables(manifest(tmp_path, sources=wrong), tmp_path)
    assert "\n" not in str(caught.value)


def test_removing_without_a_time_to_restore_is_refused(tmp_path: Path) -> None:
    wrong = SOURCES.replace("          keep_removed_hours: 72\n", "")
    with pytest.raises(LakehouseError, match=r"shop.yml:15: sales: .*say with keep_removed_hours how long"):
        maintained_tables(manifest(tmp_path, sources=wrong), tmp_path)


def test_what_is_deleted_at_once_asks_for_no_time_to_restore() -> None:
    """`clean_dbt_temporary` keeps nothing aside: a time that nothing reads would promise a restore."""
    MaintenancePolicy.model_validate({"schedule_group": "nightly", "clean_dbt_temporary": {"older_than_hours": 24}})


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("sort_by: [hk_sail]", r"compact.sort_by: 'hk_sail' is no column of the table, or did you mean hk_sale\?"),
        ("zorder_by: [load_day]", "compact.zorder_by: 'load_day' is no column"),
        ("sort_by: [hk_sale], zorder_by: [hk_sale]", "compact: give sort_by or zorder_by, not both"),
    ],
)
def test_a_wrong_order_of_a_model_is_refused_at_its_own_file(tmp_path: Path, new: str, message: str) -> None:
    wrong = MODELS.replace("sort_by: [hk_sale]", new)
    with pytest.raises(LakehouseError, match=rf"/models/vault\.yml:7: hub_sale: meta\.maintenance\.{message}"):
        maintained_tables(manifest(tmp_path, models=wrong), tmp_path)


def test_an_order_that_no_engine_can_keep_is_refused(tmp_path: Path) -> None:
    wrong = MODELS.replace("{name: load_date}", "{name: _deleted}")
    message = r"sort_by: Spark, which sorts, reads no table with a column '_deleted': leave it out"
    with pytest.raises(LakehouseError, match=rf"/models/vault\.yml:7: hub_sale: meta\.maintenance\.compact\.{message}"):
        maintained_tables(manifest(tmp_path, models=wrong), tmp_path)


def test_what_a_folder_gives_its_models_is_refused_in_dbt_project_yml(tmp_path: Path) -> None:
    wrong = PROJECT.replace("          schedule_group: nightly", "          schedule_group: hourly")
    message = r"dbt_project\.yml:15: sat_sale: meta\.maintenance\.schedule_group: 'hourly' is none of .*groups: nightly"
    with pytest.raises(LakehouseError, match=message):
        maintained_tables(manifest(tmp_path, project=wrong), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("longest_write_hours: 6", "longest_write_hours: 0", 3, "greater than 0"),
        ("max_failed_share: 0.1", "max_failed_share: 10", 4, "less than or equal to 1"),
        ('"30 1 * * *"', '"61 1 * * *"', 7, "minute '61' is not within 0 to 59"),
        ('"30 1 * * *"', '"nightly"', 7, "has 1 fields"),
        ("budget_minutes: 120", "budget_minutes: -5", 8, "greater than 0"),
        ('"01:00-05:00"', '"01:00-25:00"', 9, "is not HH:MM-HH:MM"),
        ('"01:00-05:00"', '"02:00-05:00"', 6, "cron '30 1 .*never begins within the window 02:00-05:00"),
        ("budget_minutes", "budget_minute", 8, "unknown key `budget_minute`: did you mean `budget_minutes`"),
        ("nightly:\n        cron", "every night:\n        cron", 6, "groups.every night.*should match pattern"),
    ],
)
def test_wrong_variables_are_refused_at_their_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    (tmp_path / "dbt_project.yml").write_text(PROJECT.replace(old, new))
    with pytest.raises(LakehouseError, match=rf"dbt_project\.yml:{line}: vars\.maintenance\..*{message}"):
        project_maintenance(tmp_path)


def test_variables_that_are_missing_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: lake\n")
    with pytest.raises(LakehouseError, match=r"dbt_project\.yml:1: vars\.maintenance is missing; state longest_write"):
        project_maintenance(tmp_path)


@pytest.mark.parametrize(
    ("cron", "window", "is_within"),
    [
        ("0 2 * * *", "04:00-05:00", False),
        ("0 5 * * *", "04:00-05:00", False),
        ("0 4 * * *", "04:00-05:00", True),
        ("*/20 * * * *", "04:21-04:39", False),
        ("*/20 * * * *", "04:21-04:41", True),
        ("0 23,1 1 * mon", "22:30-00:30", True),
        ("0 1-3 * * *", "22:30-01:00", False),
        ("30 1 29 2 *", "01:00-05:00", True),
    ],
)
def test_a_group_begins_within_its_window(cron: str, window: str, is_within: bool) -> None:
    """Every night's run succeeded, and did nothing, because it began hours before the window."""
    assert ticks_within(cron, Window.parse(window)) == is_within


def test_a_window_may_pass_midnight() -> None:
    from datetime import UTC, datetime

    night = Window.parse("22:30-04:00")
    assert night.seconds_left(datetime(2026, 1, 1, 23, 0, tzinfo=UTC)) == 5 * 3600
    assert night.seconds_left(datetime(2026, 1, 2, 3, 59, tzinfo=UTC)) == 60
    assert night.seconds_left(datetime(2026, 1, 2, 4, 0, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    "cron",
    [
        "*/5 * * * *", "0 1-5,22 1 jan-mar MON", "45 3 * * 0", "0 0 29 2 *", "0 0 31 4,5 *", "0 0 28-31 2 *",
        "0 0 31 */2 *", "0 0 31 2/3 *", "0 0 */31 2 *", "0 0 31 4,6 mon",
    ],
)  # fmt: skip
def test_cron_expressions_that_dagster_takes_are_taken(cron: str) -> None:
    from dagster._utils.schedules import is_valid_cron_string

    assert check_cron(cron) == cron
    assert is_valid_cron_string(cron)


@pytest.mark.parametrize("cron", ["* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "*/0 * * * *", "5-1 * * * *"])
def test_other_cron_expressions_are_refused(cron: str) -> None:
    with pytest.raises(ValueError, match="cron"):
        check_cron(cron)


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30 feb *", "0 0 31 2 mon", "0 0 30,31 2 *", "0 0 31 4,6 *"])
def test_a_day_that_none_of_the_months_has_is_refused(cron: str) -> None:
    """Dagster refused the first ones, and with them everything that is declared; the others never came."""
    with pytest.raises(ValueError, match=r"cron .*: month '.*' has no day 3[01]$"):
        check_cron(cron)


def test_a_table_without_a_key_or_declared_so_has_no_mirror_to_maintain(tmp_path: Path) -> None:
    for number, (old, new) in enumerate(
        [("key: [id], ", ""), ("            maintenance:\n", "            mirror: none\n            maintenance:\n")]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        found = maintained_tables(manifest(place, sources=SOURCES.replace(old, new)), place)
        assert [str(table.name) for table in found] == ["raw_shop.sales", "vault.hub_sale", "vault.sat_sale"]


@pytest.mark.parametrize(
    ("mirror", "seconds", "is_mirrored"),
    [("", 60, True), ("mirror: none", 60, False), ("mirror: {refresh_seconds: 5}", 5, True)],
)
def test_a_table_with_a_key_has_a_mirror_unless_declared_otherwise(
    tmp_path: Path, mirror: str, seconds: float, is_mirrored: bool
) -> None:
    sources = SOURCES.replace("alias: {Total: total_amount}, exclude: [card]}", "}").replace(
        "            maintenance:\n", f"            {mirror}\n            maintenance:\n"
    )
    [source] = declarations_from(manifest(tmp_path, sources=sources), tmp_path).sources
    assert (source.refresh_seconds, [t.name for t in source.mirrored]) == (seconds, ["sales"] if is_mirrored else [])


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ("mirror: {refresh_seconds: 0}", "meta.mirror.*refresh_seconds: Input should be greater than 0"),
        ("mirror: {seconds: 5}", "meta.mirror.*unknown key `seconds`"),
        ("mirror: {refresh_seconds: 5, every: 6}", "meta.mirror.*unknown key `every`"),
    ],
)
def test_a_wrong_mirror_is_refused_at_its_line(tmp_path: Path, mirror: str, message: str) -> None:
    sources = SOURCES.replace("            maintenance:\n", f"            {mirror}\n            maintenance:\n")
    with pytest.raises(LakehouseError, match=rf"/models/shop\.yml:16: {message}"):
        declarations_from(manifest(tmp_path, sources=sources), tmp_path)


def test_mirrors_of_a_source_with_two_intervals_are_refused_at_the_second(tmp_path: Path) -> None:
    sources = SOURCES.replace(
        "            maintenance:\n", "            mirror: {refresh_seconds: 5}\n            maintenance:\n"
    )
    read = manifest(tmp_path, sources=sources)
    (tmp_path / "models/shop.yml").write_text(sources + SECOND)
    second = copy.deepcopy(read["sources"]["sales"])
    second["name"] = "wares"
    second["config"]["meta"] |= {"raw": {"relation": "public.wares", "key": ["id"]}, "mirror": {"refresh_seconds": 6}}
    read["sources"]["wares"] = second
    with pytest.raises(
        LakehouseError, match=r"shop\.yml:25: meta.mirror.refresh_seconds: the mirrors of source 'shop' are"
    ):
        declarations_from(read, tmp_path)


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        ('""', "a name is wanted, not an empty text"),
        ("ID", "column id is called so in the lake, where capitals count for nothing: take another name"),
        ("_Op", "_Op is a column that ingestion adds: take another name"),
    ],
)
def test_an_alias_that_is_no_name_of_its_own_is_refused(tmp_path: Path, alias: str, message: str) -> None:
    """Ingestion parked the table, or wrote a column without a name."""
    sources = SOURCES.replace("total_amount", alias)
    with pytest.raises(LakehouseError, match=rf"shop\.yml:15: meta\.raw\.alias\.Total: {message}$"):
        declarations_from(manifest(tmp_path, sources=sources), tmp_path)


def test_aliases_that_change_places_and_that_of_a_column_that_does_not_land_are_taken(tmp_path: Path) -> None:
    for number, aliases in enumerate(("{Total: id, id: Total}", "{card: id, Total: card}")):
        sources = SOURCES.replace("{Total: total_amount}", aliases)
        (place := tmp_path / str(number)).mkdir()
        assert declarations_from(manifest(place, sources=sources), place).tables


def test_a_relation_that_is_declared_twice_is_refused(tmp_path: Path) -> None:
    again = (
        "      - name: orders\n        config: {meta: {raw: {relation: 'public.\"sales\"'}, vault: {none: a twin}}}\n"
    )
    nodes = manifest(tmp_path)["sources"]
    (tmp_path / "models/shop.yml").write_text(SOURCES + again)
    twin = {
        "name": "orders",
        "columns": {},
        "config": {"meta": {"raw": {"relation": 'public."sales"'}, "vault": {"none": "a twin"}}},
    }
    with pytest.raises(LakehouseError, match=r"shop.yml:21: meta.raw.relation: .* is declared as another table"):
        declarations_from({"sources": nodes | {"twin": {**nodes["sales"], **twin}}}, tmp_path)


BLOCKS = """\
sources:
  - name: shop
    schema: raw_shop
    config:
      meta:
        maintenance: {}
    tables:
      - name: sales
        config:
          meta:
            raw:
              relation: public.sales
              key:
                - id
                - {key}
              mask:
                note: sha256
            mirror:
              {refresh}: 5
            vault:
              hub: sale
              satellites:
                sale:
                  - {column}
                private:
                  columns: [note]
                  description: what was remarked
        columns:
          - name: id
          - name: Total
          - name: note
"""
MEANT = {"key": "Total", "refresh": "refresh_seconds", "column": "Total"}


@pytest.mark.parametrize(
    ("wrong", "old", "new", "line", "message"),
    [
        ({"key": "Tota"}, "", "", 15, "meta.raw.key names Tota, which is not among the declared columns"),
        ({}, "note: sha256", "nota: sha256", 17, "meta.raw.mask names nota, which"),
        ({"key": "note"}, "", "", 15, "key column note cannot be excluded or masked"),
        ({"refresh": "refresh_second"}, "", "", 19, "meta.mirror: unknown key `refresh_second`: did you mean"),
        ({"column": "Sum"}, "", "", 24, "V6: Sum is not among the columns that land"),
        ({"column": "note"}, "", "", 26, "V3: note is in two places"),
        ({}, "- name: sales", "- name: Sales", 8, "name 'Sales' must match"),
        ({}, "schema: raw_shop", "schema: raw_shops", 3, "schema of source 'shop' must be raw_shop"),
        ({"key": "Tota"}, "        config:\n          meta:\n", "        meta:\n", 14, "meta.raw.key names Tota"),
    ],
)
def test_a_mistake_has_the_line_of_its_key_or_item(
    tmp_path: Path, wrong: dict[str, str], old: str, new: str, line: int, message: str
) -> None:
    """It was that of `meta:`, some lines above."""
    text = BLOCKS
    for name, meant in MEANT.items():
        text = text.replace(f"{{{name}}}", wrong.get(name, meant))
    text = text.replace(old, new)
    (tmp_path / "shop.yml").write_text(text)
    [source] = yaml.safe_load(text)["sources"]
    [table] = source["tables"]
    node = {
        "source_name": "shop", "name": table["name"], "schema": source["schema"], "original_file_path": "shop.yml",
        "columns": {column["name"]: column for column in table["columns"]},
        "config": {"meta": (table.get("config") or table)["meta"]},
    }  # fmt: skip
    with pytest.raises(LakehouseError) as caught:
        declarations_from({"sources": {"sales": node}}, tmp_path)
    assert f"/shop.yml:{line}: " in str(caught.value) and message in str(caught.value)


def test_two_tables_whose_names_run_together_with_their_sources_are_refused(tmp_path: Path) -> None:
    """Mirror and view of the one had the readers, and the hidden columns, of the other's view."""
    other = SOURCES.replace("name: shop\n    schema: raw_shop", "name: shop__eu\n    schema: raw_shop__eu").replace(
        "name: sales", "name: people"
    )
    read = manifest(tmp_path)
    (tmp_path / "models/eu.yml").write_text(other)
    sales = read["sources"].pop("sales")
    first = sales | {"name": "eu__people"}
    second = sales | {"source_name": "shop__eu", "schema": "raw_shop__eu", "name": "people"}
    second["original_file_path"] = "models/eu.yml"
    with pytest.raises(
        LakehouseError,
        match=r"eu.yml:12: table 'people' of source 'shop__eu' and 'eu__people' of 'shop' are both called "
        r"shop__eu__people in parsed: rename one$",
    ):
        declarations_from({"sources": {"1": first, "2": second}}, tmp_path)
    persons = second | {"name": "persons"}
    assert len(declarations_from({"sources": {"1": first, "2": persons}}, tmp_path).tables) == 2
