"""Live tables: one state of what is published and what is read, in every engine, whatever is killed meanwhile."""

import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from pydantic import SecretStr
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table

from lakehouse.catalog.live_tables import POSITION, SNAPSHOT
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations.policies import FlushPolicy, RawPolicy
from lakehouse.servers.trino import query
from lakehouse.settings import ServeSettings, Settings
from lakehouse_cli.machine.clients import client_text
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.pages import DOCS, block, fenced
from tests.serving import PASSWORDS, Served, served
from tests.test_serve_clients import DUCKDB, environment, installed, restart_trino, run, trino_catalogs
from tests.world import make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PAGE = "how-to/live-tables.md"
SPARK_CATALOG = "carts"  # a session keeps the address of a catalog that it has used
GROWN = 9000  # rows after which a follower is killed, which has published by then
READS = int(os.environ.get("READS", "60"))
COLUMNS = {"id": "bigint", "page": "text"}


@dataclass
class Live:
    """A source of one topic that is published at this interval, and the service that shows it."""

    topics: Topics
    service: Served
    sent: int = 0
    follower: "subprocess.Popen[str] | None" = field(default=None)

    @property
    def space(self) -> str:
        return f"raw_{self.topics.source.name}"

    def send(self, count: int) -> None:
        topic = self.topics.source.table("clicks").raw.topic
        ids = range(self.sent, self.sent + count)
        self.topics.broker.produce(topic, [{"id": i, "page": f"/p{i % 3}"} for i in ids], keys=ids)
        self.sent += count

    def start(self) -> None:
        self.follower = self.topics.start_driver("--follow")

    def kill(self) -> None:
        assert self.follower is not None
        self.follower.kill()
        self.follower.communicate()

    def stop(self, with_jvm: bool) -> None:
        assert self.follower is not None
        process = psutil.Process(self.follower.pid)
        for ended in (*(p for p in process.children(recursive=True) if p.name() == "java" and with_jvm), process):
            ended.terminate()
        _, errors = self.follower.communicate(timeout=60)
        assert "Traceback" not in errors, errors

    def client(self, role: str = "writer", warehouse: str = "lake") -> RestCatalog:
        return self.service.client(role, warehouse)

    def table(self, client: RestCatalog) -> Table:
        return client.load_table(f"live_{self.space}.clicks")

    def shown(self, client: RestCatalog) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table(client).scan().to_arrow().to_pylist()
        return rows

    def until(self, rows: int, client: RestCatalog, seconds: float = 90) -> float:
        """Waits until the live table has so many rows; returns how long it took."""
        begun = time.monotonic()
        while f"live_{self.space}" not in {name for (name,) in client.list_namespaces()}:
            self._alive(begun, seconds)
        while len(self.shown(client)) < rows:
            self._alive(begun, seconds)
        return time.monotonic() - begun

    def begin(self, spark: Any, rows: int) -> RestCatalog:
        """Publishes so many rows, and has a follower hold as many more; the client that reads them."""
        self.send(rows)
        self.topics.ingest(spark)
        client = self.client()
        self.start()
        self.send(rows)
        self.until(2 * rows, client)
        return client

    def _alive(self, begun: float, seconds: float) -> None:
        assert self.follower is None or self.follower.poll() is None, self.follower.communicate()
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)

    def committed(self) -> list[dict[str, Any]]:
        return self.topics.raw("clicks")

    def appends(self) -> int:
        """The snapshots of the raw table that have added rows."""
        catalog = open_catalog(self.topics.settings)
        try:
            table = load_table(catalog, self.space, "clicks")
            assert table is not None
            found = [s for s in table.metadata.snapshots if s.summary and s.summary.operation.value == "append"]
        finally:
            catalog.close()
        return len(found)


@contextmanager
def live_source(
    settings: Settings, broker: Broker, folder: Path, minutes: float, partitions: int, key: tuple[str, ...] = ()
) -> Iterator[Live]:
    topic = f"live-{random.randrange(10**9)}"
    broker.create(topic, partitions)
    tables = {"clicks": (RawPolicy(topic=topic, key=key), COLUMNS)}
    made = make_topics(settings, broker, tables, lease_seconds=2, flush_interval_seconds=0.5)
    text = block(PAGE, "yaml", ("interval_minutes: 10", f"interval_minutes: {minutes}"))
    (declared,) = yaml.safe_load(text)["sources"]
    flush = FlushPolicy.model_validate(declared["config"]["meta"]["flush"])
    tables_with = tuple(table.model_copy(update={"flush": flush}) for table in made.source.tables)
    topics = replace(made, source=made.source.model_copy(update={"tables": tables_with}))
    relation = {"schema": f"raw_{topics.source.name}", "name": "clicks", "least": "reader", "personal": ["page"]}
    try:
        with served(settings, folder, [relation], LAKEHOUSE_SERVE__REQUESTS_PER_SECOND="1000") as service:
            live = Live(topics, service)
            try:
                yield live
            finally:
                if live.follower is not None and live.follower.poll() is None:
                    live.kill()
    finally:
        drop_lake_of(topics)


