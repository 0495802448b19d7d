"""Topics of Debezium as a source: those of kind kafka, with the transactions that their events are of.

The topic that tells the ends of transactions is read beside those of the tables. What waits for its END, or for events
that the END counts, is not passed: the position names the offset of the first event that has not landed.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import ClassVar, cast

from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.offsets import Offsets, Partition
from ingestion.schema.problem import TableProblem
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Brought, LiveStream, SourceNow, TakenOver
from ingestion.sources.debezium.ends import Ends
from ingestion.sources.debezium.forms import brought
from ingestion.sources.debezium.handover import position_after
from ingestion.sources.debezium.message.envelope import Origin
from ingestion.sources.debezium.reading import EnvelopeReader
from ingestion.sources.debezium.records import EnvelopeRecords
from ingestion.sources.debezium.shape import captured_by, counted_as, facts_of, modes_of, shape_of
from ingestion.sources.kafka.connection import Topic, of_topics, present
from ingestion.sources.kafka.formats import check_format
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.source import KafkaSource, OpenKafka, ranges_to
from ingestion.state import store
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.kafka import client_properties
from lakehouse.settings import Settings

log = logging.getLogger("lakehouse.ingestion")


def source(settings: Settings, name: str, seconds: float | None, stop: Event) -> "DebeziumSource":
    """The source of that name; nobody else's work in it is waited for."""
    return DebeziumSource(settings, name)


@dataclass(frozen=True)
class DebeziumSource(KafkaSource):
    """One source in topics of Debezium."""

    @contextmanager
    def open(self) -> Iterator["OpenDebezium"]:
        """With connections to the brokers and to the state."""
        with store.connect_catalog(self.settings) as states:
            yield OpenDebezium(self.settings, self.name, states)


