"""What the decoder tests share: fixtures of real streams, and rows of both decoders in one comparable form."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
from pgoutput_reference import ReferenceDecoder

from ingestion.schema.changes import Batch, Relation
from ingestion.sources.postgres.pgoutput import Decoder

FIXTURES = Path(__file__).parent / "fixtures" / "pgoutput"
XID_REFERENCE = 5 * 2**32 + 17
Keys = dict[int, tuple[str, ...]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Fixture:
    """A recorded stream: its messages, the declared keys, and what the tables held at the end."""

    name: str
    messages: list[bytes]
    keys: Keys
    state: dict[tuple[str, str], list[dict[str, str | None]]]


def load_fixture(name: str) -> Fixture:
    """Read tests/unit/fixtures/pgoutput/<name>.json."""
    stored = json.loads((FIXTURES / f"{name}.json").read_text())
    messages = [bytes.fromhex(message) for message in stored["messages"]]
    return Fixture(
        name,
        messages,
        by_oid(messages, {_split(table): tuple(key) for table, key in stored["keys"].items()}),
        {_split(table): rows for table, rows in stored["state"].items()},
    )


def _split(table: str) -> tuple[str, str]:
    schema, name = table.split("|")
    return schema, name


def fixture_names() -> list[str]:
    """All recorded streams."""
    return sorted(path.stem for path in FIXTURES.glob("*.json"))


def decode(messages: Sequence[bytes], keys: Keys | None = None, cuts: Iterable[int] = ()) -> list[Batch]:
    """Decode a stream, fed in pieces that end at `cuts`."""
    decoder = Decoder(XID_REFERENCE, named(keys or {}))
    edges = [0, *sorted(cuts), len(messages)]
    return [
        batch
        for first, last in itertools.pairwise(edges)
        for batch in decoder.feed(pa.array(messages[first:last], pa.binary()))
    ]


def named(keys: Keys) -> Callable[[Relation], tuple[str, ...] | None]:
    """Keys as a decoder asks for them."""
    return lambda relation: keys.get(relation.oid)


def by_oid(messages: Iterable[bytes], keys: Mapping[tuple[str, str], tuple[str, ...]]) -> Keys:
    """The keys by the oids that a stream's relation messages give the relations."""
    found = {}
    for message in messages:
        if message[:1] == b"R":
            schema, name, _ = message[5:].split(b"\0", 2)
            found[int.from_bytes(message[1:5])] = (schema.decode(), name.decode())
    return {oid: keys[name] for oid, name in found.items() if name in keys}


def rows_of(batches: Iterable[Batch]) -> list[Row]:
    """The rows of batches as the reference decoder writes them."""
    rows = []
    for batch in batches:
        batch.values.validate(full=True)
        batch.meta.validate(full=True)
        table = (batch.relation.schema, batch.relation.name)
        values = batch.values.to_pylist() if batch.values.num_columns else [{}] * batch.meta.num_rows
        assert batch.values.num_rows == batch.meta.num_rows
        for value, meta in zip(values, batch.meta.to_pylist(), strict=True):
            at = meta["_committed_at"].astimezone(UTC)
            rows.append({"table": table, "values": value} | meta | {"_committed_at": at})
    return rows


def by_table(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows per table, in the order given: only the order within a table is promised."""
    tables = defaultdict(list)
    for row in rows:
        tables[row["table"]].append(row)
    return dict(tables)


def assert_agrees(messages: Sequence[bytes], keys: Keys | None = None, cuts: Iterable[int] = ()) -> list[Row]:
    """Both decoders give the same rows; returns them."""
    expected = ReferenceDecoder(XID_REFERENCE, keys).feed(messages)
    actual = rows_of(decode(messages, keys, cuts))
    assert by_table(actual) == by_table(expected)
    return expected
