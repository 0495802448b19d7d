"""Searches every object below the tables' locations, referenced or not.

Every Parquet file is read: rows with the subject's keys must contain no personal value. All other objects are searched
for the values: decoded Avro (manifests contain bounds, truncated to 16 characters), Puffin, JSON. Short values, and
values that other rows contain too, prove nothing: they are only counted. An Avro file that names a file with the
subject's rows is a trace too.
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

from erasure.rows import POSITION, SEQUENCE
from erasure.targets import ANY_NAMES
from lakehouse.catalog.objects import StoredObject, list_objects

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table

    from erasure.rewrite import SubjectData

SHORTEST = 6  # characters of a value that is searched for
BOUND = 15  # characters of a value that its bound certainly contains: the 16th may be incremented
FIELD_ID = b"PARQUET:field_id"
VALUE = "a value of the subject's"


@dataclass(frozen=True)
class Trace:
    """An object that contains personal data of a subject; `rows` counts its Parquet rows."""

    table: str
    path: str
    rows: int
    why: str


@dataclass
class Search:
    """What was searched and found. `values` are the subject's texts, `own` those that no other row has: none leaves
    the process."""

    objects: int = 0
    bytes: int = 0
    traces: list[Trace] = field(default_factory=list)
    values: set[str] = field(default_factory=set, repr=False)
    own: set[str] = field(default_factory=set, repr=False)
    values_searched: int = 0
    in_common: int = 0

    def add(self, other: Search) -> None:
        """What was searched and found besides."""
        self.objects, self.bytes = self.objects + other.objects, self.bytes + other.bytes
        self.traces += other.traces
        self.values, self.own = self.values | other.values, self.own | other.own
        self.values_searched, self.in_common = (
            self.values_searched + other.values_searched,
            self.in_common + other.in_common,
        )


def search(io: PyArrowFileIO, parts: Iterable[tuple[SubjectData, Table]], values: Iterable[str] = ()) -> Search:
    """Searches for rows of the subjects, then for their values and `values`."""
    parts, found = list(parts), Search()
    objects = {table.location(): list_objects(io, table.location()) for _, table in parts}
    found.objects = sum(map(len, objects.values()))
    found.bytes = sum(stored.size for listed in objects.values() for stored in listed)
    held: set[str] = set()
    files = [
        _File(io, stored.path, subject, table)
        for subject, table in parts
        for stored in objects[table.location()]
        if stored.path.endswith(".parquet")
    ]
    for file in files:
        rows = file.rows_that_may_matter()
        if rows is not None and (holding := file.subject.holding(rows)):
            held.add(file.path)
            found.values.update(file.subject.texts(rows, holding))
            found.traces.append(Trace(str(file.subject.target), file.path, len(holding), "rows of the subject"))
    needles = _needles({*values, *found.values}, files, found)
    for file in files:
        is_any = file.subject.target.treatment in ANY_NAMES
        if is_any and file.path not in held and (rows := file.with_text(needles)):
            found.traces.append(Trace(str(file.subject.target), file.path, rows, VALUE))
    spelled = [text for needle in needles for text in spellings(needle)]
    for location, listed in objects.items():
        name = next(str(subject.target) for subject, table in parts if table.location() == location)
        for stored in listed:
            if not stored.path.endswith(".parquet") and (why := _says(io, stored, spelled, held)):
                found.traces.append(Trace(name, stored.path, 0, why))
    return found


def spellings(value: str) -> set[bytes]:
    """How a value may stand in bytes: as it is, and as JSON writes it with and without characters beyond ASCII."""
    return {value.encode(), *(json.dumps(value, ensure_ascii=ascii)[1:-1].encode() for ascii in (True, False))}


@dataclass(frozen=True)
class _File:
    """A Parquet file, its columns under the table's current names."""

    io: PyArrowFileIO
    path: str
    subject: SubjectData
    table: Table

    def rows_that_may_matter(self) -> pa.Table | None:
        """All columns, if the key columns show rows of the subject or there is no key; else None."""
        key = self.subject.target.key
        if key and not self.subject.rows(self.read({*key, *POSITION, SEQUENCE})):
            return None
        return self.read()

    def read(self, only: set[str] | None = None) -> pa.Table:
        """The rows, with all columns or only these."""
        with self.io.new_input(self.path).open() as stream:
            file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
            names = dict(zip(file.schema_arrow.names, self._names(file.schema_arrow), strict=True))
            wanted = [there for there, name in names.items() if only is None or name in only]
            rows = file.read(columns=wanted)
        return rows.rename_columns([names[there] for there in rows.column_names])

    def _names(self, schema: pa.Schema) -> list[str]:
        if self.subject.target.treatment in ANY_NAMES:  # a replaced table may give its ids to other columns
            return list(schema.names)
        names = {f.field_id: f.name for f in self.table.schema().fields}
        return [names.get(int((column.metadata or {}).get(FIELD_ID, b"-1")), column.name) for column in schema]

    def strangers_texts(self) -> Iterator[pa.ChunkedArray]:
        """The texts of the rows that are not the subject's."""
        rows = self.read()
        chosen = set(self.subject.rows(rows))
        rows = rows.filter(pa.array([n not in chosen for n in range(rows.num_rows)], pa.bool_()))
        yield from (column for column in rows.columns if _is_text(column.type))

    def with_text(self, needles: Iterable[str]) -> int:
        """How many rows hold one of the texts."""
        rows, found = self.read(), set()
        for column in (column for column in rows.columns if _is_text(column.type)):
            for needle in needles:
                found.update(pc.indices_nonzero(pc.fill_null(pc.match_substring(column, needle), False)).to_pylist())
        return len(found)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


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
        if any(path.partition("://")[2].encode() in content for path in held):  # however the scheme is spelled there
            return "names a file of the subject's"
    elif content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return VALUE if any(needle in content for needle in needles) else None


def _needles(values: set[str], files: Sequence[_File], found: Search) -> set[str]:
    """The values to search for, whole and truncated as in bounds, without those that other rows contain too."""
    wanted = {value for value in values if len(value) >= SHORTEST}
    wanted |= {value[:BOUND] for value in wanted}
    own = set(wanted)
    for file in files:
        if own and file.subject.target.treatment not in ANY_NAMES:
            for texts in file.strangers_texts():
                own -= {n for n in own if pc.any(pc.match_substring(texts, n)).as_py()}
    found.own = values & own
    found.values_searched, found.in_common = len(own), len(wanted - own) + sum(len(v) < SHORTEST for v in values)
    return own
