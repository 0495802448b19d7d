"""Maintenance killed with SIGKILL at each step, beside a lake that goes on: no row doubled or lost, nothing referenced
deleted, and the next run finishes."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import Settings
from maintenance.inventory import removed
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.inventory.reachable import reachable_files
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.test_kills import fill
from tests.world import World, _plain, make_world

pytestmark = pytest.mark.stack

EVERYTHING = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "compact": {"target_file_size_mb": 1, "min_input_files": 2, "sort_by": ["id"]},
        "expire_snapshots": {"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 2},
        "remove_orphan_files": {"older_than_hours": 0},
        "keep_removed_hours": 0,
    }
)
STEPS = {
    "compact": [
        "maintenance.actions.compact:_begin_order",
        "maintenance.actions.compact:_rewrite_data",
        "maintenance.actions.compact:_rewrite",
    ],
    "expire_snapshots": [
        "maintenance.actions.expire_snapshots:_write_down",
        "maintenance.actions.expire_snapshots:commit_on",
        "maintenance.actions.purge:delete_objects",
    ],
    "remove_orphan_files": [
        "maintenance.actions.remove_orphan_files:_confirmed",
        "maintenance.actions.remove_orphan_files:purge",
        "lakehouse.catalog.writing.bulk_delete:_send",
        "maintenance.actions.purge:delete_objects",
    ],
}
FAULTS = [
    (action, f"{step}:{when}") for action, steps in STEPS.items() for step in steps for when in ("before", "after")
]
QUICK = {"maintenance.actions.compact:_rewrite_data:after"}


def act_apart(world: World, action: str, *faults: str) -> subprocess.CompletedProcess[str]:
    """One action on the table of orders, in a process of its own, with faults."""
    place = world.settings.home / f"maintenance-{world.source.name}.json"
    place.write_text(_plain(world.settings))
    place.chmod(0o600)
    arguments = [str(place), action, f"raw_{world.source.name}", "orders", EVERYTHING.model_dump_json(), *faults]
    command = [sys.executable, "-m", "tests.maintenance_driver", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=240)
    finally:
        place.unlink()


def act(world: World, *actions: str) -> list[Outcome]:
    """The actions on the table of orders, by a session of this process."""
    name = TableName(f"raw_{world.source.name}", "orders")
    outcomes = []
    for action in actions:
        with closing(Session(world.settings)) as session:
            outcomes.append(ACTIONS[action](session, name, EVERYTHING))
    assert all(outcome.status in ("done", "skipped") for outcome in outcomes), outcomes
    return outcomes


def assert_whole(world: World) -> None:
    """The lake has what the source has, every file that is referred to is there, and the newest cut can be read."""
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)
    with closing(Session(world.settings)) as session:
        newest = dict(cuts(world)[-1]["snapshots"])
        for table in TABLES:
            loaded = session.catalog.load_table((f"raw_{world.source.name}", table))
            assert loaded.snapshot_by_id(int(newest[table])) is not None
            missing = [path for path in reachable_files(loaded) if not loaded.io.new_input(path).exists()]
            assert not [path for path in missing if not path.endswith(".metadata.json")]


@pytest.mark.parametrize(
    ("action", "fault"),
    [pytest.param(a, f, marks=() if f in QUICK else pytest.mark.slow, id=f"{a} {f}") for a, f in FAULTS],
)
def test_killed_at_a_step_nothing_is_lost_and_the_next_run_finishes(
    settings: Settings, spark: Any, action: str, fault: str
) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    for first in (1, 1001, 2001):
        fill(world, first, 60)
        world.ingest(spark)
    if action != "compact":
        act(world, "compact")
    if action == "remove_orphan_files":
        with closing(Session(world.settings)) as session:
            location = session.catalog.load_table((f"raw_{world.source.name}", "orders")).location()
            for number in range(3):
                with session.io.new_output(f"{location}/data/orphan-{number}").create() as stream:
                    stream.write(b"orphan")
    killed = act_apart(world, action, fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert_whole(world)
    fill(world, 3001, 60)
    world.ingest(spark)
    act(world, "compact", "expire_snapshots", "remove_orphan_files", "expire_snapshots", "remove_orphan_files")
    assert_whole(world)
    fill(world, 4001, 20)
    world.ingest(spark)
    assert_whole(world)
    with removed.catalog_database(world.settings) as connection:
        left = removed.recorded(connection, (f"raw_{world.source.name}", "orders"))
    assert not [path for path in left if not path.endswith(".metadata.json")], "the next runs finish what was begun"


@pytest.mark.slow
def test_expiry_right_after_a_compaction_forgets_no_position_and_no_cut(settings: Settings, spark: Any) -> None:
    """One known tool kept the ingest position in a snapshot, and lost it here."""
    world = make_world(settings, ORDERS, TABLES)
    for first in (1, 1001):
        fill(world, first, 60)
        world.ingest(spark)
    act(world, "compact", "expire_snapshots", "remove_orphan_files")
    assert_whole(world)
    fill(world, 2001, 60)
    restarted = world.driver()
    assert restarted.returncode == 0, restarted.stderr
    assert json.loads(restarted.stdout)["orders"], "a new process goes on where the other one stopped"
    act(world, "expire_snapshots", "remove_orphan_files")
    assert_whole(world)
