"""A standby that is read in place of its primary: the primary's tables are not read, and nothing is lost or doubled."""

import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from ingestion import recover_source
from ingestion.sources.kinds import source_of
from ingestion.sources.postgres import standby as standbys
from ingestion.sources.postgres.setup import check_source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from tests.clusters import OWNER, OWNER_PASSWORD, ROLE, ROLE_PASSWORD, Cluster, wait_for, with_standby
from tests.pages import block, inline
from tests.slots import following, goes_on, slot_of, stream_of, until
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World, declared_source, set_up, statements

pytestmark = [pytest.mark.stack, pytest.mark.slow]
PAGE = "how-to/standby.md"
FEEDBACK = dict([inline(PAGE, "hot_standby_feedback").split(" = ")])
MAY_ASK = inline(PAGE, "GRANT EXECUTE", ("lakehouse_ingest", ROLE))
READS = "SELECT sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0)) FROM pg_stat_user_tables"


@contextmanager
def read_from_standby(
    settings: Settings, version: str = "18", granted: bool = True, **server: str
) -> Iterator[tuple[Cluster, Cluster, World]]:
    """Two clusters, and a world that is written on the one and read on the other."""
    with with_standby(version, **(FEEDBACK | server)) as (primary, standby):
        name = f"t{uuid.uuid4().hex[:10]}"
        primary.admin(f'CREATE DATABASE "{name}" OWNER {OWNER}')
        if granted:
            primary.admin(MAY_ASK, database=name)
        owner = primary.url(name, OWNER, OWNER_PASSWORD)
        urls = (
            ("postgresql://lakehouse_ingest@standby:5432/shop", standby.url(name, ROLE, ROLE_PASSWORD)),
            ("postgresql://lakehouse_ingest@primary:5432/shop", primary.url(name, ROLE, ROLE_PASSWORD)),
            ("postgresql://app_owner@primary:5432/shop", owner),
        )
        connection = SourceSettings(**tomllib.loads(block(PAGE, "toml", *urls))["sources"]["shop"])
        mine = settings.model_copy(update={"sources": {name: connection}})
        world = World(mine, declared_source(name, TABLES), owner)
        world.sql(*statements(ORDERS), "INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series(1, 20) i")
        wait_for(standby, primary)
        set_up(world)
        yield primary, standby, world


def at(world: World, **connection: str) -> World:
    """The same world by other URLs."""
    name = world.source.name
    changed = world.settings.source(name).model_copy(update={k: SecretStr(v) for k, v in connection.items()})
    return replace(world, settings=world.settings.model_copy(update={"sources": {name: changed}}))


def findings(world: World) -> dict[str, str]:
    return {each.about: f"{each.weight}: {each.says}" for each in check_source(world.settings, world.source)}


@pytest.mark.parametrize(("version", "granted"), [("18", True), ("17", True), ("16", False)])
def test_the_lake_has_what_the_primary_has_and_does_not_read_its_tables(
    settings: Settings, spark: Any, version: str, granted: bool
) -> None:
    with read_from_standby(settings, version, granted) as (primary, standby, world):
        name = world.source.name
        assert ("pg_log_standby_snapshot" in findings(world)) == (not granted), findings(world)
        time.sleep(1)  # statistics come with the end of a session
        before = primary.admin(READS, database=name)
        world.ingest(spark)
        time.sleep(1)
        assert primary.admin(READS, database=name) == before
        world.sql("INSERT INTO lines SELECT id, 1, 1 FROM generate_series(10, 18) id")
        world.sql("UPDATE orders SET customer = 'moved' WHERE id % 3 = 0", "DELETE FROM orders WHERE id = 5")
        world.sql("UPDATE orders SET id = 77 WHERE id = 7", "ALTER TABLE orders ADD more int")
        world.sql("INSERT INTO orders (id, customer, amount, more) VALUES (80, 'new', 1, 2)")
        world.ingest(spark)
        for table in TABLES:
            assert_equal(world, table)
            assert_order_is_unique(world, table)
        slots = "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"
        assert primary.admin(slots) == [] and standby.admin(slots) == [(slot_of(world),)]


def test_a_follower_reads_the_standbys_stream(settings: Settings, spark: Any) -> None:
    with read_from_standby(settings) as (_, standby, world):
        world.ingest(spark)
        with following(world):
            until(lambda: standby.admin("SELECT count(*) FROM pg_stat_replication") == [(1,)])
            for batch in range(3):
                world.sql(f"INSERT INTO orders VALUES ({100 + batch}, 'live', 1, NULL)")
                until(lambda batch=batch: (100 + batch,) in world.current("orders"))
        assert_equal(world, "orders")
        assert_order_is_unique(world, "orders")


