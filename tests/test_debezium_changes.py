"""What changes in mid-stream, at a real connector: tables, types, snapshots on demand, values that do not come."""

import json
import time
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from tests.brokers import Topics
from tests.debezium_world import Make, assert_sound, until_equal, until_there

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SIGNALS = (
    "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)", "GRANT ALL ON signals TO PUBLIC",
    "ALTER PUBLICATION lakehouse ADD TABLE signals",
)  # fmt: skip
SNAPSHOT = json.dumps({"type": "incremental", "data-collections": ["public.items"]})


def ops(topics: Topics) -> list[str]:
    return [row["_op"] for row in topics.raw("items")]


@pytest.mark.parametrize(("placeholder", "schemas"), [("__gone__", True), ("hex:ff00ff", False)])
def test_a_value_that_did_not_come_is_known_whatever_stands_for_it(
    debezium: Make, spark: Any, placeholder: str, schemas: bool
) -> None:
    world, topics = debezium(
        given={"unavailable_value": placeholder}, schemas=schemas, unavailable_value_placeholder=placeholder
    )
    world.sql(
        "INSERT INTO items VALUES (1, 'one', 1.50, repeat('y', 9000))", "UPDATE items SET name = 'two'",
        "UPDATE items SET id = 2",
    )  # fmt: skip
    until_equal(world, topics, spark)
    assert [row["_unchanged"] for row in topics.raw("items")] == [None, ["big"], None, ["big"]]
    assert_sound(topics)


def test_a_snapshot_on_demand_lands_between_the_changes_that_go_on(debezium: Make, spark: Any) -> None:
    """Events of its signals are counted in transactions, and no table is declared for them."""
    options = {"signal_data_collection": "public.signals", "incremental_snapshot_chunk_size": "7"}
    rows = "INSERT INTO items SELECT g, 'n', g FROM generate_series(1, 30) AS g"
    world, topics = debezium(before=(*SIGNALS, rows), **options)
    world.sql("UPDATE items SET name = 'm' WHERE id > 20")
    until_equal(world, topics, spark)
    assert ops(topics) == ["r"] * 30 + ["u"] * 10
    world.sql(f"INSERT INTO signals VALUES ('s', 'execute-snapshot', '{SNAPSHOT}')")
    deadline, number = time.monotonic() + 90, 0
    while ops(topics).count("r") < 60:
        number += 1
        world.sql(
            f"UPDATE items SET price = price + {number} WHERE id % 5 = {number % 5}",
            f"INSERT INTO items VALUES ({100 + number})", f"DELETE FROM items WHERE id = {98 + number}",
        )  # fmt: skip
        topics.ingest(spark)
        assert time.monotonic() < deadline, ops(topics)
    world.sql("UPDATE items SET name = 'last' WHERE id = 1")
    until_equal(world, topics, spark)
    assert_sound(topics)


def test_a_table_that_is_altered_goes_on_with_its_declared_columns(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    for number, alteration in enumerate((
        "ADD COLUMN extra text DEFAULT 'x'", "ALTER price TYPE numeric(9, 2)", "ALTER name TYPE varchar(40)",
        "DROP COLUMN extra",
    )):  # fmt: skip
        world.sql(
            f"ALTER TABLE items {alteration}", f"INSERT INTO items VALUES ({10 + number}, 'n', {number}.25)",
            "UPDATE items SET name = name || 'u' WHERE id = 1",
        )  # fmt: skip
        until_equal(world, topics, spark)
    assert ops(topics) == ["r", *["c", "u"] * 4]
    assert_sound(topics)


def test_a_type_that_changes_to_one_that_would_lose_something_parks_its_table_alone(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",), schemas=True)
    world.sql("INSERT INTO accounts VALUES (1, 'x', 10)")
    until_equal(world, topics, spark)
    world.sql(
        "ALTER TABLE items ALTER price TYPE double precision", "INSERT INTO items VALUES (2, 'two', 0.1)",
        "INSERT INTO accounts VALUES (2, 'y', 20)",
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (aside := topics.ingest(spark).aside) or len(topics.raw("accounts")) < 2:
        assert time.monotonic() < deadline
    assert [(table.name, table.state) for table in aside] == [("items", "parked")] and "price" in str(aside[0].reason)
    assert ops(topics) == ["r"], "nothing of another type has landed"


def test_a_topic_that_is_not_there_yet_is_told_and_lands_with_its_first_row(debezium: Make, spark: Any) -> None:
    """The connector makes a topic with the first event of its table."""
    world, topics = debezium()
    with pytest.raises(LakehouseError, match=r"topic .*\.public\.accounts: it does not exist"):
        topics.ingest(spark)
    world.sql("INSERT INTO items VALUES (1, 'one', 1.50)")
    until_there(world, topics)
    [aside] = topics.ingest(spark).aside
    assert aside.name == "accounts" and "does not exist" in str(aside.reason)
    world.sql("INSERT INTO accounts VALUES (1, 'x', 10)")
    until_equal(world, topics, spark)
    assert topics.ingest(spark).aside == ()
    assert_sound(topics)
