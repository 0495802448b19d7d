"""What people are told of a read."""

import re
from collections.abc import Iterator

import numpy as np

from ingestion.sources.debezium.gathered import MILLISECOND, Gathered
from ingestion.sources.debezium.join.heads import EVENT, LOOSE, SNAPSHOT
from ingestion.sources.debezium.join.joined import SKEW, STALLED, Joined
from ingestion.sources.debezium.message.envelope import EPOCH

EXACT = (3, 7)  # from this version of Debezium on nothing is lost with exactly once
NULLS = (
    "set replace.null.with.default=false of Connect's JSON converter (value.converter.…, Kafka 3.5 or newer), or "
    "ignore.default.for.nullables=true of Confluent's Avro converter"
)


def warnings(work: Gathered, joined: Joined) -> Iterator[str]:
    """What is upstream and cannot be made good here."""
    if old := sorted(v for v in work.versions if _is_older(v)):
        yield (
            f"Debezium {', '.join(old)} may lose rows of a transaction within which Kafka Connect is killed, also "
            "with exactly once: take 3.7 or newer"
        )
    for topic, told in sorted(work.columns.items()):
        missing = [c.name for c in work.reader.shapes[topic].columns if c.name not in told]
        if told and missing:  # deletes alone tell no columns
            yield f"topic {topic}: column {', '.join(missing)} is in none of its events, and lands as NULL"
        _, newest = work.newest.get(topic, (0, told))
        if left := [c.name for c in work.reader.shapes[topic].columns if c.name in told and c.name not in newest]:
            yield (
                f"topic {topic}: column {', '.join(left)} is not in its newest events any more, and lands as NULL: it "
                "was renamed or dropped in the database: let the declaration follow"
            )
    for topic, found in sorted(work.origins.items()):
        before = work.reader.origins.get(topic)
        if len(origins := {*found, *([before] if before else [])}) > 1:
            which = ", ".join(f"{prefix} of database {database}" for prefix, database in sorted(origins))
            yield (
                f"topic {topic}: its events come from several connectors or databases ({which}): unless one took the "
                "place of the other, rows with the same key are one row: let each write to topics of another prefix, "
                "and declare these as a source of their own"
            )
    for topic, where in sorted(work.snapshots.items()):
        yield (
            f"topic {topic}: another snapshot begins at {where}: if no signal asked for it, the connector had lost "
            "its offsets, and what was deleted meanwhile is told by nothing: compare with the database"
        )
    if topics := _without_snapshot(work, joined):
        yield (
            f"topic {', '.join(topics)} begins with changes, and has no rows of a snapshot: unless its table was empty "
            "then, what it had is missing: ask the connector for a snapshot of it, by a signal"
        )
    for topic, latest in sorted(work.ahead.items()):
        if latest > work.reader.now + SKEW:
            yield (
                f"topic {topic}: messages came at {latest:%Y-%m-%d %H:%M:%S} UTC by their timestamps, which is still "
                "to come: set the clocks of Kafka Connect and of the brokers right. What waits for a moment, as a "
                "TRUNCATE in a topic of several partitions, waits until then where nobody follows the source"
            )
    for topic, names in sorted(work.hidden.items()):
        which = f"topic {topic}: a NULL in {', '.join(sorted(names))}" if names else "a NULL in a column with a default"
        yield f"{which} comes as the column's default: {NULLS}"
    for offset in work.strays.reasons:
        if offset < joined.told_to and work.reader.told is not None:
            yield (
                f"{work.stray(work.reader.told, offset)}: it is passed, and if it was the END of a transaction, what "
                "there is of that waits, and what is behind it in its topics"
            )
    held = min((offset for offset in work.strays.reasons if offset >= joined.told_to), default=None)
    if held is not None and work.reader.told is not None and work.reader.now - work.strays.came[held] > STALLED:
        yield (
            f"{work.stray(work.reader.told, held)}: nothing behind it can be read, so all that has come since waits: "
            "correct `transactions`, or what writes to that topic"
        )
    if joined.forgotten and work.reader.told is not None:
        yield (
            f"its topics have transactions whose ENDs are not in {work.reader.told.topic} any more: they land, "
            "each partition in its order, but not whole: let that topic keep messages as long as the others do"
        )
    for relation, (gone, count) in sorted(joined.missing.items()):
        yield (
            f"{gone} of {count} events of {relation}, which the ENDs of transactions count, are not in its topic: "
            "retention or compaction took them, and their changes are in no table: compare with the database"
        )
    for xid in sorted(joined.endless):
        yield (
            f"transaction {xid} has no END, because the connector had lost its offsets within it and began anew: "
            "what came of it lands below the rows of the snapshot, which have the rest"
        )
    for xid, at in sorted(joined.unended.items()):
        yield (
            f"transaction {xid} has no END, and its last event came at {EPOCH + at * MILLISECOND:%Y-%m-%d %H:%M:%S} "
            "UTC: its rows wait, and what is behind them in their topics, while other tables go on: look whether the "
            "connector runs, and whether `transactions` is its transaction topic"
        )
    if work.reader.told is None:
        yield (
            "no topic tells its transactions: a cut is a state of each table alone, not of several together; set "
            "provide.transaction.metadata of the connector and `transactions` of the source for more"
        )
    if not work.reader.exactly_once and work.reader.told is None:
        yield (
            "its topics are declared to be delivered at least once: an event that comes twice lands twice, and its "
            "row goes back until the repetition is read: set exactly.once.source.support of Kafka Connect"
        )
    elif not work.reader.exactly_once:
        yield (
            "its topics are declared to be delivered at least once: an event that comes twice is dropped by its "
            "key; set exactly.once.source.support of Kafka Connect, then declare delivery = exactly_once"
        )


def _without_snapshot(work: Gathered, joined: Joined) -> list[str]:
    """The topics whose first event lands now, and that have changes, but no row of a snapshot."""
    ranges, passed = work.reader.ranges, {topic for (topic, _), _ in work.reader.before}
    begun = {r.topic for r, offset in zip(ranges, joined.offsets, strict=True) if offset and r.topic not in passed}
    changed, filled = set[int](), set[int]()
    for _, heads in work.heads.windows() if begun else ():
        is_row = np.isin(heads["kind"], (LOOSE, SNAPSHOT)) | (heads["op"] == ord("r"))
        filled.update(np.unique(heads["partition"][is_row]).tolist())
        changed.update(np.unique(heads["partition"][(heads["kind"] == EVENT) & ~is_row]).tolist())
    return sorted(begun & {ranges[number].topic for number in changed} - {ranges[number].topic for number in filled})


def _is_older(version: str) -> bool:
    """Whether it is before 3.7; a version that is not written as Debezium's are is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < EXACT
