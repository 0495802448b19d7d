"""A second decoder of pgoutput: plain Python, one message at a time, written from the protocol's documentation.

The tests hold the product's columnar decoder against it. It shares no code with it and has no concern for speed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Cell = tuple[str, str | None]  # (n, u or t; text)


class Reader:
    """A cursor over the bytes of one message."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError("message is too short")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        return self.take(end - self.at + 1)[:-1].decode()

    def cells(self) -> list[Cell]:
        return [self.cell() for _ in range(self.integer(2))]

    def cell(self) -> Cell:
        kind = self.take(1).decode()
        if kind not in "nut":
            raise ValueError(f"kind {kind}")
        if kind != "t":
            return kind, None
        # A value of an old row that nothing is made of need not be text; one that is used would equal no text.
        return kind, self.take(self.integer(4)).decode(errors="surrogateescape")


@dataclass(frozen=True)
class Described:
    """A relation message: columns are (name, is part of the replica identity)."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[tuple[str, bool], ...]


Row = dict[str, Any]


class ReferenceDecoder:
    """Rows as dictionaries, in the order of the stream; `rows[i]["table"]` is (schema, name)."""

    def __init__(self, xid_reference: int, keys: Mapping[int, tuple[str, ...]] | None = None) -> None:
        self.xid_reference = xid_reference
        self.keys = keys or {}
        self.relations: dict[int, Described] = {}
        self.rows: list[Row] = []
        self.transaction: dict[str, Any] | None = None
        self.place = -1

    def feed(self, messages: Iterable[bytes]) -> list[Row]:
        for message in messages:
            reader = Reader(message)
            kind = reader.take(1).decode()
            if kind in "IUDTM" and self.transaction is not None:
                self.place += 1
            getattr(self, f"on_{kind}")(reader)
            if kind in "IUDT" and reader.at != len(message):
                raise ValueError("message is too long")
        return self.rows

    def on_B(self, reader: Reader) -> None:
        assert self.transaction is None
        lsn, at, xid = reader.integer(8), reader.integer(8, signed=True), reader.integer(4)
        epochs = [xid + epoch * 2**32 for epoch in range(self.xid_reference // 2**32 + 2)]
        xid = min(epochs, key=lambda wide: abs(wide - self.xid_reference))
        committed_at = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
        self.transaction = {"_commit_lsn": lsn, "_xid": xid, "_committed_at": committed_at}
        self.place = -1

    def on_C(self, reader: Reader) -> None:
        assert self.transaction is not None
        self.transaction = None

    def on_O(self, reader: Reader) -> None: ...

    def on_Y(self, reader: Reader) -> None: ...

    def on_M(self, reader: Reader) -> None: ...

    def on_A(self, reader: Reader) -> None:
        """Of a transaction that nothing was sent of: Postgres 18 tells every reader."""

    def on_R(self, reader: Reader) -> None:
        oid, schema, name, identity = reader.integer(4), reader.string(), reader.string(), reader.take(1).decode()
        columns = []
        for _ in range(reader.integer(2)):
            flags, column = reader.integer(1), reader.string()
            reader.take(8)
            columns.append((column, flags == 1))
        self.relations[oid] = Described(oid, schema or "pg_catalog", name, identity, tuple(columns))

    def on_I(self, reader: Reader) -> None:
        relation = self.relations[reader.integer(4)]
        assert reader.take(1) == b"N"
        self.emit(relation, "c", reader.cells())

    def on_D(self, reader: Reader) -> None:
        relation = self.relations[reader.integer(4)]
        assert reader.take(1) in (b"K", b"O")
        self.emit(relation, "d", reader.cells())

    def on_T(self, reader: Reader) -> None:
        count = reader.integer(4)
        reader.take(1)
        for _ in range(count):
            relation = self.relations[reader.integer(4)]
            self.emit(relation, "t", [("n", None)] * len(relation.columns))

    def on_U(self, reader: Reader) -> None:
        relation = self.relations[reader.integer(4)]
        marker, old = reader.take(1), None
        if marker in (b"K", b"O"):
            old = reader.cells()
            marker = reader.take(1)
        assert marker == b"N"
        new = reader.cells()
        if old is None:
            return self.emit(relation, "u", new)
        new = [o if n[0] == "u" and o[0] == "t" else n for n, o in zip(new, old, strict=True)]
        key = self.key_of(relation)
        names = [name for name, _ in relation.columns]
        before = {name: cell for name, cell in zip(names, old, strict=True) if name in key}
        after = {name: cell for name, cell in zip(names, new, strict=True) if name in key}
        if all(after[name] == before[name] or after[name][0] == "u" for name in key):
            return self.emit(relation, "u", new)
        self.emit(relation, "d", old)
        text = json.dumps({name: before[name][1] for name in key}, ensure_ascii=False, separators=(",", ":"))
        self.emit(relation, "c", new, late=1, old_key=text)

    def key_of(self, relation: Described) -> list[str]:
        carried = [name for name, flag in relation.columns if flag]
        declared = self.keys.get(relation.oid)
        if declared and all(name in carried for name in declared):
            return list(declared)
        return [] if relation.identity == "f" else carried

    def emit(self, relation: Described, op: str, cells: list[Cell], late: int = 0, old_key: str | None = None) -> None:
        assert self.transaction is not None
        assert len(cells) == len(relation.columns)
        names = [name for name, _ in relation.columns]
        self.rows.append(
            self.transaction
            | {
                "table": (relation.schema, relation.name),
                "values": {name: text for name, (_, text) in zip(names, cells, strict=True)},
                "_op": op,
                "_seq": 2 * self.place + late,
                "_unchanged": [n for n, (kind, _) in zip(names, cells, strict=True) if kind == "u"] or None,
                "_old_key": old_key,
            }
        )
