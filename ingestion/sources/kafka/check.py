"""`lakehouse prepare --check` of a source in Kafka: whether its topics can be read; changes nothing."""

from collections.abc import Callable, Collection, Iterator, Mapping

from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.names import check_names
from ingestion.schema.problem import TableProblem
from ingestion.sources.findings import Finding, Positions, in_two, known_positions, of_stream
from ingestion.sources.kafka.certificates import expiring
from ingestion.sources.kafka.connection import UNREADABLE, Brokers, Topic
from ingestion.sources.kafka.formats import check_format, formats_of
from ingestion.sources.kafka.history import a_time
from ingestion.sources.kafka.registry import UnknownSchema, registry_of
from ingestion.sources.kafka.shape import facts_of
from ingestion.sources.kafka.source import OpenKafka
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import BrokerSettings, Settings

LONGER = "raise delete.retention.ms beyond the longest time for which nothing may be read"
READ = "grant Read on it"
CREATE = "create it, grant Describe and Read on it, or correct meta.raw.topic of its declaration"


def check_source(settings: Settings, source: Source) -> list[Finding]:
    """What is in the way of ingestion."""
    try:
        brokers = Brokers(settings, source.name)
        found = brokers.topics(table.raw.topic for table in source.tables)
        compacted = brokers.compacted(table.raw.topic for table in source.tables if table.key)
    except LakehouseError as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        return [Finding(source.name, None, "connection", "in the way", "it cannot be looked at", says)]
    formats = formats_of(settings, source.name)

    def describe(table: RawTable, topic: Topic) -> TableFacts:
        check_format(table, formats)
        return facts_of(table, topic.id)

    lost = {topic: None if kept_ms is None else _lost_after(kept_ms) for topic, kept_ms in compacted.items()}

    def check(states: CatalogConnection) -> None:
        OpenKafka(settings, source.name, states).check_stream(states)

    return [
        *of_stream(settings, source.name, check),
        *of_tables(source, found, CREATE, describe, known_positions(settings, source.name)),
        *of_registry(settings, source),
        *of_certificates(source, settings.kafka(source.name)),
        *of_compaction(source, lost, LONGER),
    ]


def rights(source: Source) -> str:
    """What the login needs, for people; nothing is set up in Kafka."""
    return rights_on([table.raw.topic for table in source.tables], [t.raw.topic for t in source.tables if t.key])


def rights_on(topics: Collection[str], configured: Collection[str]) -> str:
    """The same of topics, and of those whose configuration is looked at."""
    wanted = f"the login needs Describe and Read on topic {', '.join(sorted(topics))}"
    if configured:
        wanted += f"; DescribeConfigs on {', '.join(sorted(configured))}, to be told where compaction loses deletes"
    return f"{wanted}; nothing is created in Kafka, no consumer group either"


def _lost_after(kept_ms: int) -> str:
    within = f"within {a_time(kept_ms)} (delete.retention.ms)"
    return f"a delete that is not read {within} is lost, and its row stays current"


def of_compaction(source: Source, lost: Mapping[str, str | None], correction: str) -> Iterator[Finding]:
    """The tables whose topics lose events; `lost` says by topic what comes of it, None where that cannot be told."""
    for table in source.tables:
        if (topic := table.raw.topic) not in lost:
            continue
        if (says := lost[topic]) is None:
            yield Finding(
                source.name, table.name, "compaction", "warning",
                f"topic {topic}: the login may not describe its configuration, so nobody tells whether compaction "
                "loses deletes",
                "grant DescribeConfigs on it, or see to it that it is not compacted",
            )  # fmt: skip
        else:
            told = f"topic {topic} is compacted: {says}"
            yield Finding(source.name, table.name, "compaction", "warning", told, correction)


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
        return
    yield from expiring(source.name, "schema registry", filter(None, [registry.address]), registry.ca)


def of_certificates(source: Source, of: BrokerSettings) -> Iterator[Finding]:
    """The certificates of brokers that expire soon."""
    if of.tls:
        named = (address.strip().rpartition(":") for address in of.bootstrap_servers.split(","))
        servers = [(host.strip("[]"), int(port)) for host, _, port in named if port.isdigit()]
        yield from expiring(source.name, "connection", servers, str(of.ca) if of.ca else None)


def of_tables(
    source: Source, found: Mapping[str, Topic | str], remedy: str, describe: Callable[[RawTable, Topic], TableFacts],
    positions: Positions,
) -> Iterator[Finding]:  # fmt: skip
    """What is in the way of the tables: `describe` raises TableProblem, `remedy` is for a topic that is not there."""
    for table in source.tables:
        topic = found.get(table.raw.topic, "it does not exist")
        if isinstance(topic, str):
            help = READ if topic == UNREADABLE else remedy
            yield Finding(source.name, table.name, "topic", "in the way", f"topic {table.raw.topic}: {topic}", help)
            continue
        try:
            position = positions.get(table.name)
            before = position.facts if position and position.versions else None
            facts = name_columns(table, before, describe(table, topic))
            check_names(table, facts, position.landed if position else ())
        except TableProblem as problem:
            yield Finding(source.name, table.name, "columns", "in the way", *in_two(problem.says))
