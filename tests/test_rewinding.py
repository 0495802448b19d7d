"""A source that is put back, swapped or copied is found out before a row is written; one that crashed goes on."""

import signal
from typing import Any

import psutil
import pytest

from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.connection import lsn_text
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.history.signature import is_signed
from ingestion.sources.postgres.live import LiveStream
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from tests.clusters import OWNER, Cluster, cluster
from tests.marks import slow
from tests.ports import free_port
from tests.slots import (
    assert_refused,
    assert_repaired,
    goes_on,
    ingested,
    make_slot_again,
    orders_in,
    slot_lsn,
    slot_of,
    stream_of,
    until,
    wal_end,
    written,
)

pytestmark = pytest.mark.stack
EVERY_VERSION = [slow(version) for version in ("15", "16")] + ["18"]


def silence(made: Cluster, segments: int = 1) -> None:
    """WAL goes on for some segments without a change of a published table."""
    for _ in range(segments):
        made.admin("CREATE TABLE unpublished (i int)", "DROP TABLE unpublished", "SELECT pg_switch_wal()")


def snapshot_of_the_volume(made: Cluster) -> Cluster:
    """The files of the running server at one moment: what it finds after a crash."""
    made.stop("immediate")
    copied = made.copy("older").at(made.port)
    made.start()
    return copied


def kill(made: Cluster) -> None:
    """All processes of the server at once, as when the machine loses its power."""
    processes = made.processes()
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_slot_made_again_behind_the_position_in_an_older_backup_is_found_out(
    settings: Settings, spark: Any, version: str
) -> None:
    """Same identifier and timeline, WAL beyond the position, and below it the same silence from the slot on."""
    with ingested(settings, spark, version) as (live, world):
        backup = live.basebackup("backup").at(live.port)  # without recovery.signal it stays on its timeline
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (100, 'lost', 1, NULL)")
        world.ingest(spark)
        last_change = wal_end(live)
        silence(live, segments=6)
        world.ingest(spark)
        position = slot_lsn(live, world, "confirmed_flush_lsn")
        live.stop()
        backup.start()
        while wal_end(backup) <= last_change:
            silence(backup)
        assert last_change < make_slot_again(backup, world) < position, "the case this test is about"
        while wal_end(backup) <= position:
            silence(backup)
        assert_refused(world, spark, "it was made again on a source that was restored from an older backup")
        if version != "18":  # the slow ones
            assert_repaired(world, spark)
            assert (100,) not in world.current("orders")


@pytest.mark.slow
@pytest.mark.parametrize("version", EVERY_VERSION)
def test_ordinary_crashes_and_restarts_of_the_source_go_on(settings: Settings, spark: Any, version: str) -> None:
    """Each step is followed by a cycle that must neither refuse nor miss anything."""
    with ingested(settings, spark, version, max_prepared_transactions="2") as (live, world):
        live.stop("immediate")  # before any checkpoint: the slot is back where it was made
        live.start()
        goes_on(world, spark, 101)
        silence(live)
        world.ingest(spark)
        live.admin("CREATE TABLE unpublished (i int)", "CHECKPOINT")
        saved = slot_lsn(live, world, "confirmed_flush_lsn")
        for _ in range(4):  # a confirmation that moves restart_lsn is saved at once, others are not
            live.admin("INSERT INTO unpublished VALUES (1)")
            world.ingest(spark)  # the position moves over unpublished WAL alone, which no witness is in
        confirmed = slot_lsn(live, world, "confirmed_flush_lsn")
        kill(live)
        live.start()
        fallen = slot_lsn(live, world, "confirmed_flush_lsn")
        assert saved <= fallen < confirmed, "the case this test is about"
        assert is_signed(fallen)
        world.ingest(spark)
        goes_on(world, spark, 102)
        live.admin("SELECT pg_switch_wal()", "CHECKPOINT", "SELECT pg_switch_wal()")
        world.ingest(spark)
        live.stop()
        live.start()
        world.ingest(spark)
        world.sql("BEGIN; INSERT INTO orders VALUES (103, 'prepared', 1, NULL); PREPARE TRANSACTION 'p'")
        world.ingest(spark)
        live.stop("immediate")
        live.start()
        world.ingest(spark)
        world.sql("COMMIT PREPARED 'p'")
        goes_on(world, spark, 104)
        assert (103,) in world.current("orders")


@pytest.mark.slow
def test_a_lake_of_the_version_that_did_not_sign_goes_on_and_signs(settings: Settings, spark: Any) -> None:
    """Its slot stands where Postgres itself would put one, and nothing is written down of where it was made."""
    with ingested(settings, spark) as (live, world):
        silence(live)
        world.ingest(spark)
        stream = stream_of(world)
        with (
            store.connect_catalog(world.settings) as states,
            src.connect_source(world.settings, world.source.name) as c,
        ):
            c.execute("SELECT pg_replication_slot_advance(%s, %s)", (slot_of(world), lsn_text(stream.position)))
            assert slot_lsn(live, world, "confirmed_flush_lsn") == stream.position
            states.execute("DELETE FROM lakehouse.slots WHERE source = %s", (world.source.name,))
        world.ingest(spark)
        assert is_signed(slot_lsn(live, world, "confirmed_flush_lsn"))
        kill(live)
        live.start()
        goes_on(world, spark, 101)


