"""What is known of a topic of envelopes: its relation, the declared columns, and how the connector writes values."""

import json
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cached_property

from ingestion.schema.changes import Relation
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.debezium.message.columns import Modes, Typed
from ingestion.sources.kafka.shape import Field, relation_of
from ingestion.sources.kafka.shape import facts_of as facts_of_topic
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import RawPolicy, split_relation
from lakehouse.settings import DebeziumSettings
from lakehouse.text.sql import ident

AVRO_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
UNSENT = {  # types of which Debezium does not say what the database has
    "name": "that Debezium leaves empty in changes", "varbit": "whose length Debezium does not tell",
}  # fmt: skip


@dataclass(frozen=True)
class Column(Field):
    """A declared column, with the digits of a second that its type declares."""

    digits: int | None

    @property
    def typed(self) -> Typed:
        """Its type as values are read by it."""
        return Typed(self.source_type, self.digits)


@dataclass(frozen=True)
class Shape:
    """The envelopes of one topic; `oid` is the number of the topic as it was created, `captured` their relation, as
    `split_relation` reads it."""

    topic: str
    oid: int
    captured: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    modes: Modes
    format: str = "json"

    @cached_property
    def of(self) -> tuple[str, str]:
        """Schema and name of their relation."""
        return _parts(self.captured)

    @property
    def counted_as(self) -> str:
        """Their relation as ENDs name it."""
        return counted_as(self.captured)

    @property
    def relation(self) -> Relation:
        """The same for those who land rows."""
        return relation_of(self.oid, self.topic, self.columns)

    @property
    def encoded(self) -> bytes:
        """As `decoded` reads it."""
        parts = [self.topic, self.oid, self.captured, [astuple(c) for c in self.columns], self.key, astuple(self.modes)]
        parts += [self.format] * (self.format != "json")
        return json.dumps(parts).encode()


def decoded(encoded: bytes) -> Shape:
    """The shape that was encoded."""
    topic, oid, captured, columns, key, modes, *form = json.loads(encoded)
    return Shape(topic, oid, captured, tuple(Column(*c) for c in columns), tuple(key), Modes(*modes), *form)


def counted_as(captured: str) -> str:
    """A relation as ENDs name it: where a part has a dot, another relation may be called so, too."""
    return ".".join(_parts(captured))


def _parts(captured: str) -> tuple[str, str]:
    try:
        return split_relation(captured)
    except ValueError:  # kept before a part with a dot was quoted
        schema, _, name = captured.partition(".")
        return schema, name


def captured_by(raw: RawPolicy) -> str:
    """The relation whose changes a topic has, as `split_relation` reads it; nothing where it is not known."""
    return written(raw.captured)


def written(parts: Iterable[str]) -> str:
    """A relation's parts as `split_relation` reads them; nothing where there are none."""
    return ".".join(ident(part) if set(part) & {".", '"'} else part for part in parts)


def modes_of(of: DebeziumSettings) -> Modes:
    """How the connector of a source writes values."""
    return Modes(of.decimals, of.times, of.binary, of.unavailable_value)


def shape_of(facts: TableFacts, modes: Modes) -> Shape:
    """What is known of a topic's envelopes."""
    columns = tuple(
        Column(c.name, c.number, c.type_oid, c.type_name, c.typmod, digits_of(c.declared_type)) for c in facts.columns
    )
    return Shape(facts.relation[1], facts.oid, facts.captured, columns, facts.key, modes, facts.format)


def facts_of(table: RawTable, oid: int, of: DebeziumSettings) -> TableFacts:
    """A declared table whose topic has this number; raises TableProblem."""
    captured = captured_by(table.raw)
    if not captured:
        says = f"topic {table.raw.topic} does not end with a schema and a table: declare meta.raw.relation"
        raise TableProblem(table.source, table.name, says)
    if not table.key and of.delivery != "exactly_once":
        raise TableProblem(
            table.source, table.name, "it has no key, by which an event that comes twice is known: declare "
            f"meta.raw.key, or LAKEHOUSE_SOURCES__{table.source.upper()}__DELIVERY=exactly_once where Connect is so",
        )  # fmt: skip
    facts = replace(facts_of_topic(table, oid), captured=captured)
    if named := [column.name for column in facts.columns if column.type_name in UNSENT]:
        why = " or ".join(sorted({UNSENT[c.type_name] for c in facts.columns if c.name in named}))
        says = f"column {', '.join(named)} is of a type {why}: do not declare it"
        raise TableProblem(table.source, table.name, says)
    if table.raw.format == "avro" and (odd := [c.name for c in facts.columns if not AVRO_NAME.fullmatch(c.name)]):
        says = (
            f"column {', '.join(odd)} has a name that Avro does not allow, so the connector writes it under another "
            "one: do not declare it, or let the connector write JSON"
        )
        raise TableProblem(table.source, table.name, says)
    return facts


def digits_of(declared: str) -> int | None:
    """The digits of a second that a type of moments declares."""
    found = re.match(r"\s*time(?:stamp)?(?:tz)?\s*\(\s*(\d)\s*\)", declared.lower())
    return int(found[1]) if found else None
