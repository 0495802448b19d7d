"""Which sources are loaded together: those that share a table, and no others."""

from typing import Any

from orchestration.assets.groups import ALONE, groups_read, load_groups


def node(kind: str, name: str, *above: str, mart: bool = False) -> dict[str, Any]:
    of_raw = {"source_name": name.partition("__")[0]} if kind == "source" else {}
    return {
        "resource_type": kind, "schema": f"raw_{of_raw['source_name']}" if of_raw else "vault", "name": name,
        "tags": ["marts"] if mart else [], "depends_on": {"nodes": list(above)}, **of_raw,
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
