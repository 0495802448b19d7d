"""A declared table that no model reads does not leave the loads without a word."""

from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations import declarations_from
from lakehouse.declarations.checks.unread import unread_tables
from lakehouse.errors import LakehouseError

YAML = """sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: orders
        config:
          meta:
            raw: {relation: public.orders, key: [id]}
            VAULT
        columns:
          - {name: id, data_type: integer}
"""
ORDERS = "source.lakehouse.shop.orders"


def told(project: Path, *models: dict[str, Any], vault: Any = None, key: tuple[str, ...] = ("id",)) -> dict[Any, str]:
    hub = {"vault": vault} if vault else {}
    (project / "models").mkdir(parents=True)
    (project / "models/shop.yml").write_text(YAML.replace("VAULT", f"vault: {vault}" if vault else ""))
    node = {
        "unique_id": ORDERS, "source_name": "shop", "name": "orders", "schema": "raw_shop", "description": "",
        "config": {"meta": {"raw": {"relation": "public.orders", "key": list(key)}, **hub}},
        "columns": {"id": {"name": "id", "data_type": "integer"}}, "original_file_path": "models/shop.yml",
    }  # fmt: skip
    manifest = {"sources": {ORDERS: node}, "nodes": {str(n): model for n, model in enumerate(models)}}
    return unread_tables(manifest, declarations_from(manifest, project), project)


def model(name: str, *reads: str) -> dict[str, Any]:
    return {
        "resource_type": "model", "name": name, "original_file_path": f"models/{name}.sql",
        "depends_on": {"nodes": list(reads)},
    }  # fmt: skip


def test_a_table_that_a_model_reads_is_not_mentioned(tmp_path: Path) -> None:
    assert told(tmp_path, model("of_mine", ORDERS), vault={"hub": "order"}) == {}


def test_a_table_that_no_model_reads_is_told_with_the_command_that_changes_it(tmp_path: Path) -> None:
    only_raw = "no model reads shop.orders, so it ends in raw (`lakehouse scaffold shop` writes its models)"
    assert told(tmp_path, model("of_another")) == {("shop", "orders"): only_raw}


def test_a_table_without_a_key_has_to_be_declared_to_end_in_raw(tmp_path: Path) -> None:
    assert told(tmp_path, vault={"none": "a log without a key"}, key=()) == {}
    with pytest.raises(LakehouseError, match=r"shop.yml:8: V11: without a key the table stays in raw"):
        told(tmp_path / "other", key=())


def test_a_model_that_has_lost_its_source_is_refused_with_its_file(tmp_path: Path) -> None:
    """Its table dropped out of the load without a word."""
    with pytest.raises(LakehouseError) as caught:
        told(tmp_path, model("parsed_shop__orders"))
    assert (
        f"{tmp_path.name}/models/parsed_shop__orders.sql:1: parsed_shop__orders does not read source('shop', 'orders')"
        in str(caught.value)
    )


def test_a_vault_that_no_model_fills_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(LakehouseError) as caught:
        told(tmp_path, vault={"hub": "order"})
    assert str(caught.value).startswith(f"{tmp_path.name}/models/shop.yml:9: meta.vault: no model reads shop.orders")
