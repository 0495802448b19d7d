"""A subject in envelopes of Debezium that are kept: it goes from those that name it, and others stay as they are."""

import json
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from debezium_recorded import ITEMS, read, recorded, settings, table

from erasure.envelopes import SubjectEnvelopes
from erasure.key_periods import Event, Period
from erasure.plan import Plan, is_known
from erasure.rows import SubjectRows
from erasure.targets import Target
from ingestion.sources.debezium.records import EnvelopeRecords

TABLE = table("items", ITEMS)
MODES: dict[str, dict[str, Any]] = {"plain": {}, "schemas": {}}


def spool(name: str) -> pa.Table:
    """All events of the recording, as a table that is parked keeps them."""
    kept = [records for _, records in read(recorded(name), TABLE, given=settings(**MODES[name])).kept]
    rows = [
        {"source": "shop", "table": "items", "epoch": 1, "seq": 2 * row["place"]} | row
        for records in kept
        for row in records.to_pylist()
    ]
    return pa.Table.from_pylist([*rows, rows[0] | {"message": b"broken \xffone of three"}])


def subject(*periods: Period, values: frozenset[str] = frozenset()) -> SubjectEnvelopes:
    target, typed = Target(("meta", "spool"), "empty"), lambda texts: (int(texts["id"]),)
    return SubjectEnvelopes(
        target, "shop", "items", periods, ("id",), frozenset({"id", "price"}), typed, values
    )  # fmt: skip


def landing(records: pa.Table) -> list[dict[str, Any]]:
    readable = records.filter(pa.array([not m.startswith(b"broken") for m in records.column("message").to_pylist()]))
    relation = readable.column("relation")[0].as_py()
    found = EnvelopeRecords().decode(relation, readable, {}, ())
    return [v | m for b in found for v, m in zip(b.values.to_pylist(), b.meta.to_pylist(), strict=True)]


@pytest.mark.parametrize("name", MODES)
def test_who_is_erased_is_in_no_kept_envelope_and_the_others_are_as_they_were(name: str) -> None:
    records = spool(name)
    of = subject(Period((3,)), Period((30,)), values=frozenset({"of three"}))
    before, after = landing(records), landing(of.after(records))
    assert [(r["_op"], r["id"], r["_commit_lsn"]) for r in before] == [
        (r["_op"], r["id"], r["_commit_lsn"]) for r in after
    ]
    mine = [r for r in after if r["id"] in (3, 30) and r["_op"] != "r"]
    assert [(r["_op"], r["id"]) for r in mine] == [("c", 3), ("u", 3), ("d", 3), ("c", 30)]
    assert all(r["name"] is None and r["big"] is None for r in mine) and mine[0]["price"] == Decimal("3.00")
    assert mine[3]["_old_key"] == '{"id":"3"}'
    assert [r for r in after if r["id"] not in (3, 30)] == [r for r in before if r["id"] not in (3, 30)]
    assert of.after(records).num_rows == records.num_rows - 1, "what cannot be read and has its text is removed"
    assert len(of.holding(records)) > 2 and of.holding(of.after(records)) == []
    assert {"three", "drei"} <= set(of.texts(records, of.rows(records)))


def test_kept_envelopes_tell_what_happens_to_keys() -> None:
    records = spool("plain")
    events = [e for e in subject().events(records) if {e.key, e.old_key} & {(3,), (30,)} and e.op != "r"]
    assert [(e.op, e.key, e.old_key) for e in events] == [
        ("c", (3,), None), ("u", (3,), None), ("d", (3,), None), ("c", (30,), (3,)),
    ]  # fmt: skip
    assert [e.holds for e in events] == [True, True, False, True]
    emptied = subject(Period((3,)), Period((30,))).after(records)
    assert not any(e.holds for e in subject().events(emptied) if e.key in ((3,), (30,)) and e.op != "r")
    assert [e.op for e in subject().events(records) if e.key is None] == ["t"]
    assert all(isinstance(e, Event) and not e.is_marker for e in events) and subject().unreadable(records) == 1


