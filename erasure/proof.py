"""Looks at every object below the tables' locations, whether the catalog knows it or not.

Rows are the proof: every Parquet file is read and its rows of the subject's keys must say nothing personal. The values
themselves are looked for besides, in everything: decoded Avro (manifests hold the bounds of values, cut off after 16
characters), Puffin, JSON. A value that others have too, or that is short, would be found everywhere and proves
nothing: it is left out and counted. An Avro file that names a file of the subject's is left over as well.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import new_decoder

from maintenance.lake import StoredObject, list_objects

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table

    from erasure.rewrite import InTable

SHORTEST = 6  # of the texts that are looked for
BOUND = 15  # characters of a text that stand in a bound for certain: its 16th may be raised
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Finding:
    """An object that holds something of a subject. `rows` are the Parquet rows that do."""

    table: str
    path: str
    rows: int
    why: str


@dataclass
class Look:
    """What was looked at, and what was found. `values` are the subject's texts: they never leave the process."""

    objects: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    values: set[str] = field(default_factory=set, repr=False)
    looked_for: int = 0
    in_common: int = 0


def look(io: PyArrowFileIO, parts: Iterable[tuple[InTable, Table]], values: Iterable[str] = ()) -> Look:
    """Looks for rows of the subjects and for `values`; of what it finds it adds the values itself."""
    parts, found = list(parts), Look()
    objects = {table.location(): list_objects(io, table.location()) for _, table in parts}
    found.objects = sum(map(len, objects.values()))
    found.bytes = sum(stored.size for listed in objects.values() for stored in listed)
    strangers: list[pa.Array] = []
    held: set[str] = set()
    for mine, table in parts:
        for stored in objects[table.location()]:
            if stored.path.endswith(".parquet"):
                rows = read_parquet(io, stored.path, table, mine.place.treatment != "rebuild")
                if holding := mine.holding(rows):
                    held.add(stored.path)
                    found.values.update(mine.texts(rows, holding))
                    found.findings.append(Finding(str(mine.place), stored.path, len(holding), "rows of the subject"))
                strangers += _texts_of_others(rows, mine.rows(rows))
    needles = _needles({*values, *found.values}, strangers, found)
    for location, listed in objects.items():
        name = next(str(mine.place) for mine, table in parts if table.location() == location)
        for stored in listed:
            if not stored.path.endswith(".parquet") and (why := _says(io, stored, needles, held)):
                found.findings.append(Finding(name, stored.path, 0, why))
    return found


def read_parquet(io: PyArrowFileIO, path: str, table: Table, by_field_id: bool) -> pa.Table:
    """A file as it lies there, its columns under the names that the table gives them now."""
    with io.new_input(path).open() as stream:
        rows = pq.read_table(pa.PythonFile(stream, mode="r"))
    if not by_field_id:
        return rows
    names = {f.field_id: f.name for f in table.schema().fields}
    ids = [int((column.metadata or {}).get(FIELD_ID, b"-1")) for column in rows.schema]
    return rows.rename_columns([names.get(i, name) for i, name in zip(ids, rows.column_names, strict=True)])


def decoded(content: bytes) -> bytes:
    """An Avro container without its compression."""
    decoder = new_decoder(content)
    decoder.read(4)
    metadata: dict[str, bytes] = {}
    while count := decoder.read_int():
        if count < 0:
            count, _ = -count, decoder.read_int()
        for _ in range(count):
            name = decoder.read_utf8()
            metadata[name] = decoder.read_bytes()
    codec = KNOWN_CODECS[metadata.get("avro.codec", b"null").decode()]  # type: ignore[index]
    decoder.read(16)
    parts = []
    while decoder.tell() < len(content):
        decoder.read_int()
        block = decoder.read_bytes()
        parts.append(codec.decompress(block) if codec else block)
        decoder.read(16)
    return b"".join([*metadata.values(), *parts])


def _says(io: PyArrowFileIO, stored: StoredObject, needles: Sequence[bytes], held: set[str]) -> str | None:
    with io.new_input(stored.path).open() as stream:
        content = stream.read()
    if content[:4] == b"Obj\x01":
        content = decoded(content)
        if any(path.encode() in content for path in held):
            return "names a file of the subject's"
    elif content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return "a value of the subject's" if any(needle in content for needle in needles) else None


def _texts_of_others(rows: pa.Table, mine: Sequence[int]) -> Iterator[pa.Array]:
    """The distinct texts of the rows that are not the subject's."""
    others = rows.filter(pc.invert(pa.array(_marks(mine, rows.num_rows), pa.bool_()))) if mine else rows
    for column in others.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            yield pc.unique(column).cast(pa.large_string())


def _marks(numbers: Sequence[int], length: int) -> list[bool]:
    chosen = set(numbers)
    return [n in chosen for n in range(length)]


def _needles(values: set[str], strangers: Sequence[pa.Array], found: Look) -> list[bytes]:
    """What to look for: texts as a whole, and as far as a bound shows them, unless others have them too."""
    needles = {value for value in values if len(value) >= SHORTEST}
    needles |= {value[:BOUND] for value in needles}
    own = {n for n in needles if not any(pc.any(pc.match_substring(texts, n)).as_py() for texts in strangers)}
    found.looked_for, found.in_common = len(own), len(needles) - len(own) + sum(len(v) < SHORTEST for v in values)
    return [spelled for n in sorted(own) for spelled in {n.encode(), json.dumps(n)[1:-1].encode()}]
