"""`lakehouse rehash` before it begins."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_cli.lake import rehash


def model(name: str, folder: str, materialized: str, full_refresh: bool | None = None) -> dict[str, Any]:
    return {
        "resource_type": "model", "name": name, "schema": "vault", "alias": name, "depends_on": {"nodes": []},
        "original_file_path": f"models/{folder}/{name}.sql",
        "config": {"materialized": materialized, "full_refresh": full_refresh},
    }  # fmt: skip


def test_a_rehash_refuses_tables_that_a_full_refresh_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept the keys of the former hash function, beside tables with those of the new one."""
    models = [
        model("parsed_x__t", "parsed/x", "append_only", False), model("stg_x__t", "stage/x", "view", False),
        model("hub_t", "vault/x", "append_only"), model("sat_t", "vault/x", "append_only", False),
        model("bv_t", "business", "rebuilt_table", False),
    ]  # fmt: skip
    manifest = {
        "sources": {},
        "nodes": {node["name"]: node for node in models},
        "child_map": {"parsed_x__t": ["stg_x__t"], "stg_x__t": ["hub_t", "sat_t"], "sat_t": ["bv_t"]},
    }
    monkeypatch.setattr(rehash, "load_manifest", lambda _: manifest)
    with pytest.raises(LakehouseError, match=r"^vault\.sat_t would keep the former keys, by `full_refresh: false` .*"):
        rehash.rebuild_vault(load_settings(home=tmp_path))


def test_a_rehash_names_the_snapshots_of_dbt_that_keep_the_former_keys() -> None:
    """Who was in one could not be found there any more, and an erasure said that nothing was left."""
    keys = {"kept": "hk_t", "listed": ["HK_T", "at"], "own": "id"}
    nodes = {
        name: {"resource_type": "snapshot", "schema": "snapshots", "alias": name, "config": {"unique_key": key}}
        for name, key in keys.items()
    }
    manifest = {"nodes": nodes | {"hub_t": model("hub_t", "vault/x", "append_only")}}
    assert rehash.snapshots_by_hash(manifest) == ["snapshots.kept", "snapshots.listed"]
