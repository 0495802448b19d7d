"""What is a source's own in the lake: no more than that is dropped with it."""

from collections.abc import Sequence

import pytest

from lakehouse.catalog.relations import Relation, TableName
from lakehouse.errors import LakehouseError
from maintenance.inventory.of_source import relations_of

VIEWS = {"parsed.current_shop__orders"}
ALL = [
    "raw_shop.orders", "raw_shop.lines", "raw_shop_eu.orders", "mirror_shop.orders", "parsed.parsed_shop__orders",
    "parsed.current_shop__orders", "parsed.parsed_shop__eu__orders", "parsed.stg_shop__orders", "vault.hub_order",
    "marts.raw_shop", "parsed.parsed_shop_eu__orders", "next_mirror_shop.orders", "next_mirror_shop_eu.orders",
]  # fmt: skip


def named(*arguments: object, there: Sequence[str] = ALL) -> list[str]:
    relations = [
        Relation(TableName(*name.split(".")), "view" if name in VIEWS else "table", f"s3://w/{name}") for name in there
    ]
    return [str(each.name) for each in relations_of(relations, *arguments)]  # type: ignore[arg-type]


def test_the_relations_of_a_source_are_those_made_of_it_alone_and_views_come_first() -> None:
    assert named("shop", ["shop_eu", "shop__eu"]) == [
        "parsed.current_shop__orders", "mirror_shop.orders", "next_mirror_shop.orders", "parsed.parsed_shop__orders",
        "raw_shop.lines", "raw_shop.orders",
    ]  # fmt: skip


def test_of_one_table_there_are_fewer() -> None:
    assert named("shop", [], "lines") == ["raw_shop.lines"]
    assert named("shop", [], "eu__orders") == ["parsed.parsed_shop__eu__orders"]
    assert named("shop__eu") == ["parsed.parsed_shop__eu__orders"]


def test_a_table_of_another_source_whose_name_goes_on_like_this_one_stays() -> None:
    """`remove shop__eu --drop-tables` dropped what was made of `shop.eu__orders`, with its history."""
    there = ["parsed.parsed_shop__eu__orders", "parsed.current_shop__eu__orders", "raw_shop.eu__orders"]
    both = [*there, "parsed.parsed_shop__eu__customers", "raw_shop__eu.customers"]
    for others in (["shop"], []):
        assert named("shop__eu", others, there=both) == ["parsed.parsed_shop__eu__customers", "raw_shop__eu.customers"]
    for others in (["shop__eu"], []):
        assert sorted(named("shop", others, there=both)) == sorted(there)
    assert named("shop__eu", ["shop"], there=there[:2]) == [], "nothing tells whose they are"


def test_what_can_be_of_two_sources_is_not_dropped_with_one() -> None:
    there = ["parsed.parsed_shop__eu__orders", "raw_shop.eu__orders", "raw_shop__eu.orders", "raw_bank.orders"]
    for source in ("shop", "shop__eu"):
        with pytest.raises(LakehouseError, match=r"can be of raw_shop\.eu__orders and of raw_shop__eu\.orders: drop"):
            named(source, there=there)
    assert named("shop", [], "lines", there=[*there, "raw_shop.lines"]) == ["raw_shop.lines"]
    assert named("bank", there=there) == ["raw_bank.orders"]
