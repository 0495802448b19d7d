"""A primary that is gone, and a standby in its place: with a slot that Postgres synchronized, the lake just goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ingestion.sources.postgres.setup import check_source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.clusters import Cluster, cluster, wait_for, with_standby
from tests.slots import assert_refused, assert_repaired, goes_on, orders_in, slot_of, stream_of, until
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.world import World

pytestmark = [pytest.mark.stack, pytest.mark.slow]
BOTH = {"hot_standby_feedback": "on", "sync_replication_slots": "on"}


@contextmanager
def two_clusters(
    settings: Settings, spark: Any, version: str = "18", **server: str
) -> Iterator[tuple[Cluster, Cluster, World]]:
    """A primary whose orders are in the lake, and its standby, which has the slot."""
    with with_standby(version, **BOTH, **server) as (primary, standby):
        world = orders_in(primary, settings)
        world.ingest(spark)

        def is_synchronized() -> bool:
            world.sql("INSERT INTO orders SELECT max(id) + 1, 'tick', 1, NULL FROM orders")
            world.ingest(spark)
            query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{}'"
            return standby.admin(query.format(slot_of(world))) == [(True,)]

        until(is_synchronized, 120)
        yield primary, standby, world


def take_over(primary: Cluster, standby: Cluster) -> Cluster:
    """The primary dies, and its standby answers in its place, without a standby of its own."""
    primary.stop("immediate")
    standby.stop()
    new = replace(standby.at(primary.port), settings=BOTH)
    new.start()
    new.promote()
    return new


@pytest.mark.parametrize("version", ["17", "18"])
def test_a_promoted_standby_with_the_synchronized_slot_goes_on_in_the_same_epoch(
    settings: Settings, spark: Any, version: str
) -> None:
    with two_clusters(settings, spark, version, synchronized_standby_slots="standby") as (primary, standby, world):
        before = stream_of(world)
        world.sql("DELETE FROM orders WHERE id <= 5", "UPDATE orders SET customer = 'moved' WHERE id = 6")
        world.ingest(spark)
        world.sql("DELETE FROM orders WHERE id = 7", "INSERT INTO lines SELECT id, 1, 1 FROM orders WHERE id = 8")
        wait_for(standby, primary)

        new = take_over(primary, standby)
        world.sql("INSERT INTO orders VALUES (5000, 'on the new primary', 1, NULL)")
        world.ingest(spark)

        for table in ("orders", "lines"):
            assert_equal(world, table)
            assert_order_is_unique(world, table)
        after = stream_of(world)
        assert (after.epoch, after.timeline) == (before.epoch, before.timeline + 1)
        assert new.admin("SELECT failover FROM pg_replication_slots WHERE slot_type = 'logical'") == [(True,)]
        goes_on(world, spark, 6000)


def test_a_standby_that_lacks_what_the_lake_has_is_refused_and_repaired(settings: Settings, spark: Any) -> None:
    """Without `synchronized_standby_slots` the lake can be ahead of the standby."""
    with two_clusters(settings, spark) as (primary, standby, world):
        (found,) = [each for each in check_source(world.settings, world.source) if each.about == "failover"]
        assert found.weight == "warning" and "slot standby" in found.says
        standby.stop()
        world.sql("DELETE FROM orders WHERE id <= 5", "INSERT INTO orders VALUES (5000, 'lost', 1, NULL)")
        world.ingest(spark)

        take_over(primary, standby)

        assert_refused(world, spark, "without the changes up to")
        assert_repaired(world, spark)
        assert (5000,) not in world.current("orders")


def test_a_stream_that_waits_for_a_standby_says_so(settings: Settings, spark: Any) -> None:
    with two_clusters(settings, spark, synchronized_standby_slots="standby") as (_, standby, world):
        standby.stop()
        (found,) = [each for each in check_source(world.settings, world.source) if each.about == "standby"]
        assert found.weight == "in the way" and "nobody reads slot standby" in found.says
        with pytest.raises(LakehouseError, match="nobody reads slot standby, which synchronized_standby_slots names"):
            world.ingest(spark)
        standby.start()
        until(lambda: _reads(world, spark))
        assert_equal(world, "orders")


def test_a_slot_of_an_earlier_release_is_synchronized_from_now_on(settings: Settings, spark: Any) -> None:
    with cluster("18") as primary:
        world = orders_in(primary, settings)
        world.ingest(spark)
        with _walsender(primary, world) as walsender:
            walsender.pgconn.exec_(f"ALTER_REPLICATION_SLOT {slot_of(world)} (FAILOVER false)".encode())
        assert primary.admin("SELECT failover FROM pg_replication_slots") == [(False,)]
        goes_on(world, spark, 5000)
        assert primary.admin("SELECT failover FROM pg_replication_slots") == [(True,)]


def _reads(world: World, spark: Any) -> bool:
    try:
        world.ingest(spark)
    except LakehouseError:
        return False
    return True


def _walsender(primary: Cluster, world: World) -> Any:
    import psycopg

    return psycopg.connect(f"{primary.url(world.source.name)}?replication=database", autocommit=True)
