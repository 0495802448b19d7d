"""What the events of a topic look like: the declared columns, and the numbers by which the lake knows them.

A topic does not tell its columns, so the declaration does. A column is its name: its number is made of it, so that a
column which is declared under another name is another column.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from ingestion.schema.changes import Relation, RelationColumn
from ingestion.schema.facts import TOPIC, ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.schema.types.declared import is_known, source_type_of, type_name
from ingestion.schema.types.model import SourceType
from lakehouse.declarations import Column, RawTable

TEXT_OID = 25
OF_EXTENSIONS = {"citext", "ltree"}  # types that come as the text that Postgres prints
IN_ORDER = 1  # stands for a unique index: the events of a key are in order as they come


@dataclass(frozen=True)
class Field:
    """A declared column of an event: its name there, and its type in pg_type's terms."""

    name: str
    number: int
    type_oid: int
    type_name: str
    typmod: int

    @property
    def source_type(self) -> SourceType:
        """The type as the table of types knows it."""
        return SourceType(self.type_oid, self.type_name, self.typmod)


@dataclass(frozen=True)
class Shape:
    """The events of one topic; `oid` is the number of the topic as it was created."""

    topic: str
    oid: int
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    format: str = "json"

    @property
    def relation(self) -> Relation:
        """The same for those who land rows."""
        return relation_of(self.oid, self.topic, self.fields)

    @property
    def encoded(self) -> bytes:
        """As `decoded` reads it."""
        fields = [[f.name, f.number, f.type_oid, f.type_name, f.typmod] for f in self.fields]
        told = {"topic": self.topic, "oid": self.oid, "fields": fields, "key": self.key, "format": self.format}
        return json.dumps(told).encode()


def relation_of(oid: int, topic: str, fields: Iterable[Field]) -> Relation:
    """A topic as those know it who land rows; columns stand in the order of their numbers."""
    ordered = sorted(fields, key=lambda field: field.number)
    columns = tuple(RelationColumn(field.name, field.type_oid, field.typmod, True) for field in ordered)
    return Relation(oid, "", topic, "f", columns)


def decoded(encoded: bytes) -> Shape:
    """The shape that was encoded."""
    given = json.loads(encoded)
    fields = tuple(Field(*f) for f in given["fields"])
    return Shape(given["topic"], given["oid"], fields, tuple(given["key"]), given.get("format", "json"))


def shape_of(facts: TableFacts) -> Shape:
    """What is known of a topic's events."""
    fields = tuple(Field(c.name, c.number, c.type_oid, c.type_name, c.typmod) for c in facts.columns)
    return Shape(facts.relation[1], facts.oid, fields, facts.key, facts.format)


def facts_of(table: RawTable, oid: int) -> TableFacts:
    """A declared table whose topic has this number; raises TableProblem for a type that there is not."""
    return TableFacts(
        oid=oid, filenode=None, relkind=TOPIC, replica_identity="f", key=table.key,
        columns=tuple(_column(table, column) for column in table.columns), relation=table.relation,
        enforced_by=(IN_ORDER,), format=table.raw.format,
    )  # fmt: skip


def _column(table: RawTable, column: Column) -> ColumnFacts:
    declared = column.data_type or ""
    bare = type_name(declared).rpartition(".")[2]
    if not is_known(declared) and bare not in OF_EXTENSIONS:
        says = f"column {column.name!r} is declared as {declared!r}, which is no type of docs/types.md: declare one"
        raise TableProblem(table.source, table.name, says)
    found = source_type_of(declared) if is_known(declared) else SourceType(TEXT_OID, bare)
    return ColumnFacts(
        name=column.name, number=crc32(column.name.encode()), declared_type=declared, type_oid=found.oid,
        type_name=found.name, type_kind="b", typmod=found.typmod, stream_oid=found.oid, stream_typmod=found.typmod,
        output_function="", lake=table.raw.alias.get(column.name, column.name),
    )  # fmt: skip
