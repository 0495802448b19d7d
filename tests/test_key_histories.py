"""The histories of key_histories.yml on the servers: a repair's values on Spark, parsed's on Trino."""

import json
import re
from typing import Any

import pytest

from ingestion.pipeline.repair.carried import newest_filled
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import literal
from tests.key_histories import UNKNOWN, RawEvent, key_histories
from tests.unit.embedded_parsed import METADATA, Parsed

pytestmark = pytest.mark.stack
VERSIONS = (
    "key string, from_keys array<string>, position struct<epoch: int, lsn: bigint, seq: bigint>, op string, l1 boolean,"
    " c0 int, c1 string"
)


def test_a_repair_fills_what_updates_left_out(spark: Any) -> None:
    rows, expected = [], {}
    for n, history in enumerate(key_histories()):
        expected |= {f"{n}:{key}": value for key, value in history.current.items()}
        after = max((place for place, event in enumerate(history.events) if event.op == "t"), default=-1) + 1
        rows += [version(n, event) for event in history.events[after:]]
    found = newest_filled(spark.createDataFrame(rows, VERSIONS), [1], 2).collect()
    assert {row["key"]: row["c1"] if row["whole"] else UNKNOWN for row in found} == expected


def test_parsed_fills_what_updates_left_out_on_trino(settings: Settings) -> None:
    """All histories as one of a single table, whose truncates change nothing in the versions before them."""
    parsed, expected, landed = OnTrino(settings), [], []
    for n, history in enumerate(key_histories()):
        for event, value in zip(history.events, history.values, strict=True):
            lsn, key = 1000 * n + event.lsn, None if event.key is None else 100 * n + event.key
            landed.append(landing(n, event, lsn, key))
            if event.op != "t":
                expected.append((lsn, event.seq, key, None if value == UNKNOWN else value))
    parsed.rows(f"insert into raw values {', '.join(landed)}")
    parsed.load(cut=1_000_000)
    found = parsed.rows("select _commit_lsn, _seq, id, v from parsed where _op <> 't'")
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
def test_parsed_follows_a_row_through_thousands_of_keys_on_trino(settings: Settings) -> None:
    """In one load, as the first one of a table, or one that is made anew: Trino refused a branch for each key."""
    parsed, keys = OnTrino(settings), 2000
    parsed.rows(f"insert into raw values {landing(0, RawEvent(1, 0, 'c', 1, {'v': 'a'}), 1, 1)}")
    for begin in range(1, keys, 500):
        rows = []
        for key in range(begin, min(begin + 500, keys)):
            moved = RawEvent(key + 1, 1, "c", key + 1, {"_unchanged": ["v"], "_old_key": key})
            rows += [landing(0, RawEvent(key + 1, 0, "d", key, {}), key + 1, key), landing(0, moved, key + 1, key + 1)]
        parsed.rows(f"insert into raw values {', '.join(rows)}")
    parsed.load(cut=1_000_000)
    found = parsed.rows("select id from parsed where _op <> 'd' and v = 'a'")
    assert sorted(found) == [(key,) for key in range(1, keys + 1)]


def version(n: int, event: RawEvent) -> tuple[Any, ...]:
    """As a repair reads it."""
    from_keys = None if event.old_key is None else [f"{n}:{event.old_key}"]
    lacks = "v" in event.values.get("_unchanged", ())
    position = (1, event.lsn, event.seq)
    return f"{n}:{event.key}", from_keys, position, event.op, lacks, event.key, event.values.get("v")


def landing(n: int, event: RawEvent, lsn: int, key: int | None) -> str:
    """A row of raw in the order of its columns, as SQL."""
    old_key = None if event.old_key is None else json.dumps({"id": str(100 * n + event.old_key)})
    moment = "timestamp '2026-11-20 08:00 UTC'"
    texts = ["null" if text is None else literal(text) for text in (event.values.get("v"), event.op, old_key)]
    unchanged = "array['v']" if "_unchanged" in event.values else "null"
    values = [key or "null", texts[0], texts[1], 1, lsn, event.seq, moment, moment, unchanged, texts[2]]
    return f"({', '.join(map(str, values))})"


class OnTrino(Parsed):
    """The same on Trino, with tables of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.declared, self.types, self.key, self.policy = settings, ("v",), {}, "id", {}
        types = {"timestamptz": "timestamp(6) with time zone", "varchar[]": "array(varchar)"}
        columns = {"id": "integer", "v": "varchar"} | {name: types.get(kind, kind) for name, kind in METADATA.items()}
        self.rows("create schema if not exists key_histories")
        for table in ("raw", "raw_properties", "parsed"):
            self.rows(f"drop table if exists {table}")
        self.rows(f"create table raw ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        self.rows("create table raw_properties (key varchar, value varchar)")

    def is_made(self) -> bool:
        return False

    def _note(self, left_out: str) -> None:
        """The one load here is the first."""

    def _commit(self, anew: bool, revised: bool) -> None:
        """Trino keeps snapshots itself."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        sql = re.sub(r"\b(raw_properties|raw|parsed)\b", r"key_histories.\1", sql)
        return [tuple(row) for row in query(self.settings, sql)]
