"""Two loads of one vault at once, by hand: nothing is there twice, whoever wins."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse.settings import Settings
from orchestration.runs.failures import CONFLICT
from tests.histories import START, Clock
from tests.test_dbt import assert_parsed_is_complete, assert_vault_is_true
from tests.zoo import Zoo, animals, build_zoo, random_animal

pytestmark = pytest.mark.stack
REPLACED = "Failed to update table due to concurrent updates"  # of a mart that both build whole


@pytest.mark.slow
def test_two_runs_of_dbt_at_once_leave_each_row_once(settings: Settings, tmp_path: Path) -> None:
    """Both were green, and left 201 rows for 101 keys. Now the later commit of a table fails; the next run goes on."""
    zoo = build_zoo(settings, tmp_path)
    try:
        rng = random.Random(3)
        table, clock = animals(), Clock(rng)
        for load in range(3):
            before = len(table.raw)
            for key in range(load * 100 + 1, load * 100 + 101):
                table.apply("c", clock.position(), random_animal(rng)(key))
            clock.left = 0
            zoo.publish(table.raw[before:], START + timedelta(days=load + 1))
            if load:
                with ThreadPoolExecutor(2) as pool:
                    said = [
                        said for said in pool.map(lambda n: _outcome(zoo, tmp_path / f"target_{n}"), range(2)) if said
                    ]
                assert all(CONFLICT in what or REPLACED in what for what in said), "\n".join(said)
            zoo.dbt("run")
            assert_parsed_is_complete(zoo, table)
            assert_vault_is_true(zoo, table.versions)
    finally:
        zoo.clear()


def _outcome(zoo: Zoo, target: Path) -> str:
    """The last lines of a run that failed, else nothing."""
    try:
        zoo.dbt("run", DBT_TARGET_PATH=str(target))
    except AssertionError as error:
        return str(error)
    return ""
