"""Which relations a piece of the stream tells of: those whose rows a decoder would find, and described partitions."""

import pgoutput_encode as encode
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ingestion.sources.postgres.pgoutput.mentioned import mentioned

OIDS = st.integers(1, 2**32 - 1)


def stream(messages: list[bytes]) -> pa.Array:
    return pa.array(messages, pa.large_binary())


@given(st.lists(st.tuples(st.sampled_from("IUDTRM"), st.lists(OIDS, min_size=1, max_size=3))), st.integers(0, 5))
def test_it_names_those_with_rows_a_truncate_or_a_description(steps: list[tuple[str, list[int]]], skipped: int) -> None:
    messages, expected = [encode.begin(8)], []
    for kind, oids in steps:
        made = {
            "I": lambda oid: encode.insert(oid, ["I", None]),
            "U": lambda oid: encode.update(oid, [...], ["D"]),
            "D": lambda oid: encode.delete(oid, ["T"]),
            "R": lambda oid: encode.relation(oid, [("a", True)]),
            "M": lambda oid: encode.message(),
        }
        messages.append(encode.truncate(*oids) if kind == "T" else made[kind](oids[0]))
        expected.append(set(oids if kind == "T" else oids[:1]) if kind in "IUDTR" else set())
    messages.append(encode.commit(8))
    expected = [set(), *expected, set()]
    assert mentioned(stream(messages)) == set().union(*expected)
    assert mentioned(stream(messages)[skipped:]) == set().union(*expected[skipped:])


def test_what_is_described_ahead_of_all_transactions_is_not_named() -> None:
    ahead = [encode.relation(oid, [("a", True)]) for oid in (1, 2)]
    messages = [*ahead, encode.begin(8), encode.insert(1, ["I"]), ahead[1], encode.commit(8)]
    assert mentioned(stream(messages[:4])) == {1}
    assert mentioned(stream(messages)) == {1, 2}


def test_nothing_is_in_nothing() -> None:
    assert mentioned(stream([])) == frozenset()
