"""Whether the cluster and its topics are those that the lake was read from, and still have what comes next."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from ingestion.schema.facts import TableFacts
from ingestion.schema.offsets import Offsets, Partition
from ingestion.schema.problem import TableProblem
from ingestion.sources.kafka.connection import Brokers, Topic, present
from ingestion.sources.kinds import check_not_restored, check_same_kind
from ingestion.state.store import Stream
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

NOWHERE = Offsets()
A_WHILE = timedelta(minutes=1)  # after which it is asked for how long compacted topics keep deletes
MILLISECOND = timedelta(milliseconds=1)


def check_cluster(stream: Stream, cluster_id: str, kind: str) -> None:
    """Raises LakehouseError for a source that was of another kind, or is to be recovered, and for another cluster."""
    check_same_kind(stream, kind)
    check_not_restored(stream)
    if stream.system_identifier != cluster_id:
        raise LakehouseError(
            f"source {stream.source!r}: this is not the Kafka cluster the lake was read from (cluster id "
            f"{stream.system_identifier}, now {cluster_id}): correct LAKEHOUSE_SOURCES__{stream.source.upper()}__"
            f"BOOTSTRAP_SERVERS, or {_recover(stream.source)}"
        )


def check_topics(source: str, begun: Iterable[TableFacts], found: Mapping[str, Topic | str]) -> None:
    """Raises LakehouseError for a topic that was deleted and created again."""
    for facts in begun:
        topic = present(found, facts.relation[1])
        if topic is not None and topic.id != facts.oid:
            raise LakehouseError(
                f"source {source!r}: topic {topic.name} was deleted and created again since the lake last read it: "
                f"its offsets begin anew; {_recover(source)}"
            )


def check_same_table(table: RawTable, number: int, read: tuple[str, int] | None, *, is_there: bool) -> None:
    """Raises TableProblem for a table that begins, where its topic was `read` for another one, or was another topic
    then; where neither is known, its raw table has to be there."""
    name, then = read or (table.name, number)
    if is_there and (name, then) == (table.name, number):
        return
    says = f"was read before, as table {name!r}"
    if name == table.name:
        says = "was deleted and created again since the lake last read it" if then != number else "was read before"
    raise TableProblem(
        table.source, table.name,
        f"topic {table.raw.topic} {says}: `lakehouse ingest --recover {table.source}` reads it from its beginning, "
        "and the others go on, in the next epoch",
    )  # fmt: skip


def another(source: str, table: str, topic: str) -> str:
    """What people are told of a table that begins to be read from another topic, also of the same name."""
    return (
        f"source {source!r}, table {table!r}: topic {topic} is another one than the table was read from before: rows "
        "that were deleted in between stay, since nothing tells that they are gone; to begin the table without them, "
        f"and without its history: `lakehouse remove {source}.{table} --drop-tables`, declare it again, then "
        f"`lakehouse ingest --recover {source}`"
    )


def gone_unread(source: str, reached: Mapping[Partition, int], starts: Mapping[Partition, int]) -> Iterator[str]:
    """What people are told of events that are gone, and were never read, of topics that go on."""
    begun = {topic for topic, _ in reached}
    for (topic, number), start in sorted(starts.items()):
        if topic in begun and (offset := reached.get((topic, number), 0)) < start:
            yield (
                f"source {source!r}: topic {topic}, partition {number}: events {offset} to {start - 1} were deleted "
                "before the lake had read them, and are in no table"
            )


def former_unread(
    source: str, begun: Iterable[TableFacts], found: Mapping[str, Topic | str], reached: Mapping[Partition, int]
) -> Iterator[str]:
    """What people are told of topics that were created again: nobody knows whether the former one had more events."""
    for facts in begun:
        topic = present(found, facts.relation[1])
        if topic is not None and topic.id != facts.oid:
            read = (f"{offset} of partition {n}" for (name, n), offset in sorted(reached.items()) if name == topic.name)
            yield (
                f"source {source!r}: topic {topic.name} was deleted and created again: what the former one had from "
                f"these offsets on is in no table: {', '.join(read) or 'the first one'}"
            )


def check_reach(
    source: str, reached: Offsets, starts: Mapping[Partition, int], ends: Mapping[Partition, int],
    shown: Offsets = NOWHERE,
) -> None:  # fmt: skip
    """Raises LakehouseError where the next events of a partition are gone, or where it ends before what was read, or
    `shown` in live tables."""
    at, seen = reached.by_partition, reached.join(shown).by_partition
    for (topic, number), start in sorted(starts.items()):
        offset, end = at.get((topic, number), 0), ends[topic, number]
        where = f"source {source!r}: topic {topic}, partition {number}"
        if offset < start:
            raise LakehouseError(
                f"{where}: events {offset} to {start - 1} were deleted before the lake had read them: raise "
                f"retention.ms of the topic, or ingest more often; {_recover(source)}"
            )
        if end < (read := seen.get((topic, number), 0)):
            raise LakehouseError(
                f"{where} ends at offset {end}, before {read}, up to which the lake has read it: its brokers have "
                f"lost events; {_recover(source)}"
            )


def read_late(
    brokers: Brokers, topics: Collection[str], reached: Offsets, end: Offsets, read_at: datetime, now: datetime
) -> Iterator[str]:
    """Of the topics, whose events up to `end` are about to be read, says which may have lost deletes, if it was last
    read at `read_at`: those that are compacted, and had something to read for longer than they keep deletes.

    A delete that compaction took shows in nothing that is left. What came last night and was read then leaves the
    position behind it, and the next event is there, and young.
    """
    if now - read_at < A_WHILE:
        return
    at, ends = reached.by_partition, end.by_partition
    for topic, kept_ms in sorted(brokers.compacted(topics).items()):
        if kept_ms is None or (now - read_at) / MILLISECOND <= kept_ms:
            continue
        unread = [p for p, offset in at.items() if p[0] == topic and offset < ends.get(p, 0)]
        starts, young = brokers.starts(unread), brokers.since(unread, now - kept_ms * MILLISECOND)
        if any(starts[p] < at[p] and young.get(p) != at[p] for p in unread):
            yield (
                f"topic {topic} is compacted and keeps deletes for {a_time(kept_ms)} (delete.retention.ms), and had "
                "events for longer that were not read: deletes may be lost, and their rows stay current: compare with "
                "who writes it, and raise delete.retention.ms, or ingest more often"
            )


def added(topics: Collection[str], reached: Offsets, end: Offsets) -> Iterator[str]:
    """Of the topics, says which have got partitions behind those that were read before, whose events are about to be
    read: keys have moved between partitions, whose events nothing orders within a read."""
    known = {of for of, _ in reached}
    for topic in sorted(topics):
        last = max((number for name, number in known if name == topic), default=None)
        new = [number for (name, number), _ in end if name == topic and last is not None and number > last]
        if new:
            which = ", ".join(map(str, sorted(new)))
            yield (
                f"topic {topic}, partition {which}: read for the first time, after others: if it was added to the "
                "topic, a key whose events moved to another one may show an older version until its next event: let "
                "who writes it send the newest version of each key again, unless all was read then"
            )


def a_time(milliseconds: int) -> str:
    """A time for people."""
    seconds = milliseconds / 1000
    count, unit = (seconds, "s") if seconds < 60 else (seconds / 60, "min") if seconds < 3600 else (seconds / 3600, "h")
    return f"{count:,.4g} {unit}"


def _recover(source: str) -> str:
    return f"`lakehouse ingest --recover {source}` goes on with what is there, in the next epoch"
