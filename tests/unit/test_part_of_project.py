"""What dbt is given of a project for a run of a few models: these, and what they are made of."""

from pathlib import Path

import pytest

from lakehouse.settings import load_settings
from orchestration.worker.dbt.part import part_of
from orchestration.worker.dbt.warm_dbt import WarmDbt

MODELS = ["fct_transactions", "sat_transaction_details_v1", "sts_store_v1", "dim_user"]
TESTS = ["unique_fct_transactions_hk_transaction", "not_null_dim_user_hk_user"]


@pytest.fixture(scope="module")
def warm(home: Path) -> WarmDbt:
    """The demo's project, parsed."""
    found = WarmDbt(load_settings(home=home))
    assert found.refresh()
    return found


def test_a_run_is_given_what_its_models_are_made_of_and_no_others(warm: WarmDbt) -> None:
    """Of a thousand models dbt described each in every run, and a sale cost as many seconds as there were models."""
    assert warm._project is not None
    part = part_of(warm._project, ["fct_transactions"])
    names = {node.name for node in part.nodes.values()}
    assert {"fct_transactions", "sat_transaction_details_v1", "sat_transaction_details", "hub_store"} <= names
    assert "parsed_retail__transactions" in names, "dbt goes by the way between two models through others"
    assert not [name for name in names if "user" in name or "unique" in name]
    hooks = [key for key, node in warm._project.nodes.items() if node.resource_type == "operation"]
    assert hooks and [key for key, node in part.nodes.items() if node.resource_type == "operation"] == hooks
    assert {source.name for source in part.sources.values()} >= {"transactions", "stores"}
    assert not [source for source in part.sources.values() if source.source_name == "bank"]


def test_what_a_run_is_not_about_is_found_by_its_name_all_the_same(warm: WarmDbt) -> None:
    """SQL that is rendered may name a source, or look at the graph, of which parsing has not seen it."""
    whole = warm._project
    assert whole is not None
    part = part_of(whole, ["fct_transactions"])
    assert part.flat_graph is whole.flat_graph
    users = part.resolve_source("bank", "users", "lakehouse", "lakehouse")
    assert users is whole.sources[users.unique_id] and users.unique_id in part.sources  # type: ignore[union-attr]
    node = part.nodes["model.lakehouse.fct_transactions"]
    assert part.resolve_ref(node, "hub_user", None, None, "lakehouse", "lakehouse") is not None
    assert part.nodes.get("model.lakehouse.none") is None
    with pytest.raises(KeyError):
        part.nodes["model.lakehouse.none"]


@pytest.mark.parametrize("names", [MODELS, TESTS])
def test_the_sql_is_that_of_the_whole_project(names: list[str], warm: WarmDbt, monkeypatch: pytest.MonkeyPatch) -> None:
    part = warm.compiled(names, {"LAKEHOUSE_NEXT": "1"})
    monkeypatch.setattr(WarmDbt, "_part", lambda self, names: self._project)
    assert part == warm.compiled(names, {"LAKEHOUSE_NEXT": "1"}) and len(part) == len(names)
    if names == TESTS:
        assert all('"marts_next"' in sql for sql in part.values())


def test_each_run_has_the_sql_of_what_is_ephemeral(warm: WarmDbt, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second run on, a mart named a `__dbt__cte__` that its SQL did not have."""
    assert warm._project is not None
    read = warm._project.nodes["model.lakehouse.sat_user_details_v1"]
    monkeypatch.setattr(read.config, "materialized", "ephemeral")
    first, again = (warm.compiled(["dim_user"], {"LAKEHOUSE_NEXT": "1"}) for _ in range(2))
    assert first == again and "__dbt__cte__sat_user_details_v1 as (" in again["model.lakehouse.dim_user"]
