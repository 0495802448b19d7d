"""What the raw table contract promises, each sentence against a recorded or written stream."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pgoutput_encode import begin, commit, delete, insert, message, relation, truncate, update
from pgoutput_support import XID_REFERENCE, Row, decode, load_fixture, rows_of

from ingestion.schema.changes import META_SCHEMA
from ingestion.sources.postgres.pgoutput import Decoder

TABLE = relation(1, [("id", True), ("v", False)])


def rows_of_fixture(name: str, table: str = "t") -> list[Row]:
    fixture = load_fixture(name)
    return [row for row in rows_of(decode(fixture.messages, fixture.keys)) if row["table"][1] == table]


def rows_in_transaction(*messages: bytes, keys: Any = None) -> list[Row]:
    return rows_of(decode([begin(7), *messages, commit(7)], keys))


def brief(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["_seq"], *row["values"].values()) for row in rows]


@pytest.mark.parametrize(
    "name",
    [
        "changes",
        "key_change",
        "full",
        "toast",
        "toast_full",
        "toast_key",
        "truncate",
        "copy",
        "savepoints",
        "interleaved",
        "partitioned",
        "own_types",
    ],
)
def test_replaying_the_rows_gives_what_the_table_held(name: str) -> None:
    fixture = load_fixture(name)
    rows = rows_of(decode(fixture.messages, fixture.keys))
    rows.sort(key=lambda row: (row["_commit_lsn"], row["_seq"]))
    for table, expected in fixture.state.items():
        if table == ("s", "k"):  # no key: nothing to replay by
            continue
        held = replay([row for row in rows if row["table"] == table], KEYS.get((name, table[1]), ("id",)))
        assert sorted(map(repr, held)) == sorted(map(repr, expected)), table


KEYS = {("key_change", "c"): ("b", "a"), ("toast_key", "t"): ("a", "b"), ("partitioned", "p"): ("id", "d")}


def replay(rows: list[Row], key: tuple[str, ...]) -> list[dict[str, str | None]]:
    """Current state from raw rows, filling unchanged values as the parsed layer does."""
    import json

    live: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    last: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    for row in rows:
        place = tuple(row["values"].get(name) for name in key)
        if row["_op"] == "t":
            live.clear()
        elif row["_op"] == "d":
            live.pop(place)
        else:
            old = json.loads(row["_old_key"]) if row["_old_key"] else None
            before = last.get(tuple(old[name] for name in key) if old else place, {})
            filled = {name: before[name] for name in row["_unchanged"] or ()}
            live[place] = last[place] = row["values"] | filled
    return list(live.values())


def test_an_update_without_a_key_change_is_one_row() -> None:
    rows = rows_in_transaction(TABLE, update(1, ["1", "b"]))
    assert brief(rows) == [("u", 0, "1", "b")]


def test_a_key_change_is_a_delete_of_the_old_key_and_a_create_of_the_new() -> None:
    rows = rows_in_transaction(TABLE, insert(1, ["0", "z"]), update(1, ["2", "b"], ["1", None]))
    assert brief(rows) == [("c", 0, "0", "z"), ("d", 2, "1", None), ("c", 3, "2", "b")]
    assert [row["_old_key"] for row in rows] == [None, None, '{"id":"1"}']


def test_an_old_key_that_is_the_new_key_is_no_key_change() -> None:
    """Postgres sends the old key also when a part of it is stored out of line; a delete here would lose the row."""
    rows = rows_in_transaction(TABLE, update(1, [..., "b"], ["1", None]))
    assert brief(rows) == [("u", 0, "1", "b")]
    assert rows[0]["_unchanged"] is None


def test_recorded_update_of_a_row_with_a_toasted_key_is_no_key_change() -> None:
    rows = rows_of_fixture("toast_key")
    assert [row["_op"] for row in rows] == ["c", "c", "u", "u", "d", "c", "d", "c", "d"]
    assert all(row["values"]["a"] for row in rows)


def test_full_identity_needs_the_declared_key_to_see_a_key_change() -> None:
    full = relation(1, [("id", True), ("v", True)], "f")
    change = update(1, ["2", "a"], ["1", "a"], b"O")
    assert brief(rows_in_transaction(full, change)) == [("u", 0, "2", "a")]
    known = rows_in_transaction(full, change, keys={1: ("id",)})
    assert brief(known) == [("d", 0, "1", "a"), ("c", 1, "2", "a")]


def test_a_renamed_relation_keeps_its_key() -> None:
    stream = [
        begin(1),
        relation(1, [("id", True), ("v", True)], "f", name="renamed"),
        update(1, ["2", "a"], ["1", "a"], b"O"),
    ]
    batches = Decoder(XID_REFERENCE, lambda _: ("id",)).feed(pa.array([*stream, commit(1)], pa.binary()))
    assert brief(rows_of(batches)) == [("d", 0, "1", "a"), ("c", 1, "2", "a")]


def test_a_declared_key_within_a_wider_replica_identity_decides() -> None:
    wide = relation(1, [("id", True), ("v", True)], "i")
    rows = rows_in_transaction(wide, update(1, ["1", "b"], ["1", "a"]), keys={1: ("id",)})
    assert brief(rows) == [("u", 0, "1", "b")]


def test_a_declared_key_outside_the_replica_identity_cannot_decide() -> None:
    rows = rows_in_transaction(TABLE, update(1, ["2", "b"], ["1", None]), keys={1: ("v",)})
    assert [row["_op"] for row in rows] == ["d", "c"]
    assert rows[1]["_old_key"] == '{"id":"1"}'


def test_a_delete_carries_the_key_or_under_full_everything() -> None:
    assert next(r["values"] for r in rows_of_fixture("changes") if r["_op"] == "d") == {"id": "3", "t": None, "n": None}
    deleted = [r["values"] for r in rows_of_fixture("full") if r["_op"] == "d"]
    assert {"id": "2", "t": "x", "n": "2.00"} in deleted


def test_unchanged_toast_is_null_and_named() -> None:
    touched = next(row for row in rows_of_fixture("toast") if row["_op"] == "u")
    assert touched["values"] == {"id": "1", "small": "a!", "big": None, "other": None}
    assert touched["_unchanged"] == ["big", "other"]


def test_unchanged_toast_stays_named_on_a_key_change() -> None:
    created = next(row for row in rows_of_fixture("toast") if row["_old_key"] == '{"id":"1"}')
    assert (created["_op"], created["_unchanged"], created["values"]["big"]) == ("c", ["big", "other"], None)


def test_unchanged_toast_under_full_comes_from_the_old_tuple() -> None:
    rows = rows_of_fixture("toast_full")
    assert all(row["_unchanged"] is None for row in rows)
    big = rows[0]["values"]["big"]
    assert big and [row["values"]["big"] for row in rows if row["_old_key"] == '{"id":"1"}'] == [big + "new"]


def test_truncate_is_a_row_of_every_relation_it_names() -> None:
    other = relation(2, [("k", True)], name="other")
    rows = rows_in_transaction(TABLE, other, insert(1, ["1", "a"]), truncate(1, 2), insert(2, ["5"]))
    assert [(row["table"][1], *brief([row])[0]) for row in rows] == [
        ("t", "c", 0, "1", "a"),
        ("t", "t", 2, None, None),
        ("other", "t", 2, None),
        ("other", "c", 4, "5"),
    ]


def test_places_count_every_change_and_message_of_the_transaction() -> None:
    rows = rows_in_transaction(TABLE, message(), insert(1, ["1", "a"]), TABLE, truncate(), delete(1, ["1", None]))
    assert [row["_seq"] for row in rows] == [2, 6]
    assert [row["_seq"] for row in rows_of_fixture("messages")] == [2, 4, 8]


def test_a_message_outside_of_a_transaction_changes_nothing() -> None:
    stream = [
        begin(1),
        TABLE,
        insert(1, ["1", "a"]),
        commit(1),
        message(False),
        begin(2),
        insert(1, ["2", "b"]),
        commit(2),
    ]
    assert [(row["_commit_lsn"], row["_seq"]) for row in rows_of(decode(stream))] == [(1, 0), (2, 0)]


def test_places_go_on_across_feeds_in_the_middle_of_a_transaction() -> None:
    stream = [begin(1), TABLE, *[insert(1, [str(i), None]) for i in range(9)], commit(1)]
    assert [row["_seq"] for row in rows_of(decode(stream, cuts=[4, 5, 9]))] == list(range(0, 18, 2))


def test_commit_time_and_widened_xid() -> None:
    (row,) = rows_of(decode([begin(9, 1_000_001, 20), TABLE, insert(1, ["1", None]), commit(9)]))
    assert row["_committed_at"] == datetime(2000, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
    assert row["_xid"] == 5 * 2**32 + 20


@pytest.mark.parametrize(
    ("reference", "xid"),
    [(5 * 2**32 + 17, 5 * 2**32 + 17), (5 * 2**32 + 17, 5 * 2**32 + 20), (5 * 2**32 + 17, 5 * 2**32 - 3),
     (5 * 2**32 - 1, 5 * 2**32 + 3), (5 * 2**32 + 17, 5 * 2**32 + 17 - 2**31), (800, 3), (3, 800), (0, 2**31 + 5)],
)  # fmt: skip
def test_the_reference_may_be_a_little_older_or_younger_than_the_transaction(reference: int, xid: int) -> None:
    """Its reading and the end of the stream are two moments: a transaction may begin and commit between them."""
    messages = [begin(9, 0, xid % 2**32), TABLE, insert(1, ["1", None]), commit(9)]
    (batch,) = Decoder(reference).feed(pa.array(messages, pa.binary()))
    assert batch.meta.column("_xid").to_pylist() == [xid]


def test_the_decoder_knows_its_last_complete_transaction() -> None:
    decoder = Decoder(XID_REFERENCE)
    assert (decoder.transactions, decoder.in_transaction, decoder.last_commit_lsn) == (0, False, None)
    decoder.feed(pa.array([begin(5, 1), commit(5, 1), begin(6), TABLE, insert(1, ["1", None])], pa.binary()))
    assert (decoder.transactions, decoder.in_transaction) == (1, True)
    assert (decoder.last_commit_lsn, decoder.last_commit_end_lsn) == (5, 13)
    assert decoder.last_commit_at == 946_684_800_000_001
    decoder.feed(pa.array([commit(6)], pa.binary()))
    assert (decoder.transactions, decoder.in_transaction, decoder.last_commit_lsn) == (2, False, 6)


def test_a_relation_that_changes_within_a_transaction_gives_a_batch_per_version() -> None:
    wider = relation(1, [("id", True), ("v", False), ("w", False)])
    batches = decode([begin(1), TABLE, insert(1, ["1", "a"]), TABLE, insert(1, ["2", "b"]), wider,
                      insert(1, ["3", "c", "d"]), commit(1)])  # fmt: skip
    assert [batch.values.column_names for batch in batches] == [["id", "v"], ["id", "v", "w"]]
    assert [batch.values.num_rows for batch in batches] == [2, 1]


def test_tables_swapped_by_rename_keep_the_order_of_each_name() -> None:
    rows = [row for row in rows_of_fixture("ddl") if row["_op"] == "c"]
    assert [row["values"]["id"] for row in rows] == ["1", "2", "3", "4", "1", "7"]


def test_a_column_may_be_named_like_a_metadata_column() -> None:
    (row, *_) = rows_of_fixture("names", "Order")
    assert (row["values"]["_op"], row["_op"]) == ("mine", "c")


def test_every_batch_has_the_metadata_schema() -> None:
    for name in ("toast", "truncate", "names"):
        for batch in decode(load_fixture(name).messages):
            assert batch.meta.schema.equals(META_SCHEMA)
            assert set(batch.values.schema.types) <= {pa.string()}
