"""The columnar decoder gives what the slow reference decoder gives, however the stream is cut."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pgoutput_encode import Stream, streams
from pgoutput_reference import ReferenceDecoder
from pgoutput_support import XID_REFERENCE, assert_agrees, by_table, decode, fixture_names, load_fixture, rows_of

from ingestion.sources.postgres.pgoutput import DecodeError, Decoder, wire

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", fixture_names())
def test_recorded_stream_decodes_like_the_reference(name: str) -> None:
    fixture = load_fixture(name)
    rows = assert_agrees(fixture.messages, fixture.keys)
    assert rows


@pytest.mark.parametrize("name", fixture_names())
def test_recorded_stream_fed_message_by_message(name: str) -> None:
    fixture = load_fixture(name)
    assert_agrees(fixture.messages, fixture.keys, cuts=range(len(fixture.messages)))


@pytest.mark.parametrize("name", fixture_names())
@pytest.mark.parametrize(("limit", "value"), [("BLOCK_MESSAGES", 1), ("BLOCK_MESSAGES", 4), ("BLOCK_BYTES", 90)])
def test_recorded_stream_in_small_blocks(name: str, limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, limit, value)
    fixture = load_fixture(name)
    assert_agrees(fixture.messages, fixture.keys)


@given(stream=streams(), data=st.data())
@RELAXED
def test_any_stream_decodes_like_the_reference(stream: Stream, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream.messages)), max_size=4))
    rows = assert_agrees(stream.messages, stream.keys, cuts)
    places = [(row["table"], row["_commit_lsn"], row["_seq"]) for row in rows]
    assert len(set(places)) == len(places)


@given(stream=streams(), data=st.data())
@RELAXED
def test_any_stream_in_blocks_of_any_size(stream: Stream, data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BLOCK_MESSAGES", data.draw(st.integers(1, 6)))
    assert_agrees(stream.messages, stream.keys)


@given(stream=streams(), data=st.data())
@RELAXED
def test_a_damaged_stream_is_refused_or_read_as_the_reference_reads_it(stream: Stream, data: st.DataObject) -> None:
    changeable = [i for i, message in enumerate(stream.messages) if message[:1] in b"BCIUDT"]
    if not changeable:
        return
    index = data.draw(st.sampled_from(changeable))
    messages = list(stream.messages)
    messages[index] = data.draw(_damaged(messages[index]))
    try:
        batches = decode(messages, stream.keys)
    except DecodeError as error:
        assert 0 <= error.index < len(messages)
        return
    expected = ReferenceDecoder(XID_REFERENCE, stream.keys).feed(messages)
    assert by_table(rows_of(batches)) == by_table(expected)


@st.composite
def _damaged(draw: st.DrawFn, message: bytes) -> bytes:
    at = draw(st.integers(0, len(message) - 1))
    extra = draw(st.binary(min_size=1, max_size=4))
    return draw(
        st.sampled_from([message[:at], message[:at] + extra + message[at:], message[:at] + extra + message[at + 1 :]])
    )


def test_large_binary_slices_and_chunks_are_the_same_stream() -> None:
    fixture = load_fixture("changes")
    expected = rows_of(decode(fixture.messages))
    padded = pa.array([b"", b"?", *fixture.messages, b"?"], pa.large_binary())
    assert rows_of(Decoder(XID_REFERENCE).feed(padded.slice(2, len(fixture.messages)))) == expected
    chunked = pa.chunked_array([[m] for m in fixture.messages], pa.binary())
    assert rows_of(Decoder(XID_REFERENCE).feed(chunked)) == expected
