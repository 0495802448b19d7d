"""Topics that go on where a slot has got to: what it has brought does not land again, nothing else is missing."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from debezium_recorded import ITEMS, PAIRS, Message, RecordedReader, read, recorded, settings, shape, table

from ingestion.schema.changes import Relation, RelationColumn
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import OfAnotherKind
from ingestion.sources.debezium.handover import _Seen, position_after
from ingestion.sources.debezium.message.columns import Modes
from ingestion.sources.debezium.records import EnvelopeRecords
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.kafka.reading import Range
from ingestion.sources.postgres.pgoutput.relations import encode_relation
from ingestion.sources.postgres.records import PgoutputRecords
from lakehouse.errors import LakehouseError
from tests.marks import slow

PLAIN = recorded("plain")
TABLES = table("items", ITEMS), table("pairs", PAIRS, ("a", "b"))
WHOLE = read(PLAIN, *TABLES)
LATE = datetime(2027, 1, 1, tzinfo=UTC)
NUMBERS = sorted({row["_commit_lsn"] for rows in WHOLE.rows.values() for row in rows if row["_op"] != "r"})


def reader_of(messages: list[Message], now: datetime = WHOLE.noticed.reached.at) -> RecordedReader:  # type: ignore
    ends: dict[tuple[str, int], int] = {}
    starts: dict[tuple[str, int], int] = {}
    for message in messages:
        of = message["topic"], message["partition"]
        ends[of] = max(ends.get(of, 0), message["offset"] + 1)
        starts[of] = min(starts.get(of, message["offset"]), message["offset"])
    shapes = {t.raw.topic: shape(t, settings()) for t in TABLES}
    ranges = tuple(Range(*of, starts[of], end, 0) for of, end in sorted(ends.items()) if of[0] in shapes)
    told = Range("transaction", 0, starts.get(("transaction", 0), 0), ends.get(("transaction", 0), 0), 0)
    return RecordedReader(
        source="shop", properties={}, histories={}, shapes=shapes, ranges=ranges, is_told=True, told=told,
        before=TransactionOffsets(), is_whole=True, now=now, exactly_once=True,
        batch_bytes=1 << 20, recording=messages,
    )  # fmt: skip


def after(messages: list[Message], landed: int, recent: frozenset[int] = frozenset()) -> TransactionOffsets:
    reader = reader_of(messages)
    return position_after(reader, {(r.topic, r.partition): r.first for r in reader.ranges}, landed, recent)


def changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All but rows of snapshots: an incremental one, which adds nothing, is left out up to where the topics go on."""
    assert not {row["_offset"] for row in rows if row["_op"] == "r"} & {0, 2}, "the connector's own does not land"
    found = [row for row in rows if row["_op"] != "r"]
    return sorted(found, key=lambda row: (row["_commit_lsn"], row["_seq"]))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("beyond", [0, 1])
def test_topics_go_on_exactly_where_a_slot_has_got_to(number: int, beyond: int) -> None:
    """The slot's position is at the end of a commit's record, or behind it."""
    found = read(PLAIN, *TABLES, before=after(PLAIN, number + beyond), now=LATE)
    for name, rows in WHOLE.rows.items():
        expected = [row for row in rows if row["_op"] != "r" and row["_commit_lsn"] > number]
        assert changes(found.rows.get(name, [])) == changes(expected)
    assert not found.unread and found.position.end >= WHOLE.position.end


