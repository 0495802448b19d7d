"""`lakehouse prepare --check` of a source in topics of Debezium: whether they can be read; changes nothing."""

from collections.abc import Iterator, Mapping

from ingestion.schema.facts import TableFacts
from ingestion.sources.debezium.behind import check_behind
from ingestion.sources.debezium.shape import facts_of
from ingestion.sources.debezium.source import OpenDebezium
from ingestion.sources.findings import Finding, Weight, known_positions, of_stream
from ingestion.sources.kafka.check import READ, of_certificates, of_compaction, of_registry, of_tables, rights_on
from ingestion.sources.kafka.connection import UNREADABLE, Brokers, Topic
from ingestion.sources.kafka.formats import check_format, formats_of
from lakehouse.declarations import RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import DebeziumSettings, Settings

WRITE = "let the connector write it, grant Describe and Read on it, or correct meta.raw.topic"
KEEP = "set cleanup.policy=delete, or raise min.compaction.lag.ms beyond the longest time for which nothing may be read"
LOST = "a delete that is not read before its tombstone takes its place is lost, and its row stays current"
COUNTED = "events that it loses before they are read stop the source, or are left out by the first read"
ONCE = (
    "set exactly.once.source.support of Kafka Connect, with Debezium 3.7 or newer, then DELIVERY=exactly_once: a "
    "restart of Connect sends events twice, which are dropped by their keys, and older versions can lose some"
)


def check_source(settings: Settings, source: Source) -> list[Finding]:
    """What is in the way of ingestion."""
    of = settings.debezium(source.name)
    try:
        brokers = Brokers(settings, source.name)
        found = brokers.topics(_topics(source, of))
        compacted = brokers.compacted(_configured(source))
    except LakehouseError as error:
        says = str(error).removeprefix(f"source {source.name!r}: ")
        return [Finding(source.name, None, "connection", "in the way", "it cannot be looked at", says)]
    formats = formats_of(settings, source.name)

    def describe(table: RawTable, topic: Topic) -> TableFacts:
        check_format(table, formats)
        return facts_of(table, topic.id, of)

    def check(states: CatalogConnection) -> None:
        OpenDebezium(settings, source.name, states).check_stream(states)

    transactions = list(_of_source(source, of, found))
    is_in_the_way = any(finding.weight == "in the way" for finding in transactions)
    says = LOST if of.transactions is None else COUNTED
    lost = {topic: None if kept_ms is None else says for topic, kept_ms in compacted.items()}
    return [
        *transactions,
        *(() if is_in_the_way else of_stream(settings, source.name, check)),
        *of_tables(source, found, WRITE, describe, known_positions(settings, source.name)),
        *of_registry(settings, source),
        *of_certificates(source, of),
        *of_compaction(source, lost, KEEP),
        *check_behind(settings, source),
    ]


def rights(settings: Settings, source: Source) -> str:
    """What the login needs, for people; nothing is set up in Kafka."""
    of = settings.debezium(source.name)
    told = rights_on(_topics(source, of), _configured(source))
    return f"{told}. The connector needs provide.transaction.metadata=true and skipped.operations=none"


def _configured(source: Source) -> list[str]:
    """The topics that lose events if they are compacted."""
    return [table.raw.topic for table in source.tables]


def _topics(source: Source, of: DebeziumSettings) -> set[str]:
    return {*(table.raw.topic for table in source.tables), *filter(None, [of.transactions])}


def _of_source(source: Source, of: DebeziumSettings, found: Mapping[str, Topic | str]) -> Iterator[Finding]:
    if of.transactions is None:
        says = "no topic tells transactions: a cut is a state of each table alone, not of several together"
        remedy = "set provide.transaction.metadata=true of the connector, and `transactions` of the source"
        yield Finding(source.name, None, "transactions", "warning", says, remedy)
        topic = None
    else:
        topic = found.get(of.transactions, "it does not exist, unless no transaction has come yet")
    if isinstance(topic, str):
        remedy = "set provide.transaction.metadata=true of the connector, grant Describe and Read, or correct its name"
        remedy = READ if topic == UNREADABLE else remedy
        says = f"transaction topic {of.transactions}: {topic}"
        weight: Weight = "warning" if of.transactions not in found else "in the way"
        yield Finding(source.name, None, "transactions", weight, says, remedy)
    elif topic is not None and len(topic.partitions) != 1:
        says = f"transaction topic {of.transactions} has {len(topic.partitions)} partitions, which tell no order"
        remedy = "create it with one, before the connector starts"
        yield Finding(source.name, None, "transactions", "in the way", says, remedy)
    if of.delivery != "exactly_once":
        yield Finding(source.name, None, "delivery", "warning", "events are delivered at least once", ONCE)
