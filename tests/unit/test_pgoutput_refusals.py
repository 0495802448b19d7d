"""What Postgres would not send is refused with its index and the reason; the decoder stays where it was."""

import pyarrow as pa
import pytest
from pgoutput_encode import begin, commit, delete, insert, message, relation, truncate, update
from pgoutput_support import XID_REFERENCE, decode, rows_of

from ingestion.sources.postgres.pgoutput import DecodeError, Decoder, wire

TABLE = relation(1, [("id", True), ("v", False)])
GOOD = insert(1, ["1", "a"])

BAD = {
    "empty": (b"", "message is empty"),
    "unknown kind": (b"S" + GOOD[1:], "unknown kind of message b'S'"),
    "unknown relation": (insert(2, ["1"]), "relation 2, which no message described"),
    "truncate of an unknown relation": (truncate(9), "relation 9, which no message described"),
    "cut short": (GOOD[:-1], "ends at a wrong place"),
    "cut to nearly nothing": (GOOD[:4], "too short"),
    "longer": (GOOD + b"n", "ends at a wrong place"),
    "too many columns": (insert(1, ["1", "a", "b"]), "does not have the relation's 2 columns"),
    "unknown kind of value": (GOOD.replace(b"t", b"x"), "unknown kind of value"),
    "binary value": (GOOD.replace(b"t", b"b"), "text mode"),
    "length beyond the end": (GOOD[:-5] + b"\x7f\xff\xff\xff" + GOOD[-1:], "ends at a wrong place"),
    "negative length": (GOOD[:-5] + b"\xff\xff\xff\xfa" + GOOD[-1:], "ends at a wrong place"),
    "insert of an old tuple": (GOOD.replace(b"N", b"K"), "insert without a new tuple"),
    "delete of a new tuple": (delete(1, ["1", None]).replace(b"K", b"N"), "neither K nor O"),
    "delete with a tail": (delete(1, ["1", None]) + b"n", "ends at a wrong place"),
    "update without a new tuple": (
        update(1, ["1", "a"], ["1", None]).replace(b"N", b"O"),
        "update without a new tuple",
    ),
    "truncate of a wrong length": (truncate(1) + b"\0", "truncate message has a wrong length"),
    "bad relation": (TABLE[:-3], "relation message is not readable"),
    "relation of an unknown identity": (relation(3, [], "z"), "replica identity"),
    "not UTF-8": (GOOD.replace(b"a", b"\xff"), "not valid UTF-8"),
    "second begin": (begin(8), "begin is misplaced"),
    "commit of another transaction": (commit(8), "another LSN"),
    "commit of a wrong length": (commit(7) + b"\0", "commit is misplaced or has a wrong length"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_message_is_named(name: str) -> None:
    bad, reason = BAD[name]
    with pytest.raises(DecodeError, match=reason) as caught:
        decode([begin(7), TABLE, GOOD, bad, commit(7)])
    assert caught.value.index == 3
    assert "pgoutput message 3" in str(caught.value)


@pytest.mark.parametrize("first", [insert(1, ["1", "a"]), truncate(1), commit(7)])
def test_changes_and_commits_need_a_transaction(first: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode([begin(6), TABLE, commit(6), first])
    assert caught.value.index == 3


def test_impossible_begin_is_refused() -> None:
    for impossible in (begin(2**63 + 1), begin(1, 2**62), begin(1, -(2**62))):
        with pytest.raises(DecodeError, match="impossible"):
            decode([impossible])


def test_null_message_and_wrong_type_are_refused() -> None:
    with pytest.raises(DecodeError, match="message 1: message is null"):
        Decoder(0).feed(pa.array([begin(1), None], pa.binary()))
    with pytest.raises(TypeError, match="string"):
        Decoder(0).feed(pa.array(["B"]))


def test_split_character_is_not_valid_utf8_though_its_bytes_meet_in_the_column() -> None:
    first, second = GOOD.replace(b"a", b"\xc4"), GOOD.replace(b"a", b"\x8d")
    with pytest.raises(DecodeError, match="UTF-8") as caught:
        decode([begin(7), TABLE, GOOD, first, second, commit(7)])
    assert caught.value.index == 3


def test_index_counts_within_the_array_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BLOCK_MESSAGES", 2)
    with pytest.raises(DecodeError) as caught:
        decode([begin(7), TABLE, GOOD, GOOD, GOOD, b"X"])
    assert caught.value.index == 5


def test_after_a_refusal_the_rest_can_be_decoded_with_its_places_kept() -> None:
    messages = [begin(7), TABLE, GOOD, GOOD[:-1], message(), insert(1, ["2", "b"]), commit(7)]
    decoder = Decoder(XID_REFERENCE)
    with pytest.raises(DecodeError) as caught:
        decoder.feed(pa.array(messages, pa.binary()))
    assert not decoder.in_transaction
    index = caught.value.index
    before = decoder.feed(pa.array(messages[:index], pa.binary()))
    decoder.skip(messages[index])
    after = decoder.feed(pa.array(messages[index + 1 :], pa.binary()))
    assert [row["_seq"] for row in rows_of([*before, *after])] == [0, 6]


def test_only_changes_are_skipped() -> None:
    decoder = Decoder(XID_REFERENCE)
    with pytest.raises(ValueError, match="inside a transaction"):
        decoder.skip(GOOD)
    decoder.feed(pa.array([begin(7)], pa.binary()))
    with pytest.raises(ValueError, match="change message"):
        decoder.skip(commit(7))
