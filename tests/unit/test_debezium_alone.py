"""Envelopes whose transactions no topic tells: each partition lands in its order, and nothing is said of others."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from debezium_recorded import ITEMS, PAIRS, Read, read, recorded, settings, shape, table, untold

from ingestion.schema.problem import TableProblem
from ingestion.sources.debezium import gathered
from ingestion.sources.debezium.records import EnvelopeRecords
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

ITEMS_TABLE, PAIRS_TABLE = table("items", ITEMS), table("pairs", PAIRS, ("a", "b"))
ALONE: Any = {"transactions": None}


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
    """Its placeholder would have landed as the value. What comes within a moment is not taken apart."""
    [half] = [
        m["offset"] for m in MESSAGES
        if m["topic"] == "public.items" and m["value"] and json.loads(m["value"])["op"] == "c"
        and json.loads(m["value"])["after"]["id"] == 30
    ]  # fmt: skip
    ends = {"public.items": half}
    first = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), ends=ends, now=came(half - 2))
    assert first.position.by_partition["public.items", 0] == half - 2, "the delete waits, with its tombstone"
    rows = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), before=first.position).rows["items"]
    assert [(r["_op"], r["_old_key"]) for r in rows[:2]] == [("d", None), ("c", '{"id":"3"}')]
    first = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), ends=ends)
    found = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), before=first.position)
    assert found.unread["items"] == [
        f"0/{half}: it lacks big, and the delete of its former key came apart from it, or cannot be read"
    ]  # fmt: skip
    assert not any(r["_offset"] == half for r in found.rows["items"])


def came(offset: int) -> datetime:
    """When a message of the items came, and a moment later."""
    [at] = [m["at"] for m in MESSAGES if m["topic"] == "public.items" and m["offset"] == offset]
    return datetime.fromtimestamp(at / 1000 + 0.5, UTC)


def test_a_truncate_among_several_partitions_parks_the_table() -> None:
    other = {**next(m for m in MESSAGES if m["topic"] == "public.items"), "partition": 1, "offset": 0}
    found = read([*MESSAGES, other], ITEMS_TABLE, PAIRS_TABLE, given=settings(**ALONE))
    assert "a TRUNCATE came in a topic of several partitions" in found.parked["items"]
    assert len(found.rows["pairs"]) == 4 and "pairs" not in found.parked


def resumed(found: Read, of: RawTable, begin: RawTable | None = None) -> list[Any]:
    """The rows that land of what was kept of a table, as it is declared `begin` now."""
    now = shape(begin or of, settings(**ALONE))
    records = EnvelopeRecords({now.oid: now}, "shop", {now.oid: of.name})
    landed: list[Any] = []
    for _, kept in found.kept:
        seq = pa.array([2 * place for place in kept.column("place").to_pylist()], pa.int64())
        landed += records.decode(kept.column("relation")[0].as_py(), kept.append_column("seq", seq), {}, ())
    return landed


def test_a_truncate_among_several_partitions_parks_the_table_also_when_it_is_resumed() -> None:
    """It landed at its own offset: rows before it stayed, and rows after it went."""
    other = {**next(m for m in MESSAGES if m["topic"] == "public.items"), "partition": 1, "offset": 0}
    paused = read([*MESSAGES, other], ITEMS_TABLE, given=settings(**ALONE), paused={"items"})
    assert not paused.parked and not paused.rows
    with pytest.raises(TableProblem, match=r"source 'shop', table 'items': a TRUNCATE came.*topic of another name"):
        resumed(paused, ITEMS_TABLE)
    alone = read(MESSAGES, ITEMS_TABLE, given=settings(**ALONE), paused={"items"})
    assert any("t" in batch.meta["_op"].to_pylist() for batch in resumed(alone, ITEMS_TABLE)), "one partition tells it"


def test_updates_without_the_key_in_their_events_park_the_table_also_when_it_is_resumed() -> None:
    """An update of a changed key landed, and the row of the former key stayed."""
    messages = [m for m in MESSAGES if m["topic"] == "public.items"]
    of = table("items", ITEMS, ("id", "name"))
    assert "key column name is not in its events' key" in read(messages, of, given=settings(**ALONE)).parked["items"]
    paused = read(messages, of, given=settings(**ALONE), paused={"items"})
    with pytest.raises(TableProblem, match=r"key column name is not in its events' key \(id\)"):
        resumed(paused, of)
    assert resumed(paused, of, begin=ITEMS_TABLE), "the declared key was corrected"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_key_that_loses_a_column_in_a_read_parks_the_table(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """The first update of each read was looked at alone, so a change of such a key left the row of the former one."""
    if not at_once:
        monkeypatch.setattr(gathered, "scanned", lambda *_, **__: None)
    of, last = table("items", ITEMS, ("id", "name")), max(m["offset"] for m in MESSAGES if m["value"])

    def keyed(message: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {"id": 1} if message["offset"] >= last - 3 else {"id": 1, "name": "x"}
        value = json.loads(message["value"])
        update = {"op": "u", "before": None, "after": value["after"] or value["before"]}
        return message | {"key": json.dumps(told), "value": json.dumps(value | update)}

    messages = [
        keyed(m) for m in MESSAGES if m["topic"] == "public.items" and m["value"] and '"op":"t"' not in m["value"]
    ]
    assert (
        "key column name is not in its events' key (id)" in read(messages, of, given=settings(**ALONE)).parked["items"]
    )
    whole = [m for m in messages if m["offset"] < last - 3]
    assert not read(whole, of, given=settings(**ALONE)).parked


def test_transactions_that_are_told_are_not_passed_over() -> None:
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SOURCES__SHOP__TRANSACTIONS"):
        read(recorded("plain"), ITEMS_TABLE, given=settings(**ALONE))
    with pytest.raises(LakehouseError, match="leave out `transactions` of the source"):
        read(MESSAGES, ITEMS_TABLE)
