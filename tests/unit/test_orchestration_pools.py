"""Claims on pools, in a storage of Postgres as the stack has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.execution.retries import RetryMode
from dagster._core.op_concurrency_limits_counter import GlobalOpConcurrencyLimitsCounter
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.test_utils import create_run_for_test
from throwaway_postgres import throwaway_postgres

from lakehouse_stack.home.instance import with_driver
from orchestration.runs import pool_limits, pools
from orchestration.runs.pool_limits import follow_default_limit
from orchestration.runs.pools import PoolExecutor, PoolQueue

POOL = "vault_shop"


@contextmanager
def instance_in(url: str, folder: Path, default_limit: int) -> Iterator[dg.DagsterInstance]:
    storage = {"postgres": {"postgres_url": with_driver(url)}}
    overrides = {"storage": storage, "concurrency": {"pools": {"default_limit": default_limit}}}
    with dg.instance_for_test(overrides, temp_dir=str(folder)) as instance:
        yield instance


def queue_of(instance: dg.DagsterInstance, job: str) -> PoolQueue:
    follow_default_limit()
    return PoolQueue(instance, create_run_for_test(instance, job_name=job))


def test_two_loads_may_be_the_first_to_claim_a_pool(tmp_path: Path) -> None:
    """In a fresh instance the second one died of a row that the first had made meanwhile."""
    with throwaway_postgres() as url, instance_in(url, tmp_path, 1) as instance:
        first, second = (queue_of(instance, job) for job in ("load_shop", "load_bank"))
        with first, second:
            assert first.get_pool_info(POOL) is None and second.get_pool_info(POOL) is None
            assert first.claim(POOL, "models")
            assert not second.claim(POOL, "models"), "the first one holds it"
            first.free_step("models")
            assert instance.event_log_storage.get_concurrency_info(POOL).slot_count == 1


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1)])
def test_a_pool_takes_another_default_limit(tmp_path: Path, before: int, now: int) -> None:
    """Every claim failed, and the daemon launched no run, once `default_limit` was another one."""
    with throwaway_postgres() as url:
        with instance_in(url, tmp_path, before) as instance:
            holding = queue_of(instance, "load_shop")
            assert holding.__enter__().claim(POOL, "models")
        with instance_in(url, tmp_path, now) as instance:
            storage = instance.event_log_storage
            with queue_of(instance, "load_bank") as waiting:
                assert waiting.claim(POOL, "models") == (now == 2), "the slot that was held still counts"
                (limit,) = storage.get_pool_limits()
                assert (limit.limit, limit.from_default) == (now, True), "it follows the next change too"
                storage.free_concurrency_slots_for_run(holding._run_id)
                assert storage.get_concurrency_info(POOL).slot_count == now


def test_the_daemon_goes_by_the_default_limit_that_it_was_started_with(tmp_path: Path) -> None:
    """A run by hand may have taken the new one by then."""
    queued = RunOpConcurrency(root_key_counts={POOL: 1}, has_unconstrained_root_nodes=False, all_pools={POOL})
    with throwaway_postgres() as url:
        with instance_in(url, tmp_path, 2) as instance, queue_of(instance, "load_shop") as by_hand:
            assert by_hand.claim(POOL, "models")
        with instance_in(url, tmp_path, 1) as instance:
            run = create_run_for_test(instance, job_name="load_bank")._replace(run_op_concurrency=queued)
            limits = instance.event_log_storage.get_pool_limits()
            GlobalOpConcurrencyLimitsCounter(instance, [run], [], {POOL}, limits)
            assert [each.limit for each in instance.event_log_storage.get_pool_limits()] == [1]


def test_a_limit_of_a_pool_of_its_own_stays(tmp_path: Path) -> None:
    """Somebody has set it in the UI, perhaps while a run was about to take the default."""
    follow_default_limit()
    with throwaway_postgres() as url, instance_in(url, tmp_path, 1) as instance:
        instance.event_log_storage.set_concurrency_slots(POOL, 3)
        instance.event_log_storage.initialize_concurrency_limit_to_default(POOL)
        (limit,) = instance.event_log_storage.get_pool_limits()
        assert (limit.limit, limit.from_default) == (3, False)
        assert instance.event_log_storage.get_concurrency_info(POOL).slot_count == 3


def test_every_run_follows_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    taking = "initialize_concurrency_limit_to_default"
    monkeypatch.setattr(SqlEventLogStorage, taking, pool_limits._by_dagster)
    monkeypatch.setattr(pools, "as_incremental_load", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        next(PoolExecutor(RetryMode.DISABLED).execute(Mock(), Mock()))
    assert getattr(SqlEventLogStorage, taking) is pool_limits._take_default