def test_a_standby_that_is_behind_is_read_as_far_as_it_is_and_its_cut_is_of_that_time(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys, "REPLAY_PATIENCE_SECONDS", 0.3)
    with read_from_standby(settings) as (primary, standby, world):
        world.ingest(spark)
        world.sql("INSERT INTO orders VALUES (50, 'before', 1, NULL)")
        wait_for(standby, primary)
        standby.admin("SELECT pg_wal_replay_pause()")
        until(lambda: standby.admin("SELECT pg_get_wal_replay_pause_state()") == [("paused",)])
        (behind,) = primary.admin("SELECT clock_timestamp()")[0]
        world.sql("INSERT INTO orders VALUES (51, 'behind', 1, NULL)")
        world.ingest(spark)
        assert (50,) in world.current("orders") and (51,) not in world.current("orders")
        assert max(cut["cut_at"] for cut in cuts(world)) < behind
        standby.admin("SELECT pg_wal_replay_resume()")
        wait_for(standby, primary)
        goes_on(world, spark, 60)
        assert max(cut["cut_at"] for cut in cuts(world)) > behind


def test_a_snapshot_whose_tables_the_primary_alters_meanwhile_is_not_published(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay ends the session that holds their locks on the standby, and a later range would be read as empty."""
    import ingestion.pipeline.load_tables as loads

    with read_from_standby(settings, max_standby_streaming_delay="200ms") as (primary, standby, world):
        run_tasks = loads.run_tasks

        def rewritten(*arguments: Any) -> Any:
            monkeypatch.setattr(loads, "run_tasks", run_tasks)
            primary.admin("VACUUM FULL orders", database=world.source.name)
            wait_for(standby, primary)
            return run_tasks(*arguments)

        monkeypatch.setattr(loads, "run_tasks", rewritten)
        with pytest.raises(LakehouseError):
            world.ingest(spark)
        assert world.raw("orders") == []
        goes_on(world, spark, 60)


def test_what_is_missing_is_told_before_anything_is_ingested(settings: Settings, spark: Any) -> None:
    with read_from_standby(settings, granted=False, hot_standby_feedback="off") as (primary, _standby, world):
        found = findings(world)
        told = world.command(*inline(PAGE, "lakehouse prepare", ("shop", world.source.name)).split()[1:])
        assert told.returncode == 1 and "hot_standby_feedback is off" in told.stdout, told
        assert "may not call pg_log_standby_snapshot()" in found["pg_log_standby_snapshot"]
        url = world.settings.source(world.source.name).url.get_secret_value()
        assert "primary_url leads to a standby" in findings(at(world, primary_url=url))["standby"]
        name = world.source.name
        primary.admin(f'CREATE DATABASE "{name}_other"')
        other = primary.url(f"{name}_other", ROLE, ROLE_PASSWORD)
        assert "url leads to database" in findings(at(world, primary_url=other))["standby"]
        alone = SourceSettings(url=world.settings.source(name).url)
        without = replace(world, settings=world.settings.model_copy(update={"sources": {name: alone}}))
        assert findings(without)["standby"].startswith("in the way: it is a standby")
        with pytest.raises(LakehouseError, match="name that in primary_url as well"):
            without.ingest(spark)


def test_without_feedback_the_slot_is_invalidated_and_the_lake_repaired(settings: Settings, spark: Any) -> None:
    with read_from_standby(settings, hot_standby_feedback="off") as (primary, standby, world):
        assert "hot_standby_feedback is off" in findings(world)["hot_standby_feedback"]
        world.ingest(spark)
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (50, 'missed', 1, NULL)")
        name = world.source.name
        primary.admin("CREATE TABLE gone ()", "DROP TABLE gone", "VACUUM FULL pg_class", database=name)
        wait_for(standby, primary)
        with pytest.raises(LakehouseError, match=r"was invalidated by the server \(rows_removed: set hot_standby"):
            world.ingest(spark)
        recover_source(settings=world.settings, declarations=world.declarations, source=name, spark=spark)
        assert_equal(world, "orders")


def test_a_standby_that_is_promoted_goes_on_in_the_same_epoch(settings: Settings, spark: Any) -> None:
    with read_from_standby(settings) as (primary, standby, world):
        world.ingest(spark)
        world.sql("INSERT INTO orders VALUES (50, 'last', 1, NULL)")
        wait_for(standby, primary)
        before, name = stream_of(world), world.source.name
        standby.promote()
        with pytest.raises(LakehouseError, match="a primary that is not the one of primary_url"):
            world.ingest(spark)
        primary.stop("immediate")
        with pytest.raises(LakehouseError, match="PRIMARY_URL"):
            world.ingest(spark)
        here = standby.url(name, ROLE, ROLE_PASSWORD)
        moved = replace(at(world, primary_url=here), owner_url=standby.url(name, OWNER, OWNER_PASSWORD))
        moved.sql("DELETE FROM orders WHERE id = 3")
        goes_on(moved, spark, 60)
        after = stream_of(moved)
        assert (after.epoch, after.timeline) == (before.epoch, before.timeline + 1)


def test_who_holds_up_a_slot_on_the_standby_is_named_on_the_primary(settings: Settings) -> None:
    with read_from_standby(settings) as (primary, _, world):
        source = source_of(world.settings, world.source.name, 4.0)
        with psycopg.connect(primary.url(world.source.name)) as writing:
            writing.execute("INSERT INTO lines SELECT 1, 1, 1")
            pid = writing.info.backend_pid
            with (
                pytest.raises(LakehouseError, match=f"held up by process {pid} "),
                source.snapshot(world.source.tables),
            ):
                pass
