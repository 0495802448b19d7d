"""What ingestion refuses a whole source for is told before, by `prepare --check`, doctor, status and the watch.

They were green while each ingestion failed.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from held_topics import Lake, make_lake
from pgoutput_record import scratch_database
from pydantic import SecretStr

from ingestion import why_refused
from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Lsn
from ingestion.sources.findings import Finding
from ingestion.sources.kinds import check_source, source_of
from ingestion.sources.postgres.catalog.describe import read_facts
from ingestion.sources.postgres.connection import connect_source
from ingestion.state import described, store, stored
from ingestion.state import lease as leases
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.declarations import Column, Source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.machine.lag import source_lags
from lakehouse_watch.probes.sources import read_source
from tests.world import declared_source

pytestmark = pytest.mark.stack
SLOT = "lakehouse_shop"
RECOVER = "`lakehouse ingest --recover shop`"
ITEMS = {"items": RawPolicy(relation="public.items", key=("id",))}


@dataclass(frozen=True)
class Shop:
    """A database that is a source, and keeps the state of the lake as well."""

    settings: Settings
    connection: Any
    source: Source

    def ingest(self) -> None:
        """The start of a cycle."""
        ensure_state(self.connection)
        with source_of(self.settings, "shop", 5.0).open() as opened:
            opened.check(self.connection)

    def found(self) -> list[Finding]:
        """What `prepare --check` and doctor find of the stream."""
        return [finding for finding in check_source(self.settings, self.source) if finding.about == "stream"]

    def trouble(self) -> str | None:
        """What `status` says."""
        [lag] = source_lags(self.settings)
        return cast("str | None", lag["trouble"])

    def told(self) -> dict[str, str]:
        """What the watch tells."""
        return {occasion.kind: occasion.summary for occasion in read_source(self.settings, "shop").occasions}


@pytest.fixture
def shop(cluster: str, tmp_path: Path) -> Iterator[Shop]:
    with scratch_database(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION lakehouse FOR TABLE items")
        sources = {"shop": SourceSettings(url=SecretStr(url))}
        settings = Settings(home=tmp_path, project_dir=tmp_path, catalog_url=SecretStr(url), sources=sources)
        yield Shop(settings, connection, declared_source("shop", ITEMS))
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")


def make_slot(shop: Shop) -> None:
    shop.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))


def drop_slot(shop: Shop) -> None:
    shop.connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


def make_slot_again(shop: Shop) -> None:
    drop_slot(shop)
    make_slot(shop)


def make_publication_again(shop: Shop) -> None:
    shop.connection.execute("DROP PUBLICATION lakehouse")
    shop.connection.execute("CREATE PUBLICATION lakehouse FOR TABLE items")


def forge(column: str, value: str) -> Callable[[Shop], None]:
    """The lake was read from another server, or further, than this one."""

    def forged(shop: Shop) -> None:
        shop.connection.execute(f"UPDATE lakehouse.streams SET {column} = {value}")

    return forged


BREAKS = {
    "publication": (make_publication_again, "publication 'lakehouse' was dropped and made again"),
    "no slot": (drop_slot, f"slot {SLOT} is gone"),
    "slot": (make_slot_again, "something else consumed it or made it again"),
    "cluster": (forge("system_identifier", "'7'"), "this is not the cluster the lake was read from"),
    "backup": (forge("(position, lsn)", "('F/0', 64424509440)"), "it was restored from an older backup"),
    "timeline": (forge("timeline", "9"), "this is not the cluster the lake was read from"),
    "kind": (forge("(kind, position)", "('debezium', NULL)"), "it was ingested as kind debezium"),
}


def still(text: str) -> str:
    """The text without positions: the WAL goes on."""
    return re.sub(r"\b[0-9A-F]+/[0-9A-F]+\b", "LSN", text)


@pytest.mark.parametrize("what", BREAKS)
def test_what_ingestion_refuses_is_told_before(shop: Shop, what: str) -> None:
    shop.ingest()
    assert (shop.found(), shop.trouble(), shop.told()) == ([], None, {})
    breaks, message = BREAKS[what]
    breaks(shop)
    with pytest.raises(LakehouseError, match=message) as refused:
        shop.ingest()
    said = still(str(refused.value)).removeprefix("source 'shop': ").replace("; nothing was written", "")
    [finding] = shop.found()
    assert finding.weight == "in the way" and message in finding.says and "lakehouse ingest --" in finding.remedy
    assert said == still(f"{finding.says}: {finding.remedy}")
    assert said[:250] in still(str(shop.trouble()))
    if what == "kind":  # no status can be told
        return
    assert still(str(why_refused(shop.settings, "shop"))) == said
    told = shop.told()
    assert set(told) & {"slot", "refused"} == {"slot" if what == "no slot" else "refused"}
    assert what == "no slot" or message in told["refused"]


def test_a_slot_of_another_lake_is_told_before_the_first_ingestion(shop: Shop) -> None:
    """Also where the lake has no state yet."""
    assert (shop.found(), why_refused(shop.settings, "shop")) == ([], None)
    make_slot(shop)
    message = f"slot {SLOT} exists but this lake did not make it"
    [finding] = shop.found()
    assert finding.says == message and "LAKEHOUSE_SOURCES__SHOP__SLOT" in finding.remedy
    ensure_state(shop.connection)
    assert shop.found() == [finding]
    with pytest.raises(LakehouseError, match=message):
        shop.ingest()
    assert str(shop.trouble()).startswith(f"never ingested: {message}: set another name")


def test_a_new_source_that_is_refused_is_told_once_a_follower_has_tried(shop: Shop) -> None:
    """Its first cycle failed again and again, and nobody was told: it was not watched before it was ingested."""
    make_slot(shop)
    ensure_state(shop.connection)
    assert shop.told() == {}, "it is connected, and nobody has begun with it"
    for _ in range(2):
        lease = leases.acquire(shop.connection, "shop", 60.0, "follow")
        assert lease is not None and shop.told().keys() == {"refused"}
        with pytest.raises(LakehouseError):
            shop.ingest()
        leases.release(shop.connection, lease, in_order=False)
        told = shop.told()
        assert told.keys() == {"follower", "refused"} and f"slot {SLOT} exists" in told["refused"]
    drop_slot(shop)
    assert shop.told().keys() == {"follower"}
    leases.leave(shop.settings, "shop")
    assert shop.told() == {}


def test_a_source_without_publication_says_so_once(shop: Shop) -> None:
    shop.connection.execute("DROP PUBLICATION lakehouse")
    make_slot(shop)
    found = [f for f in check_source(shop.settings, shop.source) if f.table is None and f.weight != "warning"]
    assert [(finding.about, finding.weight) for finding in found] == [
        ("stream", "in the way"), ("publication", "prepare"),
    ]  # fmt: skip
    assert "`lakehouse prepare shop`" in str(why_refused(shop.settings, "shop"))


def of_tables(shop: Shop) -> list[tuple[str, str, str]]:
    """What `prepare --check` and doctor find of tables."""
    found = check_source(shop.settings, shop.source)
    return [(finding.about, finding.weight, finding.line) for finding in found if finding.table]


def put(shop: Shop, state: Any, reason: str | None, *versions: TableFacts) -> None:
    position = store.TablePosition("items", 1, Lsn(9), state, Lsn(9), reason, versions)
    written = stored.written(position.position)
    shop.connection.execute(
        'INSERT INTO lakehouse.positions (source, "table", epoch, position, lsn, state, snapshot_position, point,'
        " reason, facts) VALUES ('shop', 'items', 1, %s, %s, %s, %s, %s, %s, %s)"
        ' ON CONFLICT (source, "table") DO UPDATE SET state = excluded.state, reason = excluded.reason,'
        " facts = excluded.facts",
        (*written, state, *written, reason, described.written(position.known)),
    )


def test_tables_that_ingestion_would_leave_out_or_has_left_out_are_told(shop: Shop) -> None:
    shop.ingest()
    put(shop, "streaming", None)
    assert of_tables(shop) == []
    put(shop, "parked", "source 'shop', table 'items': too wide")
    assert of_tables(shop) == [
        ("parked", "in the way", "shop.items: it is parked: too wide: fix the cause, then `lakehouse ingest --resume "
         "shop.items`")
    ]  # fmt: skip
    put(shop, "new", "no key")
    assert of_tables(shop) == [
        ("parked", "warning", "shop.items: it could not be loaded: no key: fix the cause: the next cycle loads it")
    ]
    assert shop.told() == {"parked": "shop.items cannot be loaded: no key"}


def test_a_column_that_does_not_arrive_or_cannot_be_followed_is_told_before_its_table_is_parked(shop: Shop) -> None:
    shop.ingest()
    shop.connection.execute("ALTER TABLE items ADD v int, ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    declared = [Column(name=name, data_type="int", description="") for name in ("id", "v", "twice")]
    table = shop.source.tables[0].model_copy(update={"columns": tuple(declared[:2])})
    whole = table.model_copy(update={"columns": tuple(declared)})
    shop = replace(shop, source=shop.source.model_copy(update={"tables": (whole,)}))
    [(about, weight, line)] = of_tables(shop)
    assert (about, weight) == ("columns", "in the way") and "does not arrive, because it is generated" in line
    shop = replace(shop, source=shop.source.model_copy(update={"tables": (table,)}))
    with connect_source(shop.settings, "shop") as source:
        facts, _ = read_facts(source, table, "lakehouse")
    assert facts is not None
    put(shop, "streaming", None, name_columns(table, None, facts))
    assert of_tables(shop) == []
    shop.connection.execute("ALTER TABLE items ALTER v TYPE text")
    [(about, weight, line)] = of_tables(shop)
    assert (about, weight) == ("types", "in the way") and "column v was integer and is text" in line
    put(shop, "parked", "column v was integer and is text", name_columns(table, None, facts))
    assert [about for about, *_ in of_tables(shop)] == ["parked"], "it is said once"


def test_a_column_that_goes_on_under_its_former_name_is_no_mistake_and_one_that_is_gone_is(shop: Shop) -> None:
    """It was said to be missing, and ingestion went on with it."""
    shop.ingest()
    shop.connection.execute("ALTER TABLE items ADD v int")
    columns = tuple(Column(name=name, data_type="int", description="") for name in ("id", "v"))
    table = shop.source.tables[0].model_copy(update={"columns": columns})
    shop = replace(shop, source=shop.source.model_copy(update={"tables": (table,)}))
    with connect_source(shop.settings, "shop") as source:
        facts, _ = read_facts(source, table, "lakehouse")
    assert facts is not None
    put(shop, "streaming", None, name_columns(table, None, facts))
    shop.connection.execute("ALTER TABLE items RENAME v TO w")
    assert of_tables(shop) == []
    shop.connection.execute("ALTER TABLE items DROP w")
    [(about, weight, line)] = of_tables(shop)
    assert (about, weight) == ("columns", "in the way") and "declared column v does not exist in public.items" in line


def test_a_role_that_may_not_mark_its_wal_is_told_before_the_first_ingestion(shop: Shop) -> None:
    function = "pg_logical_emit_message(boolean, text, text, boolean)"
    url = psycopg.conninfo.make_conninfo(shop.settings.catalog_dsn(), user="reader")
    sources = {"shop": SourceSettings(url=SecretStr(url))}
    shop.connection.execute(f"CREATE ROLE reader LOGIN REPLICATION; REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    try:
        [finding] = replace(shop, settings=shop.settings.model_copy(update={"sources": sources})).found()
    finally:
        shop.connection.execute("DROP ROLE reader")
    assert "may not mark its WAL" in finding.says and "GRANT EXECUTE ON FUNCTION" in finding.remedy


def stands(shop: Shop) -> list[Any]:
    """All that a check could change: the state, and the slot."""
    query = "SELECT s::text FROM lakehouse.streams s UNION ALL SELECT confirmed_flush_lsn::text || active_pid::text"
    return cast("list[Any]", shop.connection.execute(f"{query} FROM pg_replication_slots").fetchall())


def test_a_check_changes_nothing_and_leaves_a_follower_alone(shop: Shop) -> None:
    shop.ingest()
    with source_of(shop.settings, "shop", 5.0).open() as opened:
        stream = opened.check(shop.connection)
        with closing(cast(Any, opened.stream(stream.position, 1 << 20))) as live:
            live.wait(0.1)
            before = stands(shop)
            assert (shop.found(), shop.trouble(), why_refused(shop.settings, "shop")) == ([], None, None)
            assert stands(shop) == before
            shop.connection.execute("INSERT INTO items VALUES (1)")
            live.reach(opened.now().position, 10)
            assert live.has_changes


def test_a_reader_that_ingestion_would_not_end_is_told(shop: Shop) -> None:
    shop.ingest()
    as_other = psycopg.conninfo.make_conninfo(shop.settings.catalog_dsn(), application_name="other")
    with closing(psycopg.connect(f"{as_other} replication=database", autocommit=True)) as other:
        other.pgconn.send_query(
            f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '1', publication_names 'lakehouse')".encode()
        )
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        while shop.connection.execute(active, (SLOT,)).fetchone() != (True,):
            pass
        [finding] = shop.found()
        assert "is being read by process" in finding.says and "which is not ours" in finding.says


def created_again(lake: Lake) -> None:
    lake.broker.delete("clicks")
    lake.broker.create_again("clicks")


def elsewhere(lake: Lake) -> None:
    lake.broker.cluster_id = "another"


def retention_passes(lake: Lake) -> None:
    lake.broker.send("clicks", 20)
    lake.broker.gone = 12


TOPICS = {
    "topic": (created_again, "topic clicks was deleted and created again"),
    "cluster": (elsewhere, "this is not the Kafka cluster the lake was read from"),
    "retention": (retention_passes, "were deleted before the lake had read them"),
}


@pytest.mark.parametrize("what", TOPICS)
def test_what_the_ingestion_of_topics_refuses_is_told_before(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    lake = make_lake(catalog_settings, postgres_catalog, monkeypatch)
    monkeypatch.setattr("ingestion.sources.kafka.check.Brokers", lambda *_: lake.broker)
    lake.broker.send("clicks", 10)
    assert check_source(lake.settings, lake.source) == [], "nothing was ingested yet"
    lake.once()
    assert check_source(lake.settings, lake.source) == [] and why_refused(lake.settings, "web") is None
    breaks, message = TOPICS[what]
    breaks(lake)
    with pytest.raises(LakehouseError, match=message) as refused:
        lake.once()
    [finding] = check_source(lake.settings, lake.source)
    assert message in finding.says + finding.remedy and "`lakehouse ingest --recover web`" in finding.remedy
    assert str(refused.value) == f"source 'web': {why_refused(lake.settings, 'web')}"