def text_for(live: Live, client: str) -> str:
    """What `lakehouse env --for CLIENT` prints, with the writer's login."""
    login = {"reader_user": "lakehouse", "reader_password": SecretStr(PASSWORDS["lakehouse"])}
    settings = live.topics.settings
    serve = ServeSettings(port=int(live.service.uri.rpartition(":")[2]))
    trino = settings.trino.model_copy(update=login)
    return client_text(settings.model_copy(update={"trino": trino, "serve": serve}), client)


DUCK = (
    DUCKDB[: DUCKDB.index("attach = time")]
    + """
live = lake.execute("SELECT count(*), max(id) FROM lake.live_{raw}.clicks").fetchone()
pinned = lake.execute("SELECT count(*) FROM lake.live_{raw}.clicks AT (VERSION => {state})").fetchone()
cold = lake.execute("SELECT count(*) FROM lake.{raw}.clicks").fetchone()
print(json.dumps({{"live": live, "pinned": pinned, "cold": cold}}))
"""
)


def test_kafka_iceberg_and_postgres_read_as_nine_in_every_engine_for_one_pinned_state(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    """Three rows in Kafka, three in Iceberg, three in Postgres; every engine names the same state."""
    world = make_world(
        settings, "CREATE TABLE items (id int PRIMARY KEY)", {"items": RawPolicy(relation="public.items", key=("id",))}
    )
    world.sql("INSERT INTO items VALUES (100), (101), (102)")
    world.ingest(spark)
    with live_source(settings, broker, tmp_path / "access", 10, 2) as live:
        client = live.begin(spark, 3)
        pinned = live.table(client)
        state = int(pinned.properties[SNAPSHOT])
        assert pinned.metadata.current_snapshot_id == state
        ends = dict(part.rpartition(":")[::2] for part in pinned.properties[POSITION].split(","))
        assert sum(map(int, ends.values())) == 6, "offsets are exclusive: the next of each partition"
        took = []
        for count in range(7, 12):
            live.send(1)
            took.append(live.until(count, client))
        print(f"produce → live: {[round(seconds, 2) for seconds in took]} s")
        assert max(took) <= 5.0
        newest = live.table(client).properties
        assert len(live.committed()) == 3 and newest[SNAPSHOT] != str(state)
        assert live.table(client).scan(snapshot_id=state).to_arrow().num_rows == 6

        parts = "SELECT id FROM {c}.live_{s}.clicks {at} UNION ALL SELECT id FROM {c}.raw_{w}.items"
        names = {"s": live.space, "w": world.source.name}
        conf = text_for(live, "spark").replace("catalog.lake", "catalog.served")
        for line in conf.splitlines()[1:]:
            spark.conf.set(*line.split("=", 1))
        spark.conf.set("spark.sql.catalog.served.cache-enabled", "false")
        nine = parts.format(c="served", at=f"VERSION AS OF {state}", **names)
        assert spark.sql(f"SELECT count(*) FROM ({nine})").collect()[0][0] == 9
        assert spark.sql(f"SELECT count(*) FROM ({parts.format(c='served', at='', **names)})").collect()[0][0] == 14
        shown = dict(tuple(row) for row in spark.sql(f"SHOW TBLPROPERTIES served.live_{live.space}.clicks").collect())
        assert (shown[SNAPSHOT], shown[POSITION]) == (newest[SNAPSHOT], newest[POSITION])
        plan = spark.sql(f"SELECT page FROM served.live_{live.space}.clicks WHERE id = 4")._jdf.queryExecution()
        assert re.search(r"BatchScan.*filters=[^]]*id = 4", plan.toString()), "the filter is Iceberg's"

        file = trino_catalogs(settings) / "served.properties"
        file.write_text(text_for(live, "trino"))
        try:
            restart_trino(settings)
            nine = parts.format(c="served", at=f"FOR VERSION AS OF {state}", **names)
            assert query(settings, f"SELECT count(*) FROM ({nine})") == [[9]]
            asked = block(PAGE, "sql", ("raw_web", live.space)).splitlines()  # a statement each, and what it counts
            assert [query(settings, each.partition(";")[0]) for each in asked] == [[[11]], [[3]]], "read, and published"
            table = f"served.live_{live.space}"
            properties = dict(query(settings, f'SELECT key, value FROM {table}."clicks$properties"'))
            assert (properties[SNAPSHOT], properties[POSITION]) == (newest[SNAPSHOT], newest[POSITION])
            [[plan]] = query(settings, f"EXPLAIN SELECT page FROM {table}.clicks WHERE id = 4")
            [estimated] = re.findall(r"{rows: (\d+) .*}/{", plan)
            assert int(estimated) < 11, "files without such rows are left out"
            latest = f"SELECT page, max_by(_offset, id) FROM {table}.clicks GROUP BY page ORDER BY page"
            rows = live.shown(client)
            assert [tuple(row) for row in query(settings, latest)] == latest_of(rows), "the last of each, hot or cold"
        finally:
            file.unlink()
            restart_trino(settings)


def latest_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    last: dict[str, tuple[int, int]] = {}
    for row in rows:
        last[row["page"]] = max(last.get(row["page"], (-1, -1)), (row["id"], row["_offset"]))
    return [(page, offset) for page, (_, offset) in sorted(last.items())]


class Carts:
    """Events of a few keys, written and deleted again and again, and what is left of them: the oracle."""

    def __init__(self, live: Live) -> None:
        self.live, self.left, self._chance, self._count = live, dict[int, str](), random.Random(1), 0

    def send(self, count: int) -> None:
        ids = [self._chance.randrange(40) for _ in range(count)]
        events = list[dict[str, Any] | None]()
        for number in ids:
            self._count += 1
            if self._chance.random() < 0.2:
                self.left.pop(number, None)
                events.append(None)
            else:
                self.left[number] = f"/{self._count}"
                events.append({"id": number, "page": self.left[number]})
        self.live.topics.broker.produce(self.live.topics.source.table("clicks").raw.topic, events, keys=ids)
        self.live.sent += count


def newest_of_each_key(live: Live) -> list[str]:
    """The page's statements for Trino and for Spark, of this table."""
    found = [
        text for language, text in fenced((DOCS / PAGE).read_text()) if language == "sql" and "PARTITION BY" in text
    ]
    return [
        re.sub(r"\w+\.live_raw_web\.carts", f"{catalog}.live_{live.space}.clicks", text.rstrip().rstrip(";"))
        for catalog, text in zip(("served", SPARK_CATALOG), found, strict=True)
    ]


def test_the_pages_statements_tell_the_newest_row_of_each_key_published_or_only_read(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    with live_source(settings, broker, tmp_path / "access", 10, 3, key=("id",)) as live:
        carts = Carts(live)
        carts.send(200)
        live.topics.ingest(spark)
        client = live.client()
        live.start()
        file = trino_catalogs(settings) / "served.properties"
        file.write_text(text_for(live, "trino"))
        for line in text_for(live, "spark").replace("catalog.lake", f"catalog.{SPARK_CATALOG}").splitlines()[1:]:
            spark.conf.set(*line.split("=", 1))
        try:
            restart_trino(settings)
            of_trino, of_spark = newest_of_each_key(live)
            for count in (30, 1, 90):  # reads of their own, of which none is published
                carts.send(count)
                live.until(live.sent, client)
                wanted = sorted(carts.left.items())
                assert sorted(tuple(row) for row in query(settings, of_trino)) == wanted
                assert sorted(tuple(row) for row in spark.sql(of_spark).collect()) == wanted
            assert len(live.committed()) == 200, "hot and cold rows of most keys"
            live.stop(with_jvm=False)
            assert len(live.committed()) == live.sent == 321
            assert sorted(tuple(row) for row in query(settings, of_trino)) == wanted
        finally:
            file.unlink()
            restart_trino(settings)


def test_duckdb_reads_a_live_table_and_a_pinned_state_of_it(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    with live_source(settings, broker, tmp_path / "access", 10, 2) as live:
        client = live.begin(spark, 3)
        state = live.table(client).properties[SNAPSHOT]
        live.send(5)
        live.until(11, client)

        duck = environment(
            tmp_path / "duckdb", "duckdb==1.5.5",
            *(f"duckdb-extension-{name}==1.5.5" for name in ("iceberg", "avro", "httpfs")),
        )  # fmt: skip
        code = DUCK.format(connect=installed(text_for(live, "duckdb")), raw=live.space, state=state)
        found = run(duck, code, tmp_path)
        assert found["live"] == [11, 10] and found["cold"] == [3] and found["pinned"] == [6]


def test_rights_and_personal_columns_hold_for_live_tables_and_the_past_has_none(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    with live_source(settings, broker, tmp_path, 10, 1) as live:
        live.begin(spark, 2)
        reader = live.client("reader")
        assert reader.list_tables(f"live_{live.space}") == [(f"live_{live.space}", "clicks")]
        with pytest.raises(ForbiddenError, match=r"personal columns \(page\)"):
            reader.load_table(f"live_{live.space}.clicks")
        assert live.client("privacy").load_table(f"live_{live.space}.clicks").scan().to_arrow().num_rows == 4
        time.sleep(1)  # what is committed is of an earlier second then
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        past = {name for (name,) in live.client("writer", f"lake@{now}").list_namespaces()}
        assert live.space in past and f"live_{live.space}" not in past
        assert len(live.committed()) == 2
        live.topics.ingest(spark)
        assert len(live.committed()) == 4, "whoever waits for the follower has what it holds published"


def test_a_follower_that_is_stopped_publishes_what_it_holds_whatever_else_is_stopped_with_it(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    """As a terminal does it, and as systemd, which ends its JVM too."""
    with live_source(settings, broker, tmp_path, 10, 2) as live:
        client = live.begin(spark, 5)
        for rows, with_jvm in ((10, False), (14, True)):
            live.send(rows - live.sent)
            live.until(rows, client)
            before = live.appends()
            live.stop(with_jvm)
            assert sorted(row["id"] for row in live.committed()) == list(range(rows)) and live.appends() == before + 1
            assert len(live.shown(client)) == rows
            live.start()


def test_readers_see_a_growing_prefix_while_followers_are_killed_and_files_compacted(
    settings: Settings, broker: Broker, spark: Any, tmp_path: Path
) -> None:
    """A thousand events a second through flushes of six seconds; each read is checked against the offsets."""
    with live_source(settings, broker, tmp_path, 0.1, 2) as live:
        live.send(10)
        live.topics.ingest(spark)
        stop = threading.Event()
        workers = [threading.Thread(target=_produce, args=(live, stop)), threading.Thread(target=_compact, args=(
            spark, live, stop))]  # fmt: skip
        begun = time.monotonic()
        live.start()
        client = live.client()
        for worker in workers:
            worker.start()
        try:
            live.until(20, client)
            kills = _read_and_kill(live, client)
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        seconds, appends = time.monotonic() - begun, live.appends()
        print(f"{READS} reads of up to {live.sent} rows in {seconds:.0f} s, {kills} kills, {appends} snapshots")
        assert appends <= seconds / 6 + 2
        live.until(live.sent, client)
        live.kill()
        live.topics.ingest(spark)
        assert sorted(row["id"] for row in live.committed()) == list(range(live.sent))
        assert len(live.shown(client)) == live.sent


def _produce(live: Live, stop: threading.Event) -> None:
    at = time.monotonic()
    while not stop.is_set():
        live.send(100)
        at += 0.1
        stop.wait(max(0.0, at - time.monotonic()))


def _compact(spark: Any, live: Live, stop: threading.Event) -> None:
    while not stop.wait(4):
        arguments = f"table => '{live.space}.clicks', options => map('min-input-files', '2')"
        spark.sql(f"CALL lake.system.rewrite_data_files({arguments})")


def _read_and_kill(live: Live, client: RestCatalog) -> int:
    """Kills and replaces the follower three times, each time that it has gone on."""
    reads, kills, least, at_kill, deadline = 0, 0, 0, 0, time.monotonic() + 300 + READS
    while reads < READS or kills < 3 or least < at_kill + GROWN:
        assert time.monotonic() < deadline, (reads, kills, least)
        rows = live.table(client).scan(selected_fields=("_topic_partition", "_offset")).to_arrow()
        pairs = sorted(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True))
        for partition in {partition for partition, _ in pairs}:
            offsets = [offset for of, offset in pairs if of == partition]
            assert offsets == list(range(len(offsets))), f"read {reads}: a gap or a double in {partition}"
        assert len(pairs) >= least, f"read {reads} went back from {least} to {len(pairs)} rows"
        least, reads = len(pairs), reads + 1
        if kills < 3 and least > at_kill + GROWN and reads > READS * (kills + 1) // 5:
            kills, at_kill = kills + 1, least
            live.kill()
            live.start()
        time.sleep(0.1)
    print(f"{reads} reads")
    return kills
