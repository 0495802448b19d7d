"""What the live stream hands over, in whatever pieces, is what one read of the slot gives."""

import itertools
from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_encode import Stream, begin, commit, insert, relation, streams
from pgoutput_support import XID_REFERENCE, Row, by_table, decode, named, rows_of

from ingestion.sources.postgres.live import Received
from ingestion.sources.postgres.pgoutput import Decoder


def handed_over(received: Received, lsn: int, stream: Stream) -> list[Row]:
    decoder = Decoder(XID_REFERENCE, named(stream.keys))
    rows = rows_of(decoder.feed(received.below(lsn)))
    assert not decoder.in_transaction
    return rows


@settings(deadline=None)
@given(streams(ordered=True), st.randoms(use_true_random=False))
def test_pieces_of_complete_transactions_are_the_whole(stream: Stream, chance: Random) -> None:
    received, rows = Received(0), []
    for message in stream.messages:
        received.add(message)
        if chance.random() < 0.3:
            lsn = chance.choice([0, received.lsn, chance.randint(0, received.lsn)])
            first, again = handed_over(received, lsn, stream), handed_over(received, lsn, stream)
            assert first == again, "nothing goes before it is confirmed"
            rows += first
            received.forget(lsn)
    rows += handed_over(received, received.lsn + 1, stream)
    received.forget(received.lsn + 1)
    assert by_table(rows) == by_table(rows_of(decode(stream.messages, stream.keys)))
    assert len(received.below(1 << 62)) == 0


def test_only_complete_transactions_below_the_lsn_are_handed_over() -> None:
    received = Received(5)
    described = relation(1, [("id", True)])
    open_one = [begin(30), insert(1, ["3"])]
    for message in (begin(10), described, insert(1, ["1"]), commit(10), begin(20), insert(1, ["2"]), commit(20)):
        received.add(message)
    for message in open_one:
        received.add(message)
    values = [
        pa.chunked_array([batch.values.column("id") for batch in Decoder(XID_REFERENCE).feed(received.below(lsn))])
        for lsn in (20, 21, 31)
    ]
    assert [column.to_pylist() for column in values] == [["1"], ["1", "2"], ["1", "2"]]
    assert len(received.below(10)) == 0


def test_memory_is_given_back_as_transactions_are_confirmed() -> None:
    received = Received(0)
    received.add(relation(1, [("id", True)]))
    for lsn in itertools.count(1):
        for message in (begin(lsn), insert(1, ["x" * 1000]), commit(lsn)):
            received.add(message)
        received.forget(lsn)
        assert len(received) < 3000
        if lsn == 100:
            break