@pytest.mark.parametrize("number", NUMBERS[:-1:3])
def test_what_comes_later_of_what_has_landed_is_left_out(number: int) -> None:
    """The connector is behind the slot: transactions that the slot has brought come after the move."""
    early = min(m["at"] for m in PLAIN if '"END"' in (m["value"] or ""))
    cut = sorted(m["at"] for m in PLAIN if m["at"] >= early)
    for at in cut[:: max(1, len(cut) // 12)]:
        seen = [m for m in PLAIN if m["at"] <= at]
        before = after(seen, number)
        found = read(PLAIN, *TABLES, before=before, now=LATE)
        for name, rows in WHOLE.rows.items():
            expected = [row for row in rows if row["_op"] != "r" and row["_commit_lsn"] > number]
            assert changes(found.rows.get(name, [])) == changes(expected)


def test_a_commit_whose_record_ends_behind_the_slots_position_is_known_by_its_xid() -> None:
    end = NUMBERS[3]
    xid = next(row["_xid"] for rows in WHOLE.rows.values() for row in rows if row["_commit_lsn"] == end)
    assert after(PLAIN, end - 8).end == end - 8
    assert after(PLAIN, end - 8, frozenset({xid})).end == end


def test_topics_that_do_not_reach_back_to_the_slot_are_refused() -> None:
    first = NUMBERS[0]
    with pytest.raises(LakehouseError, match="snapshot is newer than what the lake has read by the slot"):
        after(PLAIN, 1)
    later = [m for m in PLAIN if m["topic"] == "transaction" or m["offset"] > 1 or m["topic"] != "public.items"]
    with pytest.raises(LakehouseError, match="nothing in its topics is as old as"):
        after([m for m in later if '"op":"r"' not in (m["value"] or "").replace(" ", "")], first - 200_000)
    rows = [m for m in PLAIN if m["topic"] == "public.items" and '"r"' in (m["value"] or "")][:1]
    with pytest.raises(LakehouseError, match="snapshot is not over, or nothing has come yet"):
        after(rows, first + 1)
    with pytest.raises(LakehouseError, match="its transactions are not told"):
        position_after(replace(reader_of(PLAIN), told=None), {}, first, ())


def test_records_of_the_former_kind_are_known_as_such() -> None:
    """After a move the dead letters of before are there still, and must not stop the replay of those after it."""
    relation = Relation(7, "public", "items", "d", (RelationColumn("id", 20, -1, True),))
    with pytest.raises(OfAnotherKind):
        EnvelopeRecords().relation(encode_relation(relation))
    with pytest.raises(OfAnotherKind):
        PgoutputRecords().relation(Shape("t.public.items", 7, "public.items", (), ("id",), Modes()).encoded)
    assert PgoutputRecords().relation(encode_relation(relation)) == relation


@pytest.mark.parametrize("size", [slow(1), slow(2), 5])
def test_what_is_looked_at_in_columns_is_what_is_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A topic's long past is passed a batch at a time, rows of snapshots among it."""
    taken: list[bool] = []
    at_once = _Seen._all_landed
    whole = RecordedReader.messages

    def sliced(self: RecordedReader, ranges: Any) -> Any:
        for topic, messages in whole(self, ranges):
            yield from ((topic, messages.slice(first, size)) for first in range(0, messages.num_rows, size))

    def looked(self: _Seen, topic: str, messages: Any) -> bool:
        taken.append(at_once(self, topic, messages))
        return taken[-1]

    monkeypatch.setattr(RecordedReader, "messages", sliced)
    for number in NUMBERS:
        monkeypatch.setattr(_Seen, "_all_landed", looked)
        found = after(PLAIN, number)
        monkeypatch.setattr(_Seen, "_all_landed", lambda *_: False)
        assert replace(after(PLAIN, number), at=0) == replace(found, at=0)
    assert sum(taken) > len(taken) // 3, "the rest are the first that are left, and what begins a snapshot"
    monkeypatch.setattr(_Seen, "_all_landed", looked)
    with pytest.raises(LakehouseError, match="snapshot is newer than what the lake has read by the slot"):
        after(PLAIN, 1)


def without_ends(messages: list[Message], number: int) -> list[Message]:
    """What there is when the transaction topic has forgotten all up to the END at that position."""
    [last] = [m["at"] for m in messages if '"END"' in (m["value"] or "") and f':{number}"' in m["value"]]
    return [
        m | {"at": m["at"] - (86_400_000 if m["at"] <= last else 0)}
        for m in messages
        if m["topic"] != "transaction" or m["at"] > last
    ]


@pytest.mark.parametrize("forgotten", [0, 3, 6])
@pytest.mark.parametrize("further", [2, 3])
def test_topics_whose_transaction_topic_keeps_less_go_on_where_a_slot_has_got_to(forgotten: int, further: int) -> None:
    """Data topics are compacted, or keep months; a table that has not changed for long has no END there at all."""
    number = NUMBERS[forgotten + further]
    messages = without_ends(PLAIN, NUMBERS[forgotten])
    found = read(messages, *TABLES, before=after(messages, number), now=LATE)
    for name, rows in WHOLE.rows.items():
        expected = [row for row in rows if row["_op"] != "r" and row["_commit_lsn"] > number]
        there = changes(found.rows.get(name, []))
        assert [without_at(row) for row in there] == [without_at(row) for row in changes(expected)]
    quiet = [m for m in messages if m["topic"] != "public.pairs" or m["at"] < PLAIN[0]["at"]]
    position = after(quiet, number).by_partition
    if pairs := [m["offset"] for m in quiet if m["topic"] == "public.pairs" and m["value"]]:
        assert position["public.pairs", 0] > max(pairs), "nothing of a table that has not changed since is read again"


def without_at(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_committed_at"}


def test_what_cannot_be_read_before_what_has_landed_is_not_read_again() -> None:
    number = NUMBERS[5]
    poison = next(m for m in PLAIN if m["topic"] == "public.items" and m["offset"] > 2)
    messages = [m | {"value": "{"} if m is poison else m for m in PLAIN]
    assert after(messages, number).by_partition == after(PLAIN, number).by_partition
    [newest] = [m for m in PLAIN if m["topic"] == "public.items"][-1:]
    messages = [m | {"value": "{"} if m is newest else m for m in PLAIN]
    assert after(messages, NUMBERS[-1]).by_partition["public.items", 0] <= newest["offset"]


def test_topics_that_have_lost_what_the_slot_has_not_brought_are_refused() -> None:
    """The follower stood still for days, and the data topic keeps one; or it is compacted."""
    number, now = NUMBERS[2], LATE
    left = [row for row in WHOLE.rows["items"] if row["_commit_lsn"] > number and row["_op"] in "cu"]
    gone = {left[0]["_offset"]}
    messages = [m for m in PLAIN if m["topic"] != "public.items" or m["offset"] not in gone]
    for some in (messages, [m for m in messages if m["topic"] != "public.items" or m["offset"] > min(gone)]):
        reader = reader_of(some, now)
        starts = {(r.topic, r.partition): r.first for r in reader.ranges}
        with pytest.raises(LakehouseError, match=r"events of public\.items are in its topics of transaction"):
            position_after(reader, starts, number, ())
    whole = reader_of(PLAIN, now)
    position_after(whole, {(r.topic, r.partition): r.first for r in whole.ranges}, number, ())


def test_topics_of_a_database_before_a_restore_are_refused() -> None:
    """Its positions were higher: its changes would land once more, beneath those of the database that is there now."""
    before = [
        m | {"value": json.dumps(e | {"id": f"{e['id'].partition(':')[0]}:{int(e['id'].partition(':')[2]) + 10**9}",
                                      "ts_ms": e["ts_ms"] - 86_400_000}), "offset": m["offset"] - 1000}
        for m in PLAIN if m["topic"] == "transaction" for e in [json.loads(m["value"])]
    ]  # fmt: skip
    later = [m | {"offset": m["offset"] + 1000} for m in [*before, *(m for m in PLAIN if m["topic"] == "transaction")]]
    with pytest.raises(LakehouseError, match="transactions of a database that was restored"):
        after([*later, *(m for m in PLAIN if m["topic"] != "transaction")], NUMBERS[2])
