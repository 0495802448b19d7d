"""What is a source's own in the lake: no more than that is dropped with it."""

from lakehouse.catalog.relations import Relation, TableName
from maintenance.inventory.of_source import relations_of

VIEWS = {"parsed.current_shop__orders"}
ALL = [
    "raw_shop.orders", "raw_shop.lines", "raw_shop_eu.orders", "mirror_shop.orders", "parsed.parsed_shop__orders",
    "parsed.current_shop__orders", "parsed.parsed_shop__eu__orders", "parsed.stg_shop__orders", "vault.hub_order",
    "marts.raw_shop", "parsed.parsed_shop_eu__orders",
]  # fmt: skip


def named(*arguments: object) -> list[str]:
    relations = [
        Relation(TableName(*name.split(".")), "view" if name in VIEWS else "table", f"s3://w/{name}") for name in ALL
    ]
    return [str(each.name) for each in relations_of(relations, *arguments)]  # type: ignore[arg-type]


def test_the_relations_of_a_source_are_those_made_of_it_alone_and_views_come_first() -> None:
    assert named("shop", ["shop_eu", "shop__eu"]) == [
        "parsed.current_shop__orders", "mirror_shop.orders", "parsed.parsed_shop__orders", "raw_shop.lines",
        "raw_shop.orders",
    ]  # fmt: skip


def test_of_one_table_there_are_fewer() -> None:
    assert named("shop", [], "lines") == ["raw_shop.lines"]
    assert named("shop", [], "eu__orders") == ["parsed.parsed_shop__eu__orders"]
    assert named("shop__eu") == ["parsed.parsed_shop__eu__orders"]
