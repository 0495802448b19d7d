"""The slot: it does not pin the source's WAL, and whatever happens to it is found out before anything is written."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ingestion import source_status
from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.connection import connect_source
from lakehouse.declarations.policies import LagPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_cli.machine.lag import source_lags
from orchestration.checks.lag import judge
from tests.clusters import OWNER, ROLE, Cluster, cluster
from tests.slots import (
    assert_refused,
    assert_repaired,
    following,
    goes_on,
    ingested,
    orders_in,
    slot_lsn,
    slot_of,
    until,
    wal_end,
    written,
)
from tests.test_ingestion import ORDERS, assert_equal

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def source() -> Iterator[Cluster]:
    with cluster(wal_keep_size="0", max_wal_size="64MB", min_wal_size="32MB") as made:
        yield made


@pytest.mark.slow
def test_an_idle_database_beside_a_busy_one_does_not_pin_wal(source: Cluster, settings: Settings, spark: Any) -> None:
    """Nothing of this source changes; its slot still has to follow the cluster's WAL."""
    world = orders_in(source, settings, flush_interval_seconds=0.5, poll_seconds=0.2)
    world.ingest(spark)
    before = written(world)
    held = slot_lsn(source, world, "restart_lsn")
    with following(world):
        source.admin("CREATE TABLE busy (n int, t text) WITH (autovacuum_enabled = off)")
        for _ in range(3):
            source.admin("INSERT INTO busy SELECT i, repeat('x', 200) FROM generate_series(1, 10000) i", "CHECKPOINT")
        busy_until = Lsn.parse(source.admin("SELECT pg_current_wal_lsn()::text")[0][0])
        source.admin("CHECKPOINT")
        assert busy_until - held > 5_000_000
        until(lambda: slot_lsn(source, world, "restart_lsn") >= busy_until)
    assert source_status(world.settings, world.source.name).slot_lag_bytes < 1_000_000
    assert written(world)[:3] == before[:3], "moving on without new data makes no snapshot and no cut"


def test_a_dropped_slot_is_found_out_and_repaired(source: Cluster, settings: Settings, spark: Any) -> None:
    world = orders_in(source, settings)
    world.ingest(spark)
    source.admin(f"SELECT pg_drop_replication_slot('{slot_of(world)}')")
    world.sql("DELETE FROM orders WHERE id <= 5")
    assert_refused(world, spark, "is gone")
    assert_repaired(world, spark)


def test_a_slot_made_again_under_its_name_is_found_out(source: Cluster, settings: Settings, spark: Any) -> None:
    world = orders_in(source, settings)
    world.ingest(spark)
    source.admin(f"SELECT pg_drop_replication_slot('{slot_of(world)}')")
    world.sql("DELETE FROM orders WHERE id <= 5")
    source.admin(
        f"SELECT pg_create_logical_replication_slot('{slot_of(world)}', 'pgoutput')", database=world.source.name
    )
    assert_refused(world, spark, "made it again")


def test_a_slot_that_somebody_else_consumed_is_found_out(source: Cluster, settings: Settings, spark: Any) -> None:
    world = orders_in(source, settings)
    world.ingest(spark)
    world.sql("DELETE FROM orders WHERE id <= 5")
    get = (
        f"SELECT pg_logical_slot_get_binary_changes('{slot_of(world)}', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'lakehouse')"
    )
    source.admin(get, database=world.source.name)
    assert_refused(world, spark, "something else consumed it")


