"""Envelopes whose transactions no topic tells: each partition lands in its order, and nothing is said of others."""

import json
from typing import Any

import pytest
from debezium_recorded import ITEMS, PAIRS, Message, read, recorded, settings, table

from lakehouse.errors import LakehouseError

ITEMS_TABLE, PAIRS_TABLE = table("items", ITEMS), table("pairs", PAIRS, ("a", "b"))
ALONE: Any = {"transactions": None}


def untold(messages: list[Message]) -> list[Message]:
    """What a connector without provide.transaction.metadata had written."""
    found = []
    for message in messages:
        if message["topic"] != "transaction" and message["value"] is not None:
            message = message | {"value": json.dumps(json.loads(message["value"]) | {"transaction": None})}
        found.append(message)
    return [message for message in found if message["topic"] != "transaction"]


MESSAGES = untold(recorded("plain"))


def test_each_read_has_a_number_and_its_rows_stand_as_their_partitions_do() -> None:
    first = read(MESSAGES, ITEMS_TABLE, PAIRS_TABLE, given=settings(**ALONE), ends={"public.items": 30})
    again = read(MESSAGES, ITEMS_TABLE, PAIRS_TABLE, given=settings(**ALONE), before=first.position)
    for found, number in ((first, 1), (again, 2)):
        assert {r["_commit_lsn"] for rows in found.rows.values() for r in rows} == {number}
        for rows in found.rows.values():
            assert [r["_offset"] for r in rows] == sorted(r["_offset"] for r in rows)
    rows = [*first.rows["items"], *again.rows["items"]]
    told = read(recorded("plain"), ITEMS_TABLE, PAIRS_TABLE).rows["items"]
    assert {(r["_offset"], r["_op"], r["id"], r["_xid"]) for r in rows} == {
        (r["_offset"], r["_op"], r["id"], r["_xid"]) for r in told
    }
    assert len(rows) == len(told) and again.position.bound == 3 and again.position.end == 0
    assert again.position.text.endswith("@0:0<3") and "transaction" not in again.position.text
    assert any("a cut is a state of each table alone" in says for says in first.noticed.warnings)


def test_a_key_change_in_one_read_knows_its_former_key() -> None:
    rows = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE)).rows["items"]
    create = next(r for r in rows if r["_op"] == "c" and r["id"] == 30)
    assert create["_old_key"] == '{"id":"3"}' and create["_unchanged"] == ["big"] and create["big"] is None


def test_the_half_of_a_key_change_that_lacks_a_value_is_a_dead_letter() -> None:
    """Its placeholder would have landed as the value."""
    [half] = [
        m["offset"] for m in MESSAGES
        if m["topic"] == "public.items" and m["value"] and json.loads(m["value"])["op"] == "c"
        and json.loads(m["value"])["after"]["id"] == 30
    ]  # fmt: skip
    first = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), ends={"public.items": half})
    found = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), before=first.position)
    assert found.unread["items"] == [
        f"0/{half}: it lacks big, and the delete of its former key came apart from it"
    ]  # fmt: skip
    assert not any(r["_offset"] == half for r in found.rows["items"])


def test_a_truncate_among_several_partitions_parks_the_table() -> None:
    other = {**next(m for m in MESSAGES if m["topic"] == "public.items"), "partition": 1, "offset": 0}
    found = read([*MESSAGES, other], ITEMS_TABLE, PAIRS_TABLE, given=settings(**ALONE))
    assert "a TRUNCATE came in a topic of several partitions" in found.parked["items"]
    assert len(found.rows["pairs"]) == 4 and "pairs" not in found.parked


def test_transactions_that_are_told_are_not_passed_over() -> None:
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES__SHOP__TRANSACTIONS"):
        read(recorded("plain"), ITEMS_TABLE, given=settings(**ALONE))
    with pytest.raises(LakehouseError, match="leave out `transactions` of the source"):
        read(MESSAGES, ITEMS_TABLE)
