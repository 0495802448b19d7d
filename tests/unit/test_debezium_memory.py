"""What a read of topics holds in memory of each event: next to nothing, however many a transaction has."""

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from debezium_recorded import settings, shape, table

from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Piece
from ingestion.sources.debezium import numbers, reading, spool
from ingestion.sources.debezium.handover import position_after
from ingestion.sources.debezium.reading import EnvelopeReader
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import Range

BATCH = 10_000
LSN = 30_000_000
AT = datetime(2026, 11, 24, tzinfo=UTC)
OF = {
    "insert": '"op":"c","before":null,"after":{"id":%}',
    "delete": '"op":"d","before":{"id":%},"after":null',
    "snapshot": '"op":"r","before":null,"after":{"id":%}',
}
AGAIN = {  # what the second and the third event of a transaction are instead
    "again": [('"c","before":null,"after":{"id":1}', '"d","before":{"id":0},"after":null'), ('{"id":2}', '{"id":0}')],
    "shared": [('"after":{"id":1}', '"after":{"id":0}'), ('"after":{"id":2}', '"after":{"id":0}')],
    "copied": [('{"id":1}', '{"id":0}'), ("", "")],
}
PER_EVENT = 4  # bytes: less than any number of its own
PER_END = 60  # bytes, while they are sorted


