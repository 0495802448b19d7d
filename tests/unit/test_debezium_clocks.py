"""Messages whose timestamps are ahead of the reader's clock: a clock that is wrong, or a stray that anyone has sent."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from debezium_recorded import ITEMS, Message, Read, read, recorded, settings, table

from ingestion.sources.debezium.clocks import believed
from ingestion.sources.debezium.ends import Ends
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import Range
from lakehouse.errors import LakehouseError

PLAIN = [m for m in recorded("plain") if m["topic"] in ("public.items", "transaction")]
NEWEST = datetime.fromtimestamp(max(m["at"] for m in PLAIN) / 1000, UTC)
LATE = NEWEST + timedelta(hours=1)
AHEAD = 36_500 * 86_400_000  # a century
ITEMS_TABLE = table("items", ITEMS)
NAMES = ("partition", "offset", "at")
FLAT = json.dumps({"id": 7, "name": "a"})


def of(topic: str) -> list[Message]:
    return [m for m in PLAIN if m["topic"] == topic]


def ahead(*messages: Message) -> list[Message]:
    """The recording, with these as if they came in a century."""
    return [m | {"at": m["at"] + AHEAD} if m in messages else m for m in PLAIN]


def with_stray(topic: str, offset: int, value: str) -> list[Message]:
    """The recording, with such a message before the one of that offset, sent in a century."""
    moved = [m | {"offset": m["offset"] + (m["topic"] == topic and m["offset"] >= offset)} for m in PLAIN]
    sent = {"topic": topic, "partition": 0, "offset": offset, "key": None, "value": value, "at": PLAIN[0]["at"] + AHEAD}
    return sorted([*moved, sent], key=lambda m: (m["topic"], m["offset"]))


def landed(found: Read) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in ("_offset", "_seq")} for row in found.rows["items"]
    ]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("topic", ["public.items", "transaction"])
def test_a_message_from_the_future_holds_nothing_up_once_another_has_come(delivery: str, topic: str) -> None:
    """An END was not settled until then, and where delivery is at least once nothing behind it landed."""
    given = settings(delivery=delivery)
    wanted = read(PLAIN, ITEMS_TABLE, given=given, now=LATE)
    messages = of(topic)
    for one in (messages[0], messages[3], messages[len(messages) // 2], messages[-2]):
        found = read(ahead(one), ITEMS_TABLE, given=given, now=LATE)
        assert (found.rows, found.position) == (wanted.rows, wanted.position)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_row_without_envelope_from_the_future_is_a_dead_letter(delivery: str) -> None:
    """It was later than every change of its table, so the source was refused for a century."""
    given, last = settings(delivery=delivery), max(m["offset"] for m in of("public.items") if m["value"])
    wanted = landed(read(PLAIN, ITEMS_TABLE, given=given, now=LATE))
    for offset in (3, last):
        found = read(with_stray("public.items", offset, FLAT), ITEMS_TABLE, given=given, now=LATE)
        assert landed(found) == wanted and len(found.unread["items"]) == 1
    with pytest.raises(LakehouseError, match="has rows without their envelope"):
        read(with_stray("public.items", of("public.items")[-1]["offset"] + 1, FLAT), ITEMS_TABLE, given=given, now=LATE)


def test_the_beginning_of_the_transaction_topic_is_no_time_in_the_future() -> None:
    """Retention keeps such a message longest: all that was under way counted as what has no END any more."""
    told = of("transaction")
    cut = [m for m in PLAIN if m["topic"] != "transaction" or m["offset"] >= told[6]["offset"]]
    wanted = read(cut, ITEMS_TABLE, now=LATE)
    found = read([m | {"at": m["at"] + AHEAD} if m == told[6] else m for m in cut], ITEMS_TABLE, now=LATE)
    assert (found.rows, found.position, found.noticed.warnings) == (
        wanted.rows, wanted.position, wanted.noticed.warnings,
    )  # fmt: skip


def test_a_time_in_the_future_is_that_of_the_next_message_of_its_partition() -> None:
    now, soon, far = LATE, LATE + timedelta(microseconds=1), LATE + timedelta(days=400)
    early, later = LATE - timedelta(hours=3), LATE - timedelta(hours=2)
    given = [(0, early), (1, far), (0, soon), (0, later), (1, far), (0, far), (2, now)]
    columns = zip(*((number, offset, at) for offset, (number, at) in enumerate(given)), strict=True)
    messages = pa.table([pa.array(c) for c in columns], schema=pa.schema([EVENTS_SCHEMA.field(n) for n in NAMES]))
    expected = [early, now, later, later, now, now, now]
    assert believed(messages, now).column("at").to_pylist() == expected
    assert believed(messages, now).column("sent").to_pylist() == [early, far, later, later, far, far, now]
    assert believed(messages, far).column("at").to_pylist() == [at for _, at in given]
    assert believed(messages, far).column("sent").to_pylist() == [at for _, at in given]
    assert believed(messages.slice(0, 0), now).num_rows == 0


def test_a_time_in_the_future_is_none_after_the_end_was_seen_behind_it() -> None:
    """Each read took what had no successor for just sent."""
    first, second, far = LATE - timedelta(seconds=9), LATE - timedelta(seconds=3), LATE + timedelta(hours=1)
    columns = [0] * 6, [*range(5, 11)], [far + timedelta(seconds=n) for n in range(6)]
    messages = pa.table([pa.array(c) for c in columns], schema=pa.schema([EVENTS_SCHEMA.field(n) for n in NAMES]))
    found = believed(messages, LATE, {0: [(7, first), (10, second)], 1: [(99, first)]})
    assert found.column("at").to_pylist() == [first, first, second, second, second, LATE]
    assert found.column("sent").to_pylist() == columns[2]


def test_the_ends_of_partitions_are_known_as_of_a_while_ago() -> None:
    ends, at = Ends(), [LATE + timedelta(seconds=n) for n in range(1000)]
    of, other = ("a", 0), ("a", 1)
    for second, end in ((0, 5), (1, 5), (2, 8), (2, 9), (9, 9)):
        ends.note(at[second] + timedelta(milliseconds=end), {of: end, other: 3})
    seen = ends.seen([Range("a", 0, 2, 20, 0), Range("a", 1, 3, 20, 0), Range("b", 0, 0, 9, 0)])
    assert [(end, moment - LATE) for end, moment in seen.pop(of)] == [
        (5, timedelta(seconds=0, milliseconds=5)), (8, timedelta(seconds=2, milliseconds=8)),
        (9, timedelta(seconds=9, milliseconds=9)),
    ] and not seen  # fmt: skip
    assert [end for end, _ in ends.seen([Range("a", 0, 5, 20, 0)])[of]] == [8, 9], "what has landed is not asked for"
    for second in range(10, 900):
        ends.note(at[second], {of: second})
    assert len(ends.seen([Range("a", 0, 0, 2000, 0)])[of]) < 200
    ends.note(at[901], {of: 7})
    assert ends.seen([Range("a", 0, 0, 9, 0)]) == {of: [(7, at[901])]}, "a topic that is another one"


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_clock_that_is_ahead_holds_nothing_up_that_was_seen_a_while_ago(delivery: str) -> None:
    """Nothing landed before that time where delivery is at least once."""
    given = settings(delivery=delivery)
    wanted = read(PLAIN, ITEMS_TABLE, given=given, now=LATE)
    messages, now = [m | {"at": m["at"] + 7_200_000} for m in PLAIN], NEWEST + timedelta(seconds=5)
    early = read(messages, ITEMS_TABLE, given=given, now=now)
    assert bool(early.position.end) == (delivery == "exactly_once")
    ends = {(m["topic"], m["partition"]): [(m["offset"] + 1, NEWEST)] for m in PLAIN}
    found = read(messages, ITEMS_TABLE, given=given, now=now, seen=ends)
    assert found.rows == wanted.rows and found.position == wanted.position
    told = [says for says in found.noticed.warnings if "by their timestamps, which is still to come" in says]
    assert len(told) == 2 and not any("by their timestamps" in says for says in wanted.noticed.warnings)
