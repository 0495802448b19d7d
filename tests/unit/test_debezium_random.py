"""Random transactions as Debezium would write them, read in parts: replayed, the rows are what the database has."""

import json
import random
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import pytest
from debezium_recorded import Message, read, settings, table
from debezium_topics import few_at_a_time

from ingestion.sources.debezium import reading
from ingestion.sources.debezium.spool import Spool
from tests.marks import seeds

LATE = datetime(2027, 1, 1, tzinfo=UTC)
AT = 1_764_000_000_000
PLACEHOLDER = "__debezium_unavailable_value"
COLUMNS = {"id": "bigint", "name": "text", "big": "text"}
Rows = dict[int, dict[str, Any]]


@pytest.fixture(params=["in memory", "on disk"], autouse=True)
def spills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what waits for its transaction is on disk; a few events are looked at together then."""
    if request.param == "on disk":
        few_at_a_time(monkeypatch)
        monkeypatch.setattr(reading, "Spool", lambda: Spool(1))


class Database:
    """Two tables, and the messages of what is done in them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._lsn = chance, 30_000_000
        self.tables: dict[str, Rows] = {"a": {}, "b": {}}
        self.steps: list[tuple[str, str | None, Any]] = []  # topic, key, value; in the order of Debezium

    def transact(self, xid: int) -> None:
        """One transaction."""
        counts: dict[str, int] = {}
        for _ in range(self._chance.randint(1, 6)):
            name = self._chance.choice("ab")
            self._lsn += 100
            for op, before, after in self._change(self.tables[name]):
                counts[name] = counts.get(name, 0) + 1
                self._send(xid, name, op, before, after, sum(counts.values()), counts[name])
        self._lsn += 100
        parts = [{"data_collection": f"public.{n}", "event_count": c} for n, c in counts.items()]
        end = {"status": "END", "id": f"{xid}:{self._lsn}", "data_collections": parts, "ts_ms": AT + xid}
        self.steps.append(("transaction", None, end))

    def _change(self, rows: Rows) -> list[tuple[str, Any, Any]]:
        chance, new = self._chance, self._chance.randint(1, 12)
        old = chance.choice(list(rows)) if rows else None
        if chance.random() < 0.03:
            rows.clear()
            return [("t", None, None)]
        if old is None or (chance.random() < 0.4 and new not in rows):
            if new in rows:
                return []
            rows[new] = {"id": new, "name": f"n{self._lsn}", "big": chance.choice((None, f"y{self._lsn}"))}
            return [("c", None, dict(rows[new]))]
        row = rows[old]
        what = chance.random()
        if what < 0.2:
            del rows[old]
            return [("d", {"id": old, "name": None, "big": None}, None)]
        if what < 0.4 and new not in rows:
            rows[new] = rows.pop(old) | {"id": new, "name": f"n{self._lsn}"}
            return [("d", {"id": old, "name": None, "big": None}, None), ("c", None, self._unchanged(rows[new]))]
        row["name"] = f"n{self._lsn}"
        if chance.random() < 0.3:
            row["big"] = f"y{self._lsn}"
            return [("u", None, dict(row))]
        return [("u", None, self._unchanged(row))]

    def _unchanged(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | ({"big": PLACEHOLDER} if row["big"] is not None else {})

    def _send(self, xid: int, name: str, op: str, before: Any, after: Any, order: int, in_table: int) -> None:
        key = (after or before or {}).get("id")
        of = {"version": "3.7.0.Final", "ts_ms": AT + xid, "schema": "public", "table": name, "lsn": self._lsn}
        transaction = {"id": f"{xid}:{self._lsn}", "total_order": order, "data_collection_order": in_table}
        value = {"before": before, "after": after, "source": of | {"txId": xid}, "transaction": transaction, "op": op}
        self.steps.append((f"public.{name}", None if key is None else json.dumps({"id": key}), value))
        if op == "d":
            self.steps.append((f"public.{name}", json.dumps({"id": key}), None))


def sent(
    steps: list[tuple[str, str | None, Any]], chance: random.Random, partitions: int, again: float
) -> list[Message]:
    """The messages of the steps; what was sent before comes `again` now and then, from a whole transaction on."""
    found: list[Message] = []
    offsets: dict[tuple[str, int], int] = {}
    starts = [0, *(i + 1 for i, step in enumerate(steps) if step[0] == "transaction")]
    at = 0
    while at < len(steps):
        topic, key, value = steps[at]
        partition = 0 if topic == "transaction" else crc32((key or "").encode()) % partitions
        offset = offsets[topic, partition] = offsets.get((topic, partition), -1) + chance.choice((1, 1, 2))
        text = None if value is None else json.dumps(value)
        found.append({"topic": topic, "partition": partition, "offset": offset, "at": AT, "key": key, "value": text})
        at += 1
        if chance.random() < again:
            at = chance.choice([start for start in starts if start <= at][-3:])
    return found


def replayed(rows: list[dict[str, Any]]) -> Rows:
    """The state of a table by its raw rows."""
    state: Rows = {}
    gone: dict[str, Any] = {}
    for row in rows:
        if row["_op"] == "t":
            state.clear()
        elif row["_op"] == "d":
            gone = state.pop(row["id"], {})
        else:
            before = gone if row["_old_key"] else state.get(row["id"], {})
            kept = {name: before[name] for name in row["_unchanged"] or ()}
            state[row["id"]] = {name: row[name] for name in COLUMNS} | kept
    return state


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_any_history_that_is_read_in_parts_replays_to_the_database(seed: int) -> None:
    chance = random.Random(seed)
    database = Database(chance)
    for xid in range(700, 740):
        database.transact(xid)
    messages = sent(database.steps, chance, chance.choice((1, 3)), 0.0)
    tables = [table(name, COLUMNS) for name in "ab"]
    lands: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    before, ends = None, dict[str, int]()
    for last in (*sorted(chance.sample(range(len(messages)), 6)), len(messages)):
        for topic in ("public.a", "public.b", "transaction"):
            visible = [m["offset"] for m in messages[: max(0, last - chance.randint(0, 9))] if m["topic"] == topic]
            ends[topic] = max([ends.get(topic, 0), *(o + 1 for o in visible)])
        if last == len(messages):
            ends = {}
        # a TRUNCATE waits for what may have come before it in another partition, a minute at most
        when = {"now": LATE} if last == len(messages) else {}
        found = read(messages, *tables, before=before, ends=ends, **when)
        before = found.position if found.noticed.reached else before
        for name, rows in found.rows.items():
            lands[name] += rows
    for name, rows in lands.items():
        assert len({(r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)
        assert replayed(sorted(rows, key=lambda r: (r["_commit_lsn"], r["_seq"]))) == database.tables[name]


@pytest.mark.parametrize("seed", seeds(12, 4))
def test_any_history_that_comes_twice_replays_to_the_database(seed: int) -> None:
    chance = random.Random(seed)
    database = Database(chance)
    for xid in range(700, 740):
        database.transact(xid)
    messages = sent(database.steps, chance, 3, 0.02)
    found = read(messages, *(table(name, COLUMNS) for name in "ab"), given=settings(delivery="at_least_once"), now=LATE)
    events = [step for step in database.steps if step[2] is not None and step[0] != "transaction"]
    assert sum(map(len, found.rows.values())) == len(events) and found.position.end == database._lsn
    for name, rows in found.rows.items():
        assert replayed(rows) == database.tables[name]
