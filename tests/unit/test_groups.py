"""Which sources are loaded together: those that share a table, and no others."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from dagster_dbt.utils import select_unique_ids

from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.servers.presence import ALONE
from lakehouse.settings import load_settings
from orchestration.assets.dbt_assets import load_assets
from orchestration.assets.groups import groups_read, load_groups, selection, sources_of


@pytest.fixture(scope="module")
def demo_manifest(home: Path) -> dict[str, Any]:
    return load_manifest(load_settings(home=home))


def selected(of: dict[str, Any], said: str) -> set[str]:
    """What dbt itself selects, as Dagster asks it."""
    return set(select_unique_ids(said, "", "", None, of))


def node(kind: str, name: str, *above: str, mart: bool = False, fqn: str = "") -> dict[str, Any]:
    of_raw = {"source_name": name.partition("__")[0]} if kind == "source" else {}
    return {
        "resource_type": kind, "schema": f"raw_{of_raw['source_name']}" if of_raw else "vault", "name": name,
        "tags": ["marts"] if mart else [], "depends_on": {"nodes": list(above)}, "fqn": fqn.split(), **of_raw,
    }  # fmt: skip


def manifest(**models: dict[str, Any]) -> dict[str, Any]:
    sources = {name: node("source", name) for name in ("bank__users", "shop__people", "shop__sales")}
    return {"sources": sources, "nodes": models}


def test_sources_that_share_no_table_are_groups_of_their_own() -> None:
    found = load_groups(manifest(hub_user=node("model", "hub_user", "bank__users"), codes=node("model", "codes")))
    assert found == {
        "bank__users": "bank", "hub_user": "bank", "shop__people": "shop", "shop__sales": "shop", "codes": ALONE
    }  # fmt: skip


def test_a_hub_that_two_sources_load_makes_one_group_of_them() -> None:
    """Two loads of it at once would both add its new keys."""
    found = load_groups(manifest(hub_person=node("model", "hub_person", "shop__people", "bank__users")))
    assert {found[name] for name in ("shop__people", "bank__users", "hub_person")} == {"bank"}


def test_a_group_is_locked_by_all_of_its_sources() -> None:
    """One that is declared now may come before the others, and name the group."""
    models = manifest(hub=node("model", "hub", "shop__people", "bank__users"), codes=node("model", "codes"))
    found = sources_of(models, load_groups(models))
    assert found == {"bank": ["bank", "shop"], "shop": ["shop"], ALONE: [ALONE]}


def test_a_mart_joins_no_groups_and_is_made_of_all_that_it_reads() -> None:
    models = manifest(
        hub_user=node("model", "hub_user", "bank__users"),
        hub_person=node("model", "hub_person", "shop__people"),
        pit=node("model", "pit", "hub_user", mart=True),
        mart=node("model", "mart", "pit", "hub_person", mart=True),
        days=node("model", "days", mart=True),
    )
    groups = load_groups(models)
    assert groups["hub_user"] != groups["hub_person"] and "mart" not in groups
    assert groups_read(models, ["mart", "pit", "days"], groups) == {
        "mart": {"bank", "shop"}, "pit": {"bank"}, "days": frozenset()
    }  # fmt: skip


def test_what_is_selected_by_folder_is_what_would_be_selected_by_name(demo_manifest: dict[str, Any]) -> None:
    """A name each of 2,000 models took dbt, which compares each part with each node, longer than all else together."""
    for group in set(load_groups(demo_manifest).values()):
        models = {k for k, g in load_groups(demo_manifest).items() if g == group and k in demo_manifest["nodes"]}
        said = selection(demo_manifest, models)
        names = " ".join(demo_manifest["nodes"][model]["name"] for model in models)
        assert selected(demo_manifest, said) == selected(demo_manifest, names)
        assert len(said.split()) <= max(5, len(models) / 4), said


def test_each_test_that_a_load_plans_is_one_that_its_dbt_runs(demo_manifest: dict[str, Any]) -> None:
    """dagster-dbt plans those of the raw tables too. One planned and never evaluated hides that it fails."""
    for loaded in load_assets(demo_manifest, date(2026, 1, 1)):
        run = selected(demo_manifest, loaded.op.tags["dagster_dbt/select"])
        names = {demo_manifest["nodes"][test]["name"] for test in run if test.startswith("test.")}
        assert {key.name for key in loaded.check_keys} <= names
        assert any(key.asset_key.path[0].startswith("raw_") for key in loaded.check_keys)


def test_raw_tables_are_selected_by_source_where_the_group_has_all_of_it() -> None:
    models = manifest()
    assert selection(models, {"shop__people", "shop__sales"}) == "source:shop"
    assert selection(models, {"shop__sales", "bank__users"}) == "source:bank source:shop.shop__sales"
    assert selection(models, ()) == ""


def test_a_model_in_a_folder_with_others_is_selected_by_its_name() -> None:
    """So are those whose folder has a test of another group's model, or a name that dbt would read otherwise."""
    models = manifest(
        a=node("model", "a", fqn="shop parsed shop a"), b=node("model", "b", fqn="shop parsed shop deep b"),
        c=node("model", "c", fqn="shop parsed bank c"), d=node("model", "d", fqn="shop vault d"),
        e=node("model", "e", fqn="shop vault e"), f=node("model", "f", fqn="shop my+own f"),
        g=node("model", "g", fqn="shop g"), h=node("model", "h", fqn="shop tested h"),
        of_h=node("test", "of_h", "h", fqn="shop tested of_h"),
        of_c=node("test", "of_c", "c", fqn="shop parsed bank c"),
        i=node("model", "i", fqn="shop both i"), of_e=node("test", "of_e", "e", fqn="shop both of_e"),
    )  # fmt: skip
    found = selection(models, {"a", "b", "d", "f", "g", "h", "i"})
    assert found.split() == sorted(["shop.parsed.shop", "d", "f", "g", "shop.tested", "i"])
    within = {**models, "nodes": models["nodes"] | {"z": node("model", "z", fqn="other shop parsed shop z")}}
    assert selection(within, {"a"}) == "a"