class OpenDebezium(OpenKafka):
    """A source with its connections; every method may raise LakehouseError."""

    kind: ClassVar[str] = "debezium"

    def __init__(self, settings: Settings, name: str, states: CatalogConnection) -> None:
        super().__init__(settings, name, states)
        self._of = settings.debezium(name)
        self._modes, self._end = modes_of(self._of), Offsets.start()
        self._asked: datetime | None = None
        self._ends = Ends()
        self._origins: dict[str, Origin] = {}

    def records(self, described: Mapping[str, TableFacts]) -> EnvelopeRecords:  # type: ignore[override]  # of envelopes
        """The envelopes of topics, which a number tells apart."""
        shapes = {facts.oid: shape_of(facts, self._modes) for facts in described.values()}
        names = {facts.oid: name for name, facts in described.items()}
        return EnvelopeRecords(shapes, self._name, names, self._registry)

    def check(self, states: CatalogConnection, live: LiveStream[Offsets] | None = None) -> store.Stream:
        """As of kind kafka; the transaction topic is the one that was read before, too."""
        number = self._own_id()
        self._check_own(states, number)
        stream = super().check(states, live)
        if stream.publication_oid != number:  # Debezium makes it with the first transaction
            store.note_publication(states, self._name, number)
        return stream

    def check_stream(self, states: CatalogConnection) -> None:
        """Raises as `check` would; changes nothing."""
        super().check_stream(states)
        self._check_own(states, self._own_id())

    def _check_own(self, states: CatalogConnection, number: int) -> None:
        """Raises LakehouseError where the transaction topic, which has this number, is not the one that was read."""
        known = store.read_stream(states, self._name) if store.has_state(states) else None
        if known is not None and known.kind == self.kind and known.publication_oid not in (0, number):
            topic = self._of.transactions
            says = f"topic {topic} was deleted{' and created again' * bool(number)} since the lake last read it"
            if topic is None:
                says = "the lake has read its transactions so far, and `transactions` is not set any more: set it, or"
            raise LakehouseError(
                f"source {self._name!r}: {says}: "
                f"`lakehouse ingest --recover {self._name}` goes on with what is there, in the next epoch"
            )

    def now(self) -> SourceNow[Offsets]:
        """The end of every topic whose table has begun, and of the transaction topic."""
        asked = datetime.now(UTC)
        now = super().now()
        self._end, self._asked = now.position, asked
        self._ends.note(asked, self._end.by_partition)
        return now

    def fingerprints(self, tables: Iterable[RawTable]) -> dict[str, str]:
        """By table, the topic as it was created, its relation, and the declared types."""
        declared = list(tables)
        found = super().fingerprints(declared)
        return {t.name: f"{found[t.name]}/{captured_by(t.raw)}/{self._of.delivery}" for t in declared}

    def inspect(self, table: RawTable, oid: int | None) -> tuple[TableFacts | None, TableProblem | None]:
        """A table's facts, as they are declared, and what is in the way of it."""
        found = self._brokers.topics([table.raw.topic]).get(table.raw.topic)
        if not isinstance(found, Topic):
            return super().inspect(table, oid)
        try:
            check_format(table, self._formats)
            return facts_of(table, found.id, self._of), None
        except TableProblem as problem:
            return None, problem

    def change_reader(  # type: ignore[override]  # of envelopes instead of events
        self, now: SourceNow[Offsets], live: LiveStream[Offsets] | None, described: Iterable[TableFacts] = ()
    ) -> EnvelopeReader:
        """Reads the transactions of the described tables that are whole up to `now.position`."""
        shapes = {facts.relation[1]: shape_of(facts, self._modes) for facts in described}
        found = self._brokers.topics(shapes)
        if gone := [name for name in shapes if present(found, name) is None]:
            raise LakehouseError(
                f"source {self._name!r}: topic {', '.join(gone)} is not there, or may not be read, so "
                "transactions are not whole: let the connector write it, or take its table out of the declaration"
            )
        before = cast(TransactionOffsets, self._reached())
        if self._of.transactions is None:  # else their ENDs count what is missing
            self._tell_late([topic for topic, shape in shapes.items() if shape.key], before, now.position)
        told = self._told(before, now.position)
        positions = store.read_positions(self._states, self._name).values()
        began = {counted_as(p.facts.captured): p.point.end for p in positions if p.versions and p.point.end}
        midway: dict[str, int] = {}
        if told is not None and told.end:
            of = told.topic, told.partition
            told = replace(told, place=self._brokers.starts([of])[of])
            first = {counted_as(p.facts.captured): p.point.by_partition.get(of, 0) for p in positions if p.versions}
            midway = {name: at for name, at in first.items() if name not in began and at > told.place}
        wide = of_topics(found.values(), lambda topic: len(topic.partitions) > 1)
        ranges = _ranges(before, now.position, shapes, wide)
        reach = before.join(now.position).by_partition
        return EnvelopeReader(
            source=self._name,
            properties=client_properties(self._of),
            ranges=ranges,
            is_told=told is not None and (told.end > 0 or bool(self._own_id())),
            told=told,
            histories=began if told else {},
            shapes=shapes,
            before=before,
            exactly_once=self._of.delivery == "exactly_once",
            is_whole=self._end <= before.join(now.position),
            now=datetime.now(UTC),
            batch_bytes=self._settings.ingestion.batch_bytes,
            wide=frozenset(topic for topic, _ in wide),
            registry=self._registry,
            midway=midway,
            behind=frozenset(partition for partition, end in self._end if reach.get(partition, 0) < end),
            asked=self._asked,
            beginnings=self._beginnings(ranges, {p.facts.relation[1]: p.point for p in positions if p.versions}),
            seen=self._ends.seen(ranges if told is None else (*ranges, told)),
            origins=dict(self._origins),
        )

    def remember(self, states: CatalogConnection, epoch: int, witness: object | None) -> None:
        """Where the events of topics came from last, while this process lives."""
        self._origins.update(cast(dict[str, Origin], witness or {}))

    def _beginnings(self, ranges: Collection[Range], points: Mapping[str, Offsets]) -> dict[Partition, int]:
        """Where topics begin that are to be read from the `points` at which their tables began, if that is not 0. One
        that was read for another table before has earlier events, unless they are gone."""
        read = {r.topic for r in ranges if r.first < r.end}  # also their partitions that have nothing in it
        first = {(r.topic, r.partition): r.first for r in ranges if r.topic in read}
        later = {of[0] for of, offset in first.items() if offset > points.get(of[0], Offsets()).by_partition.get(of, 0)}
        standing = [of for of, offset in first.items() if offset and of[0] not in later]
        return self._brokers.starts(standing) if standing else {}

    def _tell_beginnings(self, topics: Collection[str], starts: Mapping[Partition, int]) -> None:
        if cut := sorted({topic for (topic, _), offset in starts.items() if offset and topic in topics}):
            log.warning(
                "source %r: topic %s has lost its beginning (retention): rows that have not changed since are missing, "
                "unless a snapshot of the connector is in what is left: ask the connector for one, by a signal, and "
                "compare with the database", self._name, ", ".join(cut),
            )  # fmt: skip

    def take_over(self, facts: Iterable[TableFacts], landed: int, recent: Collection[int]) -> TakenOver[Offsets]:
        """Where the topics go on after a slot; raises LakehouseError."""
        tables = list(facts)
        found = self._brokers.topics(self._with_own(f.relation[1] for f in tables))
        own, partitions = self._own_id(), of_topics(found.values())
        starts, ends = self._brokers.starts(partitions), self._brokers.ends(partitions)
        topics = [f.relation[1] for f in tables]
        ranges, place = [], 0
        for (topic, number), end in sorted(ends.items()):
            if topic in topics:
                ranges.append(Range(topic, number, starts[topic, number], end, place))
                place += end - starts[topic, number]
        name = self._of.transactions
        told = None if name is None else Range(name, 0, starts.get((name, 0), 0), ends.get((name, 0), 0), 0)
        reader = EnvelopeReader(
            source=self._name, properties=client_properties(self._of), ranges=tuple(ranges), is_told=bool(own),
            told=told,
            histories={}, shapes={f.relation[1]: shape_of(f, self._modes) for f in tables}, before=TransactionOffsets(),
            exactly_once=self._of.delivery == "exactly_once", is_whole=True, now=datetime.now(UTC),
            batch_bytes=self._settings.ingestion.batch_bytes, registry=self._registry,
        )  # fmt: skip
        position = position_after(reader, starts, landed, recent)
        return TakenOver(position, store.Cluster(self._brokers.cluster_id, 0), own)

    def brings(self, column: ColumnFacts) -> Brought:
        """What comes of a column that a slot has described."""
        return brought(column, self._modes)

    def _with_own(self, topics: Iterable[str]) -> list[str]:
        wanted, own = list(topics), self._of.transactions
        return [*wanted, own] if wanted and own else wanted

    def _told(self, before: Offsets, end: Offsets) -> Range | None:
        """What is read of the transaction topic."""
        if (name := self._of.transactions) is None:
            return None
        first, last = (offsets.by_partition.get((name, 0), 0) for offsets in (before, end))
        return Range(name, 0, first, max(first, last), 0)

    def _own_id(self) -> int:
        """The number of the transaction topic, 0 until it is there; raises LakehouseError where it tells no order, or
        may not be read."""
        name = self._of.transactions
        if name is None:
            return 0
        topic = self._brokers.topics([name]).get(name)
        if topic is None:
            return 0
        if isinstance(topic, str):
            raise LakehouseError(
                f"source {self._name!r}: transaction topic {name}: {topic}: grant it Describe and Read, or correct "
                "`transactions`"
            )
        if len(topic.partitions) != 1:
            raise LakehouseError(
                f"source {self._name!r}: transaction topic {name} has {len(topic.partitions)} partitions, which tell "
                "no order of transactions: create it with one, before the connector starts"
            )
        return topic.id


def _ranges(before: Offsets, end: Offsets, topics: Iterable[str], wide: Collection[Partition]) -> tuple[Range, ...]:
    """What is to be read, and the other partitions of topics that have several: rows may still come there."""
    found = list(ranges_to(before, end, topics))
    first, place = before.by_partition, sum(r.end - r.first for r in found)
    silent = sorted({*wide} - {(r.topic, r.partition) for r in found})
    return (*found, *(Range(*of, first.get(of, 0), first.get(of, 0), place) for of in silent))
