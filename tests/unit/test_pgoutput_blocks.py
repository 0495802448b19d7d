"""Blocks of unfinished transactions as servers have been seen to send them, where that is not what they promise."""

import struct
from collections.abc import Collection

import pyarrow as pa
from pgoutput_encode import begin, commit, insert, relation
from pgoutput_support import XID_REFERENCE, rows_of

from ingestion.sources.postgres.pgoutput import Decoder, whole_transactions

TOP, SUB = 700, 701
TWO, THREE = [("id", True), ("v", False)], [("id", True), ("more", False), ("v", False)]


def in_block(xid: int, message: bytes) -> bytes:
    return message[:1] + struct.pack(">I", xid) + message[1:]


def block(top: int, *messages: bytes) -> list[bytes]:
    return [b"S" + struct.pack(">IB", top, 0), *messages, b"E"]


def stream_commit(top: int, lsn: int) -> bytes:
    return b"c" + struct.pack(">I", top) + commit(lsn)[1:]


def abort(top: int, sub: int) -> bytes:
    return b"A" + struct.pack(">II", top, sub)


def whole(messages: list[bytes], aborted: Collection[int] = ()) -> list[bytes]:
    asked = whole_transactions([pa.array(messages, pa.binary())], lambda xids: set(xids) & set(aborted))
    return [message.as_py() for piece in asked for message in piece]


def values(messages: list[bytes]) -> list[dict[str, str | None]]:
    decoder = Decoder(XID_REFERENCE)
    return [row["values"] for row in rows_of(decoder.feed(pa.array(messages, pa.binary())))]


def test_an_abort_of_what_was_never_sent_is_passed_over() -> None:
    """Postgres 18 announces subtransactions of a transaction that it has given up before it sent anything of it."""
    normal = [begin(10), relation(1, TWO), insert(1, ["1", "a"]), commit(10)]
    announced = [abort(TOP, SUB), *normal, abort(TOP, SUB)]
    assert whole(announced) == normal
    assert values(announced) == [{"id": "1", "v": "a"}], "nor does it ask whether anybody wanted blocks"


def test_rows_of_a_subtransaction_whose_abort_was_not_announced_are_left_out() -> None:
    """A subtransaction that was spilled before it was sent is not known as sent: its abort is kept from the reader."""
    sent = [
        *block(TOP, in_block(TOP, relation(1, TWO)), in_block(TOP, insert(1, ["1", "kept"]))),
        *block(TOP, in_block(SUB, insert(1, ["2", "gone"])), in_block(SUB + 1, insert(1, ["3", "released"]))),
        *block(TOP, in_block(TOP, insert(1, ["4", "kept"]))),
        stream_commit(TOP, 20),
    ]
    assert [row["id"] for row in values(whole(sent, {SUB}))] == ["1", "3", "4"]


def test_only_subtransactions_without_an_announced_abort_are_asked_for() -> None:
    asked: list[set[int]] = []

    def aborted(xids: Collection[int]) -> Collection[int]:
        asked.append(set(xids))
        return ()

    one = block(TOP, in_block(TOP, relation(1, TWO)), in_block(SUB, insert(1, ["1", "a"])))
    two = block(TOP, in_block(SUB + 1, insert(1, ["2", "b"])), in_block(TOP, insert(1, ["3", "c"])))
    plain = block(9, in_block(9, relation(1, TWO)), in_block(9, insert(1, ["4", "d"])))
    messages = [*one, abort(TOP, SUB), *two, stream_commit(TOP, 20), *plain, stream_commit(9, 30)]
    got = [m.as_py() for piece in whole_transactions([pa.array(messages, pa.binary())], aborted) for m in piece]
    assert [row["id"] for row in values(got)] == ["2", "3", "4"]
    assert asked == [{SUB + 1}]


def test_a_description_that_was_held_does_not_replace_one_that_came_after_it() -> None:
    """ROLLBACK TO lets go of the table, another session alters it, and then the first transaction commits."""
    early = block(TOP, in_block(SUB, relation(1, TWO)), in_block(SUB, insert(1, ["1", "gone"])))
    altered = [begin(10), relation(1, THREE), insert(1, ["2", "m", "a"]), commit(10)]
    late = block(TOP, in_block(TOP, relation(2, TWO, name="other")), in_block(TOP, insert(2, ["9", "z"])))
    after = [begin(30), insert(1, ["3", "n", "b"]), commit(30)]
    got = whole([*early, abort(TOP, SUB), *altered, *late, stream_commit(TOP, 20), *after])
    assert sorted(values(got), key=lambda row: row["id"] or "") == [
        {"id": "2", "more": "m", "v": "a"},
        {"id": "3", "more": "n", "v": "b"},
        {"id": "9", "v": "z"},
    ]


def test_the_later_of_two_descriptions_that_were_held_counts() -> None:
    first = block(TOP, in_block(TOP, relation(1, TWO)), in_block(TOP, insert(1, ["1", "a"])))
    second = block(9, in_block(9, relation(1, THREE)), in_block(9, insert(1, ["2", "m", "b"])))
    after = [begin(40), insert(1, ["3", "n", "c"]), commit(40)]
    got = values(whole([*first, *second, stream_commit(9, 20), stream_commit(TOP, 30), *after]))
    assert [row["id"] for row in got] == ["2", "1", "3"]
    assert got[-1] == {"id": "3", "more": "n", "v": "c"}


def test_a_transaction_of_which_only_descriptions_are_left_has_neither_begin_nor_commit() -> None:
    """Version 1 does not send such a one: the newest transaction seen must be the same both ways."""
    sent = [*block(TOP, in_block(SUB, relation(1, TWO)), in_block(SUB, insert(1, ["1", "gone"]))), abort(TOP, SUB)]
    assert whole([*sent, stream_commit(TOP, 20)]) == [relation(1, TWO)]
    after = [begin(30), insert(1, ["2", "a"]), commit(30)]
    assert values(whole([*sent, stream_commit(TOP, 20), *after])) == [{"id": "2", "v": "a"}]


def partitions(messages: list[bytes], piece: int) -> set[tuple[int, int]]:
    decoder = Decoder(XID_REFERENCE)
    for start in range(0, len(messages), piece):
        decoder.feed(pa.array(messages[start : start + piece], pa.binary()))
    return {(root.oid, leaf.oid) for root, leaf in decoder.carried}


def test_partitions_with_rows_are_known_by_their_description_behind_the_roots() -> None:
    root, leaf, other = (relation(oid, TWO, name=name) for oid, name in ((1, "root"), (2, "leaf"), (3, "other")))
    row = insert(1, ["1", "a"])
    messages = [begin(10), root, leaf, row, other, insert(3, ["1", "b"]), commit(10)]
    for piece in (1, 2, 3, len(messages)):
        assert partitions(messages, piece) == {(1, 2)}
        assert partitions([root, leaf, other, begin(10), row, insert(3, ["1", "b"]), commit(10)], piece) == set(), (
            "what a live stream says again, as it was in force, tells nothing of this transaction"
        )


def test_descriptions_of_a_transaction_in_blocks_stay_within_it() -> None:
    root, leaf = relation(1, TWO, name="root"), relation(2, TWO, name="leaf")
    sent = [
        *block(TOP, in_block(SUB, root), in_block(SUB, leaf), in_block(SUB, insert(1, ["1", "gone"]))),
        *block(TOP, in_block(TOP, insert(1, ["2", "kept"]))),
        stream_commit(TOP, 20),
    ]
    assert partitions(whole(sent, {SUB}), 1) == {(1, 2)}
    assert [row["id"] for row in values(whole(sent, {SUB}))] == ["2"]