def test_a_slot_invalidated_by_max_slot_wal_keep_size_is_found_out_and_repaired(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    world = orders_in(source, settings)
    world.ingest(spark)
    source.admin("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        source.admin("CREATE TABLE filler (t text)")
        for _ in range(4):
            source.admin(
                "INSERT INTO filler SELECT repeat('x', 500) FROM generate_series(1, 10000)", "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )  # fmt: skip
    finally:
        source.admin("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()", "DROP TABLE filler")
    world.sql("DELETE FROM orders WHERE id <= 5")
    assert_refused(world, spark, r"invalidated by the server \(wal_removed: raise max_slot_wal_keep_size there\)")
    assert_repaired(world, spark)


@pytest.mark.slow
def test_a_slot_invalidated_by_idle_timeout_is_found_out_and_repaired(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    world = orders_in(source, settings)
    world.ingest(spark)
    source.admin("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()")
    try:
        time.sleep(1.5)
        source.admin("CHECKPOINT")
    finally:
        source.admin("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")
    world.sql("DELETE FROM orders WHERE id <= 5")
    assert_refused(world, spark, "invalidated by the server .idle_timeout: raise idle_replication_slot_timeout")
    assert_repaired(world, spark)


@pytest.mark.slow
def test_another_cluster_behind_the_same_address_is_found_out(settings: Settings, spark: Any) -> None:
    with cluster() as first, cluster() as second:
        world = orders_in(first, settings)
        world.ingest(spark)
        first.stop()
        second.stop()
        second.at(first.port).start()
        second = second.at(first.port)
        second.admin(f'CREATE DATABASE "{world.source.name}" OWNER {OWNER}')
        world.sql(*ORDERS.split(";"), "INSERT INTO orders VALUES (1, 'other', 1, NULL)")
        world.sql(
            "CREATE PUBLICATION lakehouse FOR TABLE orders, lines WITH (publish_via_partition_root = true)",
            f"GRANT SELECT ON orders, lines TO {ROLE}",
        )
        assert_refused(world, spark, "not the cluster the lake was read from")
        assert_repaired(world, spark)


@pytest.mark.slow
def test_a_source_restored_from_an_older_copy_is_found_out(settings: Settings, spark: Any) -> None:
    """Same system identifier, same timeline, the slot is in the copy: only the end of its WAL tells."""
    with ingested(settings, spark) as (live, world):
        live.stop()
        older = live.copy("older").at(live.port)
        live.start()
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (100, 'lost', 1, NULL)")
        live.admin("SELECT pg_switch_wal()")
        world.sql("INSERT INTO orders VALUES (101, 'lost', 1, NULL)")
        world.ingest(spark)
        live.stop()
        older.start()
        assert_refused(world, spark, "restored from an older backup")
        assert_repaired(world, spark)
        assert {(100,), (101,)}.isdisjoint(world.current("orders"))


@pytest.mark.slow
@pytest.mark.parametrize("afterwards", ["others wrote past the position", "the tables were left alone"])
def test_a_restored_copy_that_has_written_past_the_position_is_found_out(
    settings: Settings, spark: Any, afterwards: str
) -> None:
    """LSN, timeline, identifier and slot all fit again; only the transactions below the position are others."""
    with ingested(settings, spark) as (live, world):
        world.sql("INSERT INTO orders VALUES (99, 'kept', 1, NULL)")
        world.ingest(spark)
        live.stop()
        older = live.copy("older").at(live.port)
        live.start()
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (100, 'lost', 1, NULL)")
        world.ingest(spark)
        position = slot_lsn(live, world, "confirmed_flush_lsn")
        live.stop()
        older.start()
        if afterwards.startswith("others"):
            world.sql("INSERT INTO orders VALUES (200, 'new', 1, NULL)")
        older.admin(
            "CREATE TABLE other (t text)", "INSERT INTO other SELECT repeat('x', 500) FROM generate_series(1, 9999)"
        )
        assert wal_end(older) > position
        assert_refused(world, spark, "holds other transactions than the lake was read from")
        assert_repaired(world, spark)


@pytest.mark.slow
def test_a_source_that_crashed_with_a_slot_that_fell_back_goes_on(settings: Settings, spark: Any) -> None:
    """Postgres writes a slot's position at checkpoints: after a crash it is behind the lake, and nothing is wrong."""
    with ingested(settings, spark) as (live, world):
        live.admin("CHECKPOINT")
        for number in range(100, 103):
            world.sql(f"INSERT INTO orders VALUES ({number}, 'x', 1, NULL)")
            world.ingest(spark)
        confirmed = slot_lsn(live, world, "confirmed_flush_lsn")
        live.stop("immediate")
        live.start()
        assert slot_lsn(live, world, "confirmed_flush_lsn") < confirmed, "the case this test is about"
        goes_on(world, spark, 200)


@pytest.mark.slow
def test_a_copy_of_the_stopped_source_on_another_host_goes_on(settings: Settings, spark: Any) -> None:
    with ingested(settings, spark) as (live, world):
        world.sql("INSERT INTO orders VALUES (100, 'x', 1, NULL)")
        live.stop()
        live.copy("moved").at(live.port).start()
        world.ingest(spark)
        assert_equal(world, "orders")


@pytest.mark.slow
def test_a_promoted_standby_without_the_slot_is_found_out_and_repaired(settings: Settings, spark: Any) -> None:
    """A failover: a new timeline, and the slot stayed with the primary that died."""
    with ingested(settings, spark) as (primary, world):
        standby = primary.basebackup("standby", "-R")
        standby.start()
        world.sql("DELETE FROM orders WHERE id <= 5")
        end = primary.admin("SELECT pg_current_wal_lsn()::text")[0][0]
        until(lambda: standby.admin(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])
        primary.stop()
        standby.stop()
        standby = standby.at(primary.port)
        standby.start()
        with pytest.raises(LakehouseError, match="is a standby in recovery: correct the source's URL to the primary"):
            world.ingest(spark)
        standby.promote()
        assert_refused(world, spark, "promoted without slot lakehouse_")
        assert_repaired(world, spark)


@pytest.mark.slow
def test_a_restored_base_backup_has_no_slot_and_is_found_out(settings: Settings, spark: Any) -> None:
    with ingested(settings, spark) as (live, world):
        backup = live.basebackup("backup").at(live.port)
        world.sql("DELETE FROM orders WHERE id <= 5")
        world.ingest(spark)
        live.stop()
        backup.start()
        backup.admin(
            "CREATE TABLE other (t text)", "INSERT INTO other SELECT repeat('x', 500) FROM generate_series(1, 90000)"
        )
        assert_refused(world, spark, "is gone")


def test_a_slot_that_this_lake_did_not_make_is_never_read(source: Cluster, settings: Settings, spark: Any) -> None:
    """A slot that this lake did not make is never read: somebody else relies on it."""
    world = orders_in(source, settings)
    with psycopg.connect(source.url(world.source.name), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_of(world),))
    with pytest.raises(LakehouseError, match="exists but this lake did not make it"):
        world.ingest(spark)
    assert world.raw("orders") == []


def test_another_lake_that_reads_the_slot_is_not_ended(source: Cluster, settings: Settings, spark: Any) -> None:
    """A second project of the same source ended the stream of the first, again with each attempt, and was refused."""
    world = orders_in(source, settings)
    slot, name = slot_of(world), world.source.name
    with psycopg.connect(source.url(name), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with closing(connect_source(world.settings, name, replication=True)) as other:
            publication = world.settings.source(name).publication
            options = f"(proto_version '1', publication_names '{publication}')"
            other.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
            query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"
            until(lambda: admin.execute(query, (slot,)).fetchone())
            reader = admin.execute(query, (slot,)).fetchone()
            with pytest.raises(LakehouseError, match="exists but this lake did not make it"):
                world.ingest(spark)
            assert admin.execute(query, (slot,)).fetchone() == reader


def test_status_and_the_asset_check_tell_the_lag_in_bytes_and_seconds(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    world = orders_in(source, settings)
    [before] = source_lags(world.settings)
    assert before["trouble"] == "never ingested"
    world.ingest(spark)
    world.sql("INSERT INTO orders SELECT i, repeat('x', 100), i, NULL FROM generate_series(1000, 9000) i")
    time.sleep(1.2)
    [lag] = source_lags(world.settings)
    assert lag["behind_bytes"] > 800_000 and lag["slot_lag_bytes"] >= lag["behind_bytes"]
    assert 1.0 < lag["lag_seconds"] < 60
    assert [(t["name"], t["state"]) for t in lag["tables"]] == [("lines", "streaming"), ("orders", "streaming")]
    assert json.loads(json.dumps(lag))["lag_seconds"] == lag["lag_seconds"]
    limits = LagPolicy(warn_bytes=500_000, error_seconds=1.1)
    table = world.source.table("orders").model_copy(update={"lag": limits})
    assert judge(table, source_status(world.settings, world.source.name)).level == "error"
    world.ingest(spark)
    [after] = source_lags(world.settings)
    assert after["behind_bytes"] < 100_000 and after["trouble"] is None
    source.admin(f"SELECT pg_drop_replication_slot('{slot_of(world)}')")
    [lost] = source_lags(world.settings)
    lost_since = re.escape(f"slot {slot_of(world)} is gone: changes since ") + "[0-9A-F/]+ are lost to the stream: "
    repair = f"`lakehouse ingest --recover {world.source.name}` repairs the lake from the tables"
    assert re.fullmatch(lost_since + re.escape(repair), lost["trouble"])


def test_a_slot_of_another_database_of_the_server_is_told_as_what_it_is(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    """Names of slots are the server's: two databases that are both called `shop` in their projects meet there."""
    world = orders_in(source, settings)
    with psycopg.connect(source.url("postgres"), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_of(world),))
        with pytest.raises(LakehouseError, match="exists but this lake did not make it"):
            world.ingest(spark)
        admin.execute("SELECT pg_drop_replication_slot(%s)", (slot_of(world),))
