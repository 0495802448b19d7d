"""Topics in memory through the pipeline into raw and live tables: what a follower does, step by step."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from ingestion.pipeline import load_changes, replay
from ingestion.pipeline.cycle import catch_up, connections, run_cycle
from ingestion.pipeline.held import Held
from ingestion.pipeline.session import Session
from ingestion.sink.writer import pack, unpack
from ingestion.sources.kafka import source as module
from ingestion.sources.kafka.connection import Topic
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import TopicReader
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.writing.commit import commit_on
from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import FlushPolicy, LoadPolicy, RawPolicy
from lakehouse.migrations import ensure_state
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import KafkaSettings, Settings
from lakehouse_serve.reading import CatalogRows, Document

AT = datetime(2026, 11, 24, tzinfo=UTC)
FLUSH = FlushPolicy(interval_minutes=10)
ID = {"id": "bigint"}
PARTITIONS = 2


@dataclass
class Broker:
    """Topics of a few partitions; it stands in for the cluster."""

    logs: dict[tuple[str, int], list[Any]] = field(default_factory=lambda: defaultdict(list))
    names: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)  # to our login
    created: dict[str, int] = field(default_factory=dict)  # how often each was created again
    cluster_id: str = "c"
    sent: int = 0
    says: str = ""
    gone: int = 0  # so many events of each partition
    partitions: int = PARTITIONS
    compact: dict[str, int] = field(default_factory=dict)  # topics, and for how many milliseconds they keep deletes
    old: int = 0  # so many events of each partition are older than that, or are gone

    def create(self, *names: str) -> None:
        self.names.update(names)

    def send(self, topic: str, count: int) -> None:
        for _ in range(count):
            event = {"id": self.sent} | ({"page": self.says} if self.says else {})
            self.logs[topic, self.sent % self.partitions].append(event)
            self.sent += 1

    def topics(self, names: Any) -> dict[str, Any]:
        numbers = tuple(range(self.partitions))
        return {n: "the login may not describe and read it" if n in self.closed
                else Topic(n, 1 + sum(map(ord, n)) + 7_000 * self.created.get(n, 0), numbers)
                for n in names if n in self.names}  # fmt: skip

    def starts(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.gone)

    def delete(self, name: str) -> None:
        self.names.remove(name)
        self.deleted.add(name)

    def create_again(self, name: str) -> None:
        """The topic of that name is another one, without events."""
        for of in [of for of in self.logs if of[0] == name]:
            del self.logs[of]
        self.created[name] = self.created.get(name, 0) + 1
        self.deleted.discard(name)
        self.create(name)

    def ends(self, partitions: Any) -> dict[Any, int]:
        if any(topic in self.deleted for topic, _ in partitions):
            raise Unreachable("Kafka does not answer (Failed to query partition leaders: No leaders found)")
        return {partition: len(self.logs[partition]) for partition in partitions}

    def compacted(self, names: Any) -> dict[str, int]:
        return {name: self.compact[name] for name in names if name in self.compact}

    def since(self, partitions: Any, moment: datetime) -> dict[Any, int]:
        return {partition: self.old if self.old < len(self.logs[partition]) else -1 for partition in partitions}

    def ends_with_open(self, partitions: Any) -> dict[Any, int]:
        return self.ends(partitions)

    def fetched(self, reader: TopicReader) -> Iterator[tuple[str, pa.Table]]:
        for r in reader.ranges:
            rows = [
                {"partition": r.partition, "offset": n, "at": AT, "key": None,
                 "value": json.dumps(self.logs[r.topic, r.partition][n]).encode()}
                for n in range(r.first, r.end)
            ]  # fmt: skip
            yield r.topic, pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)


@dataclass
class Follower:
    """One process: its session and its connections, which a kill ends at once."""

    session: Session
    opened: Any
    states: Any
    stack: ExitStack

    def read(self) -> int:
        """One step: rows that it has published."""
        rows = catch_up(self.session, self.opened, self.states).rows
        return sum(sum(counts.values()) for counts in rows.values())


class Files:
    """The store of the service: the metadata files as they are."""

    def read(self, location: str) -> bytes:
        with open(location.removeprefix("file://"), "rb") as file:
            return file.read()


@dataclass
class Lake:
    """A source with a declared flush, and how its tables are read."""

    settings: Settings
    catalog: LakeCatalog
    broker: Broker
    source: Source
    now: float = 0.0
    follower: Follower | None = None

    def start(self) -> Follower:
        stack = ExitStack()
        states = stack.enter_context(store.connect_catalog(self.settings))
        states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
        lease = leases.acquire(states, "web", 60, "follow")
        assert lease is not None
        held = Held(600.0, clock=lambda: self.now) if self.source.flush else None
        session = Session(
            self.settings, self.catalog, cast(Any, None), lease, self.source, stop=threading.Event(),
            origin=module.KafkaSource(self.settings, "web"), held=held,
        )  # fmt: skip
        opened, states = stack.enter_context(connections(session))
        if held is not None:
            cast(Any, opened).read_on_from(lambda: held.ahead, held.hurry)
        self.follower = Follower(session, opened, states, stack)
        return self.follower

    def kill(self) -> None:
        assert self.follower is not None
        self.follower.stack.close()
        self.follower = None

    def once(self, work: Callable[[Session], object] = run_cycle) -> None:
        """`ingest --once`, or other work that takes the lease, beside nobody."""
        with store.connect_catalog(self.settings) as states:
            states.execute("UPDATE lakehouse.leases SET expires_at = clock_timestamp()")
            lease = leases.acquire(states, "web", 60, "once")
            assert lease is not None
            origin = module.KafkaSource(self.settings, "web")
            work(Session(self.settings, self.catalog, cast(Any, None), lease, self.source, origin=origin))
            leases.release(states, lease)

    def committed(self, name: str = "clicks") -> list[int]:
        return ids(self.catalog.load_table(("raw_web", name)))

    def document(self, name: str = "clicks") -> Document:
        """What the service answers for the live table."""
        rows = CatalogRows(self.settings, cast(Any, Files()))
        try:
            found = rows.live("raw_web", name)
        finally:
            rows.close()
        assert found is not None
        return found

    def shown(self, name: str = "clicks") -> list[int]:
        return ids(self.table_at(self.document(name).location, name))

    def table_at(self, location: str, name: str = "clicks") -> Table:
        from pyiceberg.serializers import FromInputFile

        metadata = FromInputFile.table_metadata(self.catalog.file_io.new_input(location))
        return Table(("raw_web", name), metadata, location, self.catalog.file_io, self.catalog)

    def snapshots(self, name: str = "clicks") -> int:
        return len(self.catalog.load_table(("raw_web", name)).metadata.snapshots)

    def rewrite(self, name: str = "clicks", operation: Operation = Operation.REPLACE) -> None:
        """A commit of another writer with the same rows, as a compaction makes it."""
        table = self.catalog.load_table(("raw_web", name))
        current = table.current_snapshot()
        assert current is not None and current.summary is not None
        number = uuid.uuid4().int >> 66
        made = Snapshot(
            snapshot_id=number, parent_snapshot_id=current.snapshot_id, manifest_list=current.manifest_list,
            sequence_number=table.metadata.last_sequence_number + 1, schema_id=current.schema_id,
            timestamp_ms=max(current.timestamp_ms, table.metadata.last_updated_ms) + 1,
            summary=Summary(operation, **current.summary.additional_properties),
        )  # fmt: skip
        branch = {"ref_name": "main", "type": SnapshotRefType.BRANCH, "snapshot_id": number}
        ref = SetSnapshotRefUpdate.model_validate(branch)
        commit_on(self.catalog, table, (AddSnapshotUpdate(snapshot=made), ref))


def ids(table: Table) -> list[int]:
    rows = table.scan().to_arrow().to_pylist()
    places = {(row["_topic_partition"], row["_offset"]) for row in rows}
    assert len(places) == len(rows), "an event is there twice"
    return sorted(row["id"] for row in rows)


def declared(*names: str, flush: FlushPolicy | None = FLUSH, columns: Mapping[str, str] = ID, **raw: Any) -> Source:
    tables = tuple(
        RawTable(
            source="web", name=name, description="", kind="kafka", raw=RawPolicy(topic=name, **raw), owners=(),
            flush=flush,
            columns=tuple(Column(name=n, data_type=kind, description="") for n, kind in columns.items()),
            load=LoadPolicy(), maintenance=None,
        )
        for name in names
    )  # fmt: skip
    return Source(name="web", description="", load=LoadPolicy(), tables=tables)


def make_lake(settings: Settings, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> Lake:
    broker = Broker()
    broker.create("clicks")
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(cast(Any, connection))

    def run_here(spark: Any, work: Any, items: Any) -> list[Any]:
        return [work(unpack(pack(item))) for item in items]

    for part in (load_changes, replay):
        monkeypatch.setattr(part, "run_tasks", run_here)
    monkeypatch.setattr(module, "Brokers", lambda *_: broker)
    monkeypatch.setattr(TopicReader, "fetched", lambda reader: broker.fetched(reader))
    mine = settings.model_copy(update={"sources": {"web": KafkaSettings(kind="kafka", bootstrap_servers="nowhere:1")}})
    return Lake(mine, catalog, broker, declared("clicks"))
