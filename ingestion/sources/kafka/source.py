"""Kafka as a source: the declared topics, each read from its earliest event on. The base's `Source` and `OpenSource`.

Where the lake stands is known by the state alone, never by a consumer group: what is committed there with the rows and
the cut is where the next read begins. A topic takes part once its table has begun.
"""

import logging
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import Any, ClassVar

from ingestion.schema.facts import TableFacts
from ingestion.schema.offsets import Offsets, Partition, name_of, partition_named
from ingestion.schema.positions import POSITIONS
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import LiveStream, NextOf, NotThere, Point, Retention, SourceNow
from ingestion.sources.kafka.connection import Brokers, Topic, of_topics, present
from ingestion.sources.kafka.fetching import Range
from ingestion.sources.kafka.formats import check_format, formats_of
from ingestion.sources.kafka.history import (
    added,
    another,
    check_cluster,
    check_reach,
    check_same_table,
    check_topics,
    former_unread,
    gone_unread,
    read_late,
)
from ingestion.sources.kafka.reading import TopicReader
from ingestion.sources.kafka.records import EventRecords
from ingestion.sources.kafka.registry import registry_of
from ingestion.sources.kafka.shape import facts_of, shape_of
from ingestion.state import live, store
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.kafka import client_properties
from lakehouse.settings import Settings

log = logging.getLogger("lakehouse.ingestion")
EVENT_BYTES = 256  # what an event counts as where bytes are asked for: brokers tell offsets alone


def source(settings: Settings, name: str, seconds: float | None, stop: Event) -> "KafkaSource":
    """The source of that name; nobody else's work in it is waited for."""
    return KafkaSource(settings, name)


@dataclass(frozen=True)
class KafkaSource:
    """One source in Kafka."""

    holds_tables: ClassVar[bool] = False
    settings: Settings
    name: str

    @contextmanager
    def open(self) -> Iterator["OpenKafka"]:
        """With connections to the brokers and to the state."""
        with store.connect_catalog(self.settings) as states:
            yield OpenKafka(self.settings, self.name, states)

    @contextmanager
    def snapshot(
        self, tables: Sequence[RawTable], before_try: Callable[[], None] = lambda: None
    ) -> Iterator[Point[Offsets]]:
        """As of an open source."""
        with self.open() as opened, opened.snapshot(tables, before_try) as point:
            yield point


