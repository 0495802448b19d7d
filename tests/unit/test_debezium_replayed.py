"""Dead letters that are replayed beside what came after them: the key of a row that was deleted, and came again."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from debezium_recorded import ITEMS, Message, Read, read, recorded, settings, shape, table

from ingestion.sources.debezium.records import EnvelopeRecords

PLAIN, LATE = recorded("plain"), datetime(2027, 1, 1, tzinfo=UTC)
BEFORE, NOW = table("items", ITEMS), table("items", ITEMS | {"price": "text"})
BAD, GOOD = "no number", "ASw="
Change = tuple[int, str, str]  # transaction, operation, price
COMES_AGAIN = [(1, "c", BAD), (2, "d", ""), (3, "c", GOOD)]


def sent(*changes: Change) -> list[Message]:
    """Changes of the row 5, in their order."""
    of = {(m["topic"], m["offset"]): m for m in PLAIN}
    first, end = of["public.items", 4], of["transaction", 2]
    event, told = json.loads(first["value"]), json.loads(end["value"])
    _, _, lsn = event["transaction"]["id"].partition(":")
    events, ends, counts = list[Message](), dict[int, Message](), dict[int, int]()
    for offset, (number, op, price) in enumerate(changes):
        xid, place = 900 + number, counts.setdefault(number, 0) + 1
        counts[number] = place
        row = event["after"] | {"id": 5, "name": f"n{offset}", "price": price}
        made = event | {
            "op": op, "before": row if op == "d" else None, "after": row if op == "c" else None,
            "transaction": {"id": f"{xid}:{lsn}", "total_order": place, "data_collection_order": place},
            "source": event["source"] | {"txId": xid, "lsn": int(lsn) + 10 * offset},
        }  # fmt: skip
        events.append(first | {"offset": offset, "value": json.dumps(made)})
        counted = [{"data_collection": "public.items", "event_count": place}]
        position = f"{xid}:{int(lsn) + 1000 * number}"
        said = told | {"id": position, "event_count": place, "data_collections": counted}
        ends[number] = end | {"offset": number - 1, "value": json.dumps(said)}
    return [*events, *ends.values()]


def replayed(found: Read) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows of the dead letters, as the table is declared now, and why it cannot go on with them."""
    now = shape(NOW, settings())
    records, rows = EnvelopeRecords({now.oid: now}, "shop", {now.oid: "items"}).beside_landed(), list[dict[str, Any]]()
    for piece, kept in found.kept:
        if piece.unread:
            seq = pa.array([2 * place for place in kept.column("place").to_pylist()], pa.int64())
            for batch in records.decode(now.encoded, kept.append_column("seq", seq), {}, ()):
                pairs = zip(batch.values.to_pylist(), batch.meta.to_pylist(), strict=True)
                rows += [values | meta for values, meta in pairs]
    return rows, records.problems()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(
    ("changes", "late"),
    [
        (COMES_AGAIN, 1),
        ([(1, op, price) for _, op, price in COMES_AGAIN], 1),
        ([*COMES_AGAIN, (4, "d", "")], 1),
        ([(1, "c", BAD), (1, "d", ""), (1, "c", BAD)], 2),
        ([(1, "c", BAD), (2, "d", ""), (3, "c", BAD)], 2),
        ([(1, "c", BAD), (1, "d", ""), (1, "c", BAD), (1, "d", "")], 2),
    ],
    ids=["each_alone", "together", "deleted_again", "both_bad_together", "both_bad_each_alone", "both_gone_together"],
)
def test_an_insert_that_lands_late_stands_before_the_delete_that_came_after_it(
    changes: list[Change], late: int, delivery: str
) -> None:
    """Where both inserts of a transaction were dead letters, the delete between them was not among what is replayed, so
    the table was parked: its key told no rows apart."""
    given = settings(delivery=delivery)
    found = read(sent(*changes), BEFORE, given=given, now=LATE)
    assert not found.parked and len(found.unread["items"]) == late
    rows, problems = replayed(found)
    assert not problems and len(rows) == late
    every = sorted([*found.rows["items"], *rows], key=lambda row: (row["_commit_lsn"], row["_seq"]))
    assert [(row["_op"], row["_offset"]) for row in every] == [(op, at) for at, (_, op, _) in enumerate(changes)]
    assert [row["id"] for row in every] == [5] * len(changes)
