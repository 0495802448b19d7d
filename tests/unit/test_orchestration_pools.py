"""Claims on pools, in a storage of Postgres as the stack has it."""

from pathlib import Path

import dagster as dg
from dagster._core.test_utils import create_run_for_test
from throwaway_postgres import throwaway_postgres

from lakehouse_stack.home.instance import with_driver
from orchestration.runs.pools import PoolQueue

POOL = "vault_shop"


def test_two_loads_may_be_the_first_to_claim_a_pool(tmp_path: Path) -> None:
    """In a fresh instance the second one died of a row that the first had made meanwhile."""
    with throwaway_postgres() as url:
        storage = {"postgres": {"postgres_url": with_driver(url)}}
        overrides = {"storage": storage, "concurrency": {"pools": {"default_limit": 1}}}
        with dg.instance_for_test(overrides, temp_dir=str(tmp_path)) as instance:
            first, second = (
                PoolQueue(instance, create_run_for_test(instance, job_name=job)) for job in ("load_shop", "load_bank")
            )
            with first, second:
                assert first.get_pool_info(POOL) is None and second.get_pool_info(POOL) is None
                assert first.claim(POOL, "models")
                assert not second.claim(POOL, "models"), "the first one holds it"
                first.free_step("models")
                assert instance.event_log_storage.get_concurrency_info(POOL).slot_count == 1
