"""Write pgoutput messages, and hypothesis strategies for whole streams of them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

Cell = str | None | type[...]  # text, NULL, or ... for an unchanged TOASTed value
Columns = Sequence[tuple[str, bool]]


def begin(lsn: int, at: int = 0, xid: int = 1) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, at, xid)


def commit(lsn: int, at: int = 0) -> bytes:
    return b"C\0" + struct.pack(">QQq", lsn, lsn + 8, at)


def relation(oid: int, columns: Columns, identity: str = "d", name: str = "t", schema: str = "s") -> bytes:
    head = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    body = [bytes([key]) + column.encode() + b"\0" + struct.pack(">Ii", 25, -1) for column, key in columns]
    return head + struct.pack(">H", len(columns)) + b"".join(body)


def cells(values: Sequence[Cell]) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(_cell, values))


def _cell(value: Cell) -> bytes:
    if value is None:
        return b"n"
    if value is ...:
        return b"u"
    text = value.encode()
    return b"t" + struct.pack(">I", len(text)) + text


def insert(oid: int, new: Sequence[Cell]) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + cells(new)


def update(oid: int, new: Sequence[Cell], old: Sequence[Cell] | None = None, marker: bytes = b"K") -> bytes:
    before = b"" if old is None else marker + cells(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + cells(new)


def delete(oid: int, old: Sequence[Cell], marker: bytes = b"K") -> bytes:
    return b"D" + struct.pack(">I", oid) + marker + cells(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def message(transactional: bool = True, content: bytes = b"x") -> bytes:
    return b"M" + struct.pack(">BQ", transactional, 5) + b"prefix\0" + struct.pack(">I", len(content)) + content


@dataclass(frozen=True)
class Stream:
    """Messages and the declared keys that go with them."""

    messages: list[bytes]
    keys: dict[int, tuple[str, ...]]


NAMES = ["id", "a", 'q"uote', "žluť", "_op"]
TEXTS = st.one_of(st.sampled_from(["", "1", "2"]), st.text(max_size=6).filter(lambda t: "\0" not in t))
CELLS = st.one_of(TEXTS, st.none(), st.just(...))


@st.composite
def relations(draw: st.DrawFn, oid: int, name: str) -> tuple[bytes, int, bytes]:
    """A relation message, its width, and the marker of its old tuples."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    identity = draw(st.sampled_from("dfi"))
    columns = [(name, identity == "f" or draw(st.booleans())) for name in names]
    described = relation(oid, columns, identity, name)
    return described, len(names), b"O" if identity == "f" else b"K"


@st.composite
def changes(draw: st.DrawFn, oid: int, width: int, marker: bytes) -> bytes:
    """A change of a relation; an update's old and new values often agree."""
    new = draw(st.lists(CELLS, min_size=width, max_size=width))
    old = [value if draw(st.booleans()) else draw(CELLS) for value in new]
    kind = draw(st.sampled_from("IUVD"))
    if kind == "I":
        return insert(oid, new)
    if kind == "D":
        return delete(oid, old, marker)
    return update(oid, new, old if kind == "V" else None, marker)


@st.composite
def streams(draw: st.DrawFn, ordered: bool = False) -> Stream:
    """Complete transactions over a few relations, described anew now and then; `ordered` by their commits."""
    known: dict[int, tuple[int, bytes, str]] = {}
    messages = []
    lsns = draw(st.lists(st.integers(1, 2**62), unique=True, max_size=5))
    for number, lsn in enumerate(sorted(lsns) if ordered else lsns):
        messages.append(begin(lsn, draw(st.integers(-(10**15), 10**15)), draw(st.integers(0, 2**32 - 1))))
        messages += [b"O" + bytes(8) + b"origin\0"] * draw(st.integers(0, 1))
        for _ in range(draw(st.integers(0, 8))):
            messages += draw(_events(known))
        messages.append(commit(lsn, number))
        messages += [message(False)] * draw(st.integers(0, 1))
    declared = st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2).map(tuple)
    keys = draw(st.dictionaries(st.integers(1, 3), declared))
    return Stream(messages, keys)


@st.composite
def _events(draw: st.DrawFn, known: dict[int, tuple[int, bytes, str]]) -> list[bytes]:
    oid = draw(st.integers(1, 3))
    kind = draw(st.sampled_from("cccccccRTM"))
    if kind == "M":
        return [message()]
    if kind == "T" and known:
        return [truncate(*draw(st.lists(st.sampled_from(sorted(known)), unique=True)))]
    described = []
    if kind == "R" or oid not in known:
        name = draw(st.sampled_from(["t", "T t", f"t{oid}"]))
        for other in [other for other, (_, _, held) in known.items() if held == name]:
            del known[other]  # it must have been renamed, and is described anew before its next change
        text, width, marker = draw(relations(oid, name))
        known[oid] = (width, marker, name)
        described = [b"Y" + struct.pack(">I", 70000) + b"s\0mood\0", text]
    width, marker, _ = known[oid]
    return [*described, *draw(st.lists(changes(oid, width, marker), max_size=3))]
