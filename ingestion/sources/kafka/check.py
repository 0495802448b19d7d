"""`lakehouse prepare --check` of a source in Kafka: whether its topics can be read; changes nothing."""

from collections.abc import Callable, Iterator, Mapping

from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.names import check_names
from ingestion.schema.problem import TableProblem
from ingestion.sources.findings import Finding, Positions, in_two, known_positions, of_stream
from ingestion.sources.kafka.connection import Brokers, Topic
from ingestion.sources.kafka.formats import check_format, formats_of
from ingestion.sources.kafka.history import a_time
from ingestion.sources.kafka.registry import UnknownSchema, registry_of
from ingestion.sources.kafka.shape import facts_of
from ingestion.sources.kafka.source import OpenKafka
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

LONGER = "raise delete.retention.ms beyond the longest time for which nothing may be read"
CREATE = "create it, grant Describe and Read on it, or correct meta.raw.topic of its declaration"


def check_source(settings: Settings, source: Source) -> list[Finding]:
    """What is in the way of ingestion."""
    brokers = Brokers(settings, source.name)
    try:
        found = brokers.topics(table.raw.topic for table in source.tables)
        compacted = brokers.compacted(table.raw.topic for table in source.tables if table.key)
    except LakehouseError as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        return [Finding(source.name, None, "connection", "in the way", "it cannot be looked at", says)]
    formats = formats_of(settings, source.name)

    def describe(table: RawTable, topic: Topic) -> TableFacts:
        check_format(table, formats)
        return facts_of(table, topic.id)

    lost = {topic: f"within {a_time(kept_ms)} (delete.retention.ms)" for topic, kept_ms in compacted.items()}
    return [
        *of_stream(settings, source.name, lambda states: OpenKafka(settings, source.name, states).check_only(states)),
        *of_tables(source, found, CREATE, describe, known_positions(settings, source.name)),
        *of_registry(settings, source),
        *of_compaction(source, lost, LONGER),
    ]


def rights(source: Source) -> str:
    """What the login needs, for people; nothing is set up in Kafka."""
    topics = ", ".join(sorted(table.raw.topic for table in source.tables))
    return f"the login needs Describe and Read on topic {topics}; nothing is created in Kafka, no consumer group either"


def of_compaction(source: Source, lost: Mapping[str, str], correction: str) -> Iterator[Finding]:
    """The tables whose topics lose deletes; `lost` says by topic which: those that are not read so soon."""
    for table in source.tables:
        if (soon := lost.get(table.raw.topic)) is not None:
            yield Finding(
                source.name, table.name, "compaction", "warning",
                f"topic {table.raw.topic} is compacted: a delete that is not read {soon} is lost, and its row stays "
                "current",
                correction,
            )  # fmt: skip


def of_registry(settings: Settings, source: Source) -> Iterator[Finding]:
    """What is in the way of reading schemas, where a table needs them."""
    registry = registry_of(settings, source.name, settings.kafka(source.name))
    if registry is None or not any(table.raw.format == "avro" for table in source.tables):
        return
    try:
        registry.check()
    except (LakehouseError, UnknownSchema) as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        yield Finding(source.name, None, "schema registry", "in the way", "schemas cannot be read", says)


def of_tables(
    source: Source, found: Mapping[str, Topic | str], remedy: str, describe: Callable[[RawTable, Topic], TableFacts],
    positions: Positions,
) -> Iterator[Finding]:  # fmt: skip
    """What is in the way of the tables: `describe` raises TableProblem, `remedy` is for a topic that is not there."""
    for table in source.tables:
        topic = found.get(table.raw.topic, "it does not exist")
        if isinstance(topic, str):
            yield Finding(source.name, table.name, "topic", "in the way", f"topic {table.raw.topic}: {topic}", remedy)
            continue
        try:
            position = positions.get(table.name)
            before = position.facts if position and position.versions else None
            facts = name_columns(table, before, describe(table, topic))
            check_names(table, facts, position.landed if position else ())
        except TableProblem as problem:
            yield Finding(source.name, table.name, "columns", "in the way", *in_two(problem.says))