@pytest.mark.slow
def test_a_snapshot_of_a_running_volume_is_found_out_unless_nothing_was_lost(settings: Settings, spark: Any) -> None:
    """The slot is in it, signed, at an older position; what the lake has read since is missing there, or is not."""
    with ingested(settings, spark) as (live, world):
        silence(live)
        world.ingest(spark)
        older = snapshot_of_the_volume(live)
        silence(live)
        world.ingest(spark)
        live.stop()
        same = older.copy("same").at(live.port)
        same.start()
        silence(same, segments=4)
        goes_on(world, spark, 101)  # which the first copy lacks
        same.stop()
        older.start()
        silence(older, segments=9)
        assert_refused(world, spark, "holds other transactions than the lake was read from")


@pytest.mark.slow
def test_a_source_put_back_while_a_table_is_loaded_leaves_none_of_its_lost_rows(settings: Settings, spark: Any) -> None:
    """Rows of a point beyond the position would be of a future that the source then never has."""
    with cluster() as live:
        world = orders_in(live, settings, lease_seconds=2)
        world.without("orders").ingest(spark)
        older = snapshot_of_the_volume(live)
        loader = world.start_driver(
            "ingestion.pipeline.cycle:load_tables:stall", "ingestion.pipeline.cycle:catch_up:before:2"
        )
        until(lambda: psutil.Process(loader.pid).status() == psutil.STATUS_STOPPED, 120)
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (100, 'lost', 1, NULL)")
        loader.send_signal(signal.SIGCONT)
        assert loader.wait(120) < 0
        live.stop()
        older.start()
        silence(older, segments=3)
        goes_on(world, spark, 101)


@pytest.mark.slow
def test_a_read_that_another_server_answers_lands_nothing(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone runs beside the source, slot and all; a load balancer leads there what reads the slot after that."""
    with cluster() as live:
        world = orders_in(live, settings, flush_interval_seconds=0.2, poll_seconds=0.2)
        world.ingest(spark)
        live.stop()
        clone = live.copy("clone")
        live.start()
        clone = clone.at(free_port())  # the source's own was free while it was stopped
        clone.start()
        clone.admin("INSERT INTO orders VALUES (666, 'of the clone', 1, NULL)", database=world.source.name)
        world.sql("INSERT INTO orders VALUES (101, 'of the source', 1, NULL)")
        before, right = written(world)[:3], src.source_url

        def flipped(configured: SourceSettings, **session: str) -> str:
            url = right(configured, **session)
            return url.replace(str(live.port), str(clone.port)) if session else url

        monkeypatch.setattr(src, "source_url", flipped)
        with pytest.raises(LakehouseError, match="another server answered than the one that was checked"):
            world.ingest(spark)
        stream = stream_of(world)
        with src.connect_source(world.settings, world.source.name) as c:
            url = flipped(world.settings.source(world.source.name), statement_timeout="0")
            with pytest.raises(LakehouseError, match="another server answered"):
                LiveStream(url, slot_of(world), "lakehouse", stream.position, 1 << 20, started_at(c))
        assert written(world)[:3] == before
        monkeypatch.undo()
        goes_on(world, spark, 102)
        assert (666,) not in world.current("orders")


@pytest.mark.slow
def test_a_database_that_was_swapped_by_name_is_found_out(settings: Settings, spark: Any) -> None:
    """A copy by TEMPLATE has the same publication and tables, by name and oid; the slot belongs to the database."""
    with ingested(settings, spark) as (live, world):
        name = world.source.name
        live.admin(
            f'ALTER DATABASE "{name}" RENAME TO former',
            f'CREATE DATABASE "{name}" TEMPLATE former OWNER {OWNER}',
        )
        world.sql("DELETE FROM orders WHERE id <= 5")
        assert_refused(world, spark, "is gone")
        live.admin(f"SELECT pg_drop_replication_slot('{slot_of(world)}')")
        make_slot_again(live, world)
        assert_refused(world, spark, "made it again")


@pytest.mark.slow
def test_a_source_whose_wal_was_reset_is_found_out(settings: Settings, spark: Any) -> None:
    """pg_resetwal leaves the slot's file, and takes the WAL that it stands in."""
    with ingested(settings, spark) as (live, world):
        world.sql("DELETE FROM orders WHERE id <= 5")
        live.stop()
        live._run("pg_resetwal", "-D", str(live.data))
        live.start()
        assert_refused(world, spark, "reading slot .* has already been removed")


@pytest.mark.slow
def test_a_primary_that_was_rewound_and_promoted_again_is_found_out(settings: Settings, spark: Any) -> None:
    """pg_rewind keeps the identifier; whatever was ever promoted is on another timeline."""
    with ingested(settings, spark) as (primary, world):
        standby = primary.basebackup("standby", "-R")
        standby.start()
        primary.stop()
        standby.promote()
        standby.admin("CHECKPOINT")
        primary._run("pg_rewind", "-D", str(primary.data), "--source-server", standby.url(), "-R")
        primary.start()
        standby.stop()
        primary.promote()  # its slot is still there
        assert_refused(world, spark, "not the cluster the lake was read from .system identifier, timeline")