def dead_letters(**changed: Any) -> pa.Table:
    """Events of three people whose price cannot be read, or with `changed` fields of the envelope."""
    readable = [row for row in spool("plain").to_pylist() if not row["message"].startswith(b"broken")]
    first = next(row for row in readable if json.loads(row["message"].split(b"\n")[1])["op"] == "c")
    head, value = first["message"].split(b"\n")
    rows = []
    for key, name in ((3, "Ann New"), (4, 'Bob "B" Miller'), (5, "Otto Mann")):
        after = {"id": key, "name": name, "price": "no price", "big": "M"}
        told = json.loads(value) | {"after": after} | changed
        rows.append(first | {"message": head + b"\n" + json.dumps(told).encode()})
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("changed", [{}, {"op": "?"}, {"source": None}])
@pytest.mark.parametrize("key", [3, 4, 5])
def test_a_dead_letter_is_the_subjects_by_its_key_and_by_no_value_that_others_have(
    key: int, changed: dict[str, Any]
) -> None:
    """One that was kept for want of a known value named the person for ever, and strangers' went, which would have
    landed by --replay."""
    records = dead_letters(**changed)
    of = subject(Period((key,)), values=frozenset({"three", "M", "Otto Mann"}))
    assert of.unreadable(records) == 3 and of.rows(records) == of.holding(records) == [key - 3]
    left = of.after(records)
    assert left.num_rows == of.unreadable(left) == 2 and of.holding(left) == []
    assert set(of.texts(records, [key - 3])) >= {["Ann New", 'Bob "B" Miller', "Otto Mann"][key - 3]}


def test_a_dead_letter_with_a_former_key_is_the_subjects_while_they_had_that_key() -> None:
    """That of the person who got the key afterwards was deleted, and would have landed by --replay."""
    records = dead_letters(op="?")
    [epoch, number, seq] = (records.column(name)[0].as_py() for name in ("epoch", "commit_lsn", "seq"))
    ended, lasts = (Period((3,), end=(epoch, number, seq + n)) for n in (0, 1))
    begins, later = (Period((3,), start=(epoch, number, seq + n)) for n in (0, 1))
    for period, is_mine in ((ended, False), (lasts, True), (begins, True), (later, False)):
        assert subject(period, Period((30,))).rows(records) == ([0] if is_mine else [])
    assert subject(ended, Period((30,)), values=frozenset({"Ann New", "Otto Mann"})).rows(records) == [0]


def test_a_person_of_whom_there_is_a_dead_letter_alone_is_known() -> None:
    records, nothing = dead_letters(), pa.table({})

    def scanned(row_filter: Any, **of: Any) -> SimpleNamespace:
        return SimpleNamespace(to_arrow=lambda: records if "table" in repr(row_filter) else nothing)

    landed = Target(("raw_shop", "items"), "empty", ("id",), frozenset())
    for key in (4, 77):
        own = (Period((key,)),)
        raw = (SubjectRows(landed, own), replace(subject(), periods=own))
        plan = Plan(cast(Any, None), {(key,): own}, raw, (), 3, {})
        assert is_known(
            plan, cast(Any, SimpleNamespace(load_table=lambda name: SimpleNamespace(scan=scanned))), (key,)
        ) == (key == 4)


def test_a_dead_letter_whose_key_cannot_be_read_goes_by_a_value_however_json_writes_it() -> None:
    names = ('Bob "B" Miller', "Zoë \\ Müller")
    messages = [b"broken " + json.dumps({"name": n}, ensure_ascii=a).encode() for n in names for a in (True, False)]
    row = dead_letters().to_pylist()[0]
    records = pa.Table.from_pylist([row | {"message": message} for message in messages])
    found = [subject(Period((3,)), values=frozenset({name, "M"})).rows(records) for name in names]
    assert found == [[0, 1], [2, 3]]


def test_a_period_bounds_what_is_the_subjects() -> None:
    records = spool("plain")
    [first, second] = [e.position for e in subject().events(records) if e.key == (3,) and e.op in "cu"]
    early = subject(Period((3,), end=second)).after(records)
    rows = [r for r in landing(early) if r["id"] == 3 and r["_op"] in "cu"]
    assert [r["name"] for r in rows] == [None, "drei"] and first < second


def test_envelopes_from_before_a_rename_of_the_key_are_the_subjects_and_those_without_it_cannot_be_read() -> None:
    """Looking for them ended in a KeyError."""
    records = spool("plain")
    was = subject(Period((3,)), Period((30,)))
    of = replace(was, key=("item",), kept=frozenset({"item", "price"}), typed=lambda texts: (int(*texts.values()),))
    called = replace(of, called={"item": ("item", "id")})
    assert called.unreadable(records) == 1 and called.rows(records) == was.rows(records)
    assert landing(called.after(records)) == landing(was.after(records))
    assert called.holding(called.after(records)) == [] and "3" not in set(called.texts(records, called.rows(records)))
    only = replace(of, values=frozenset({"of three"}))
    assert only.unreadable(records) > 5 and [e.key for e in only.events(records)] == [None]
    assert records.num_rows - 1 in only.rows(records)