@dataclass(frozen=True)
class Generated(EnvelopeReader):
    """Reads transactions of `size` events each that are made as they are asked for; `ends` of them have an END."""

    what: str = "insert"
    size: int = 0

    def messages(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.Table]]:
        for of in ranges:
            for first in range(of.first, of.end, BATCH):
                offsets = np.arange(first, min(of.end, first + BATCH))
                values = self._ends(offsets) if of.topic == "transaction" else self._events(offsets)
                columns = [
                    pa.repeat(pa.scalar(0, pa.int32()), len(offsets)), pa.array(offsets),
                    pa.repeat(pa.scalar(AT, pa.timestamp("us", "UTC")), len(offsets)),
                    pa.nulls(len(offsets), pa.binary()), values.cast(pa.binary()),
                ]  # fmt: skip
                yield of.topic, pa.table(columns, schema=EVENTS_SCHEMA)

    def _events(self, offsets: np.ndarray) -> pa.Array:
        xids, places = (
            pa.array(part).cast(pa.string()) for part in (700 + offsets // self.size, offsets % self.size + 1)
        )
        before, after = OF.get(self.what, OF["insert"]).split("%")
        ids = pa.array(offsets).cast(pa.string())
        is_told = self.what != "snapshot"
        source = '"schema":"public","table":"a","version":"3.7.0.Final","ts_ms":1764000000000'
        source = f'"source":{{{source},"snapshot":"{"false" if is_told else "true"}","txId":'
        place: list[pa.Array | str] = ['"transaction":null}']
        if is_told:
            place = [
                '"transaction":{"id":"',
                xids,
                ':9","total_order":',
                places,
                ',"data_collection_order":',
                places,
                "}}",
            ]
        lsns = pa.array(LSN + 100 * offsets).cast(pa.string())
        found = pc.binary_join_element_wise(
            "{" + before, ids, after + "," + source, xids, ',"lsn":', lsns, "},", *place, ""
        )  # fmt: skip
        if self.what not in AGAIN or offsets[0]:
            return found
        told = found.to_pylist()
        for event, (was, by) in enumerate(AGAIN[self.what], start=1):
            assert was in told[event]
            told[event] = told[event].replace(was, by)
            if self.what == "copied":
                told[event] = told[event].replace(f'"lsn":{LSN + 100 * event}', f'"lsn":{LSN}')
        return pa.array(told)

    def _ends(self, offsets: np.ndarray) -> pa.Array:
        lsns = LSN + 100 * self.size * (offsets + 1) + 50
        return pa.array(
            f'{{"status":"END","id":"{700 + offset}:{lsn}","ts_ms":{1_764_000_000_000 + offset},'
            f'"data_collections":[{{"data_collection":"public.a","event_count":{self.size}}}]}}'
            for offset, lsn in zip(offsets.tolist(), lsns.tolist(), strict=True)
        )


def peak(count: int, *, what: str = "insert", size: int | None = None, has_end: bool = True) -> tuple[int, int]:
    """The most bytes that a read of so many events holds beside Arrow's, and the rows that land."""
    a, given = table("a", {"id": "bigint"}), settings()
    told = count // (size or count) if has_end else 0
    reader = Generated(
        source="shop", properties={}, histories={}, shapes={"public.a": shape(a, given)},
        ranges=(Range("public.a", 0, 0, count, 0),), is_told=True, told=Range("transaction", 0, 0, told, 0),
        before=TransactionOffsets(), exactly_once=True, is_whole=True, now=AT, batch_bytes=1 << 20, what=what,
        size=size or count,
    )  # fmt: skip
    return traced(reader)


def traced(reader: Generated) -> tuple[int, int]:
    """The same of any read."""
    rows = 0

    def take(piece: Piece) -> None:
        nonlocal rows
        rows += sum(batch.values.num_rows for batch in piece.batches)

    tracemalloc.start()
    try:
        reader.read({}, lambda: frozenset(shape.oid for shape in reader.shapes.values()), frozenset(), take)
        return tracemalloc.get_traced_memory()[1], rows
    finally:
        tracemalloc.stop()


@pytest.fixture(autouse=True)
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept in memory, whatever comes, is small."""
    monkeypatch.setattr(numbers, "IN_MEMORY", 1 << 16)
    monkeypatch.setattr(numbers, "WINDOW", BATCH)
    monkeypatch.setattr(reading, "Spool", partial(spool.Spool, 1 << 16))


@pytest.mark.parametrize(
    ("what", "size", "has_end"),
    [
        ("insert", None, True), ("delete", None, True), ("insert", None, False), ("insert", 3, False),
        ("snapshot", None, False), ("again", None, True), ("shared", None, True), ("copied", None, True),
    ],
    ids=[
        "one transaction", "one that deletes", "one that has not ended", "many that have not", "a snapshot",
        "one that inserts a key again", "one that inserts it twice", "one that copies it twice",
    ],
)  # fmt: skip
def test_memory_does_not_grow_with_the_events_of_a_read(what: str, size: int | None, has_end: bool) -> None:
    few, many = 3 * BATCH, 12 * BATCH
    peak(100, what=what, size=size, has_end=has_end)  # what is imported and made once
    held, landed = peak(few, what=what, size=size, has_end=has_end)
    of_many, many_landed = peak(many, what=what, size=size, has_end=has_end)
    assert (landed, many_landed) == ((few, many) if has_end or what == "snapshot" else (0, 0))
    assert of_many - held < PER_EVENT * (many - few)


def long_past(ends: int) -> Generated:
    """A hundred events, each a transaction, and a transaction topic that has told so many of all tables before."""
    a, given, count = table("a", {"id": "bigint"}), settings(), 100
    return Generated(
        source="shop", properties={}, histories={"public.a": LSN + 100 * (ends + 1)},
        shapes={"public.a": shape(a, given)}, ranges=(Range("public.a", 0, 0, count, 0),), is_told=True,
        told=Range("transaction", 0, ends, ends, 0), before=TransactionOffsets(), exactly_once=True, is_whole=True,
        now=AT, batch_bytes=1 << 20, what="insert", size=1,
    )  # fmt: skip


@pytest.mark.slow
def test_memory_does_not_grow_with_what_was_told_before_a_table_was_declared() -> None:
    """All ENDs that the topic ever told were kept: at 50 million the task was killed each time, and nothing landed."""
    few, many = 2 * BATCH, 12 * BATCH
    traced(long_past(BATCH))
    (held, landed), (of_many, many_landed) = traced(long_past(few)), traced(long_past(many))
    assert landed == many_landed == 100
    assert of_many - held < PER_EVENT * (many - few)


@pytest.mark.slow
def test_a_move_keeps_a_few_numbers_of_what_was_told_before() -> None:
    def held(ends: int) -> int:
        reader = long_past(ends)
        reader = replace(reader, told=Range("transaction", 0, 0, ends, 0), histories={})
        tracemalloc.start()
        try:
            found = position_after(reader, {}, LSN + 100 * (ends + 1), ())
            assert found.by_partition["public.a", 0] == 100
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = 2 * BATCH, 12 * BATCH
    held(BATCH)
    assert held(many) - held(few) < PER_END * (many - few)