class OpenKafka:
    """A source with its connections; every method may raise LakehouseError."""

    holds_tables = KafkaSource.holds_tables
    kind: ClassVar[str] = "kafka"

    def __init__(self, settings: Settings, name: str, states: CatalogConnection) -> None:
        self._settings, self._name, self._states = settings, name, states
        self._brokers, self._formats = Brokers(settings, name), formats_of(settings, name)
        self._registry = registry_of(settings, name, settings.kafka(name))
        self._ahead: Callable[[], Offsets | None] = lambda: None
        self._hurry: Callable[[], None] = lambda: None

    def read_on_from(self, ahead: Callable[[], Offsets | None], hurry: Callable[[], None]) -> None:
        """Reads begin, and checks hold, from what `ahead` returns on; None is where the lake stands. Calls `hurry` when
        retention has passed the latter."""
        self._ahead, self._hurry = ahead, hurry

    def records(self, described: Mapping[str, TableFacts]) -> EventRecords:
        """The events of topics, which a number tells apart."""
        return EventRecords({facts.oid: shape_of(facts) for facts in described.values()}, self._formats)

    def check(self, states: CatalogConnection, live: LiveStream[Offsets] | None = None) -> store.Stream:
        """The stream; its cluster and topics are those that the lake was read from, and have what comes next."""
        cluster_id = self._brokers.cluster_id
        stream = store.read_stream(states, self._name)
        if stream is None:
            own = self._own_id()
            store.create_stream(states, self._name, "", store.Cluster(cluster_id, 0), own, kind=self.kind)
            stream = store.read_stream(states, self._name)
            assert stream is not None
        check_cluster(stream, cluster_id, self.kind)
        self._check_topics()
        return stream

    def check_only(self, states: CatalogConnection) -> None:
        """Raises as `check` would, and where schemas cannot be asked for; changes nothing."""
        self.check_stream(states)
        if self._registry is not None and any(facts.format == "avro" for facts in self._begun()):
            self._registry.check_trusted()

    def check_stream(self, states: CatalogConnection) -> None:
        """Raises as `check` would; changes nothing."""
        stream = store.read_stream(states, self._name) if store.has_state(states) else None
        if stream is not None:
            check_cluster(stream, self._brokers.cluster_id, self.kind)
            self._check_topics()

    def _check_topics(self) -> None:
        begun = self._begun()
        found = self._topics(begun)
        check_topics(self._name, begun, found)
        partitions = of_topics(found.values())
        starts, ends = self._brokers.starts(partitions), self._brokers.ends(partitions)
        check_reach(self._name, self._reached(), starts, ends, self._shown(partitions))
        if not Offsets.of(starts) <= self._landed():
            self._hurry()

    def check_again(self, stream: store.Stream, live: LiveStream[Offsets] | None) -> None:
        """Raises LakehouseError where a topic was created again during the read."""
        begun = self._begun()
        check_topics(self._name, begun, self._topics(begun))

    def now(self) -> SourceNow[Offsets]:
        """The end of every topic whose table has begun."""
        ends = self._brokers.ends(of_topics(self._topics(self._begun()).values()))
        return SourceNow(self._reached().join(Offsets.of(ends)), datetime.now(UTC), 0)

    def committed(self) -> Offsets:
        """The same."""
        return self.now().position

    def retention(self, stream: store.Stream | None) -> Retention:
        """What is not read yet; topics keep events by rules of their own."""
        if stream is None:
            return Retention()
        try:
            check_cluster(stream, self._brokers.cluster_id, self.kind)
            self._check_topics()
        except LakehouseError:
            return Retention(0, False, "lost", False)
        end = self.now().position
        reached = stream.position.join(self._shown(end.by_partition))
        there = of_topics(self._topics(self._begun()).values())
        with_open = end.join(Offsets.of(self._brokers.ends_with_open(there)))
        return Retention(self.distance(reached, with_open), False, "kept", True, self.distance(end, with_open))

    def stop_between(self, reached: Offsets, end: Offsets, max_bytes: int) -> Offsets:
        """The end, or of each partition a share of what is left, and no less than readers of live tables have seen."""
        start = reached.join(self._reached())
        first, most = start.by_partition, max(1, max_bytes // EVENT_BYTES)
        left = {partition: offset - first.get(partition, 0) for partition, offset in end}
        left = {partition: count for partition, count in left.items() if count > 0}
        share = min(1.0, most / max(1, sum(left.values())))
        taken = {p: first.get(p, 0) + (n if share == 1.0 else min(n, int(n * share) + 1)) for p, n in left.items()}
        return start.join(Offsets.of(taken)).join(self._shown(end.by_partition))

    def parts(self) -> list[str]:
        """The partitions of every topic whose table has begun, by their numbers: a share has some of each topic."""
        found = of_topics(self._topics(self._begun()).values())
        return [name_of(partition) for partition in sorted(found, key=lambda partition: (partition[1], partition[0]))]

    def next_of(self, parts: Collection[str], max_bytes: int) -> NextOf:
        """Of each of these partitions up to its end, or a share of what is left; nothing of one that is gone."""
        reached, wanted = self._reached(), {partition_named(name) for name in parts}
        there = wanted.intersection(of_topics(self._brokers.topics(topic for topic, _ in wanted).values()))
        end = reached.join(Offsets.of(self._brokers.ends(there)))
        return NextOf(self.stop_between(reached, end, max_bytes).only(parts), self.distance(reached, end))

    def distance(self, start: Offsets, end: Offsets) -> int:
        """About how many bytes the events between have."""
        return max(0, end.count - start.count) * EVENT_BYTES

    def fingerprints(self, tables: Iterable[RawTable]) -> dict[str, str]:
        """By table, the topic as it was created, the declared types, and Avro where it is declared."""
        declared = list(tables)
        found = self._brokers.topics(table.raw.topic for table in declared)
        return {table.name: _fingerprint(table, found.get(table.raw.topic, "missing")) for table in declared}

    def check_beginning(self, table: RawTable, facts: TableFacts, *, is_there: bool) -> None:
        """A topic goes on where it was read up to, whichever table that was for: raises TableProblem for another."""
        name, reached = table.raw.topic, self._reached()
        if name not in {topic for (topic, _), _ in reached}:
            return
        starts = self._brokers.starts(of_topics(self._brokers.topics([name]).values()))
        at = reached.by_partition
        if any(at.get(of, 0) > start for of, start in starts.items()):  # else it has all that is left
            read = store.topics_read(self._states, self._name)
            check_same_table(table, facts.oid, read.get(name), is_there=is_there)

    def inspect(self, table: RawTable, oid: int | None) -> tuple[TableFacts | None, TableProblem | None]:
        """A table's facts, as they are declared, and what is in the way of it."""
        found = self._brokers.topics([table.raw.topic]).get(table.raw.topic)
        if not isinstance(found, Topic):
            says = found or "it does not exist: create it, or correct meta.raw.topic of the declaration"
            return None, TableProblem(table.source, table.name, f"topic {table.raw.topic}: {says}")
        try:
            check_format(table, self._formats)
            return facts_of(table, found.id), None
        except TableProblem as problem:
            return None, problem

    def name_of(self, oid: int) -> tuple[str, str] | None:
        """The topic of that number, if it is still there, or may not be described: topics are never renamed."""
        named = {facts.oid: facts.relation for facts in self._begun()}
        found = self._brokers.topics([named[oid][1]]).get(named[oid][1]) if oid in named else None
        return named[oid] if isinstance(found, str) or (found is not None and found.id == oid) else None

    def check_readable(self, table: RawTable, facts: TableFacts) -> None:
        """What may not be read is not described either."""

    def check_key(self, table: RawTable, facts: TableFacts) -> None:
        """Events of one key are versions of its row, however many there are."""

    @contextmanager
    def snapshot(
        self, tables: Sequence[RawTable], before_try: Callable[[], None] = lambda: None
    ) -> Iterator[Point[Offsets]]:
        """Where the lake stands, and the earliest events of topics that it has not read: all rows come as changes.

        Raises LakehouseError where it has read a topic before, and what comes next is gone.
        """
        before_try()
        found = self._brokers.topics(self._with_own(table.raw.topic for table in tables))
        if missing := [table.raw.topic for table in tables if present(found, table.raw.topic) is None]:
            raise NotThere(f"source {self._name!r}: topic {', '.join(missing)} is not there")
        reached = self._reached()
        known = {topic for (topic, _), _ in reached}
        starts = self._brokers.starts(of_topics(found.values()))
        gone_on = of_topics(found.values(), lambda topic: topic.name in known)
        check_reach(self._name, reached, {p: starts[p] for p in gone_on}, self._brokers.ends(gone_on))
        self._tell_beginnings([table.raw.topic for table in tables if table.raw.topic not in known], starts)
        read = store.topics_read(self._states, self._name)
        before = {name for name, _ in read.values()}
        for table in (table for table in tables if table.name in before):
            topic = present(found, table.raw.topic)
            if topic is not None and read.get(topic.name) != (table.name, topic.id):
                self._tell_another(table.name, topic.name, table.key)
        yield Point(reached.join(Offsets.of(starts)), "", datetime.now(UTC))

    def _tell_beginnings(self, topics: Collection[str], starts: Mapping[Partition, int]) -> None:
        """Events that are gone are no rows that are missing: a table has those that were there to be read."""

    def _tell_another(self, table: str, topic: str, key: Collection[str]) -> None:
        """Of a table that was read from another topic, and whose rows can be deleted."""
        if key or self.kind == "debezium":
            log.warning(another(self._name, table, topic))

    def change_reader(
        self, now: SourceNow[Offsets], live: LiveStream[Offsets] | None, described: Iterable[TableFacts] = ()
    ) -> TopicReader:
        """Reads the events of the described tables from where the lake stands up to `now.position`."""
        shapes = {facts.relation[1]: shape_of(facts) for facts in described}
        reached = self._reached()
        self._tell_late([topic for topic, shape in shapes.items() if shape.key], reached, now.position)
        return TopicReader(
            source=self._name,
            properties=client_properties(self._settings.kafka(self._name)),
            ranges=tuple(ranges_to(reached, now.position, shapes)),
            shapes=shapes,
            commit_lsn=reached.join(now.position).commit_bound - 1,
            at=now.at,
            batch_bytes=self._settings.ingestion.batch_bytes,
            formats=self._formats,
        )

    def _tell_late(self, topics: Collection[str], reached: Offsets, end: Offsets) -> None:
        """Tells of deletes that may be lost in topics whose events have keys, and of keys that have moved."""
        for says in added(topics, reached, end):
            log.warning("source %r: %s", self._name, says)
        stream = store.read_stream(self._states, self._name)
        if stream is not None and topics:
            now = store.catalog_clock(self._states)
            for says in read_late(self._brokers, topics, reached, end, stream.updated_at, now):
                log.warning("source %r: %s", self._name, says)

    def stream(self, position: Offsets, max_bytes: int) -> None:
        """None: a read asks the brokers, which wait for events as long as they are told to."""

    def remember(self, states: CatalogConnection, epoch: int, witness: object | None) -> None:
        """The position says all."""

    def confirm(self, position: Offsets, live: LiveStream[Offsets] | None = None) -> None:
        """The state has it already; no consumer group is told."""

    def begin_anew(self, states: CatalogConnection) -> Callable[[CatalogConnection], None]:
        """What is returned begins the next epoch: a topic that is the same goes on, another begins with its earliest
        event, and so does one whose next events are gone. One that may not be described now is taken for the same: it
        is looked at again before it is read. What comes of parked and paused tables is kept aside as before."""
        read, reached = self._read(), self._reached().by_partition
        found = self._brokers.topics(self._with_own(read))
        stream, own = store.read_stream(self._states, self._name), self._own_id()
        same = {*(number for _, number in read.values()), stream.publication_oid if stream else 0}
        starts, ends = (ask(of_topics(found.values())) for ask in (self._brokers.starts, self._brokers.ends))
        partitions = of_topics(found.values(), lambda topic: topic.id in same)
        kept = {p: min(ends[p], max(starts[p], reached.get(p, 0))) for p in partitions}
        unseen = {p: offset for p, offset in reached.items() if p[0] in read and isinstance(found.get(p[0]), str)}
        at = POSITIONS[self.kind].start().join(Offsets.of(starts | kept | unseen))
        cluster, slot = store.Cluster(self._brokers.cluster_id, 0), stream.slot if stream else ""
        for says in gone_unread(self._name, reached, {p: starts[p] for p in partitions}):
            log.warning(says)
        for says in former_unread(self._name, self._begun(), found, reached):
            log.warning(says)

        def begin(states: CatalogConnection) -> None:
            before = store.read_positions(states, self._name)
            store.restart_stream(states, self._name, slot, cluster, own)  # one of before a move may still retain WAL
            for topic, (table, number) in read.items():
                store.note_topic(states, self._name, topic, table, number)
            for position in store.read_positions(states, self._name).values():
                if position.state == "stale":
                    store.put_position(states, self._name, replace(position.forgotten, state="new"), "user")
                elif position.state != "new":
                    self._keep_aside(states, before[position.table], found, at)
            store.advance_positions(states, self._name, at)

        return begin

    def _keep_aside(
        self, states: CatalogConnection, table: store.TablePosition, found: Mapping[str, Topic | str], at: Offsets
    ) -> None:
        """A parked or paused table stays described if its topic is there, be it another one by now: what comes of it is
        kept aside, beside what was."""
        topic = present(found, table.facts.relation[1]) if table.versions else None
        if topic is None:
            return
        if topic.id != table.facts.oid:
            versions = (*table.versions, replace(table.facts, oid=topic.id))
            table = replace(table, versions=versions, unfollowed=table.unfollowed + 1)
            store.note_topic(states, self._name, topic.name, table.table, topic.id)
            self._tell_another(table.table, topic.name, table.facts.key)
        kept = replace(table, epoch=table.epoch + 1, position=at, point=at)
        store.put_position(states, self._name, kept, "recovery")

    def _read(self) -> dict[str, tuple[str, int]]:
        """By topic the known table that it is read for, and its number then: noted, since a recovery forgets how tables
        are described until they are loaded."""
        positions = store.read_positions(self._states, self._name)
        noted = store.topics_read(self._states, self._name)
        described = {p.facts.relation[1]: (p.table, p.facts.oid)
                     for p in positions.values() if p.state != "new" and p.versions}  # fmt: skip
        return {topic: of for topic, of in noted.items() if of[0] in positions} | described

    def _begun(self) -> list[TableFacts]:
        """The tables that take part, as they were last described."""
        positions = store.read_positions(self._states, self._name).values()
        return [position.facts for position in positions if position.state != "new" and position.versions]

    def _topics(self, begun: Iterable[TableFacts]) -> dict[str, Topic | str]:
        return self._brokers.topics(self._with_own(facts.relation[1] for facts in begun))

    def _with_own(self, topics: Iterable[str]) -> list[str]:
        """The topics of tables, and what is read beside them."""
        return list(topics)

    def _own_id(self) -> int:
        """The number of the topic that is read beside those of tables; 0 where there is none."""
        return 0

    def _shown(self, partitions: Container[Partition]) -> Offsets:
        """How far the live states go that a follower has left, in these partitions."""
        shown = live.shown(self._states, self._name)
        return Offsets.of({p: offset for p, offset in shown.position if p in partitions} if shown else {})

    def _reached(self) -> Offsets:
        """Where the lake stands, or what is read and not published yet: below it everything has landed, or is kept
        aside."""
        ahead = self._ahead()
        return self._landed() if ahead is None else self._landed().join(ahead)

    def _landed(self) -> Offsets:
        stream = store.read_stream(self._states, self._name)
        reached: Offsets = stream.position if stream else POSITIONS[self.kind].start()
        for position in store.read_positions(self._states, self._name).values():
            reached = reached.join(position.position) if position.state != "new" else reached
        return reached


def ranges_to(reached: Offsets, end: Offsets, topics: Iterable[str]) -> Generator[Range]:
    first, place, wanted = reached.by_partition, 0, set(topics)
    for (topic, number), offset in end:
        start = first.get((topic, number), 0)
        if topic in wanted and start < offset:
            yield Range(topic, number, start, offset, place)
            place += offset - start


def _fingerprint(table: RawTable, topic: Topic | str) -> str:
    types: list[Any] = [(column.name, column.data_type) for column in table.columns]
    is_avro = "/avro" * (table.raw.format == "avro")
    return f"{topic.id if isinstance(topic, Topic) else topic}/{types}{is_avro}"
