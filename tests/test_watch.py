"""The watch over a running lake: what happens to a follower is told, and a killed one holds up nobody."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ingestion import source_status
from lakehouse.settings import AlertSettings
from lakehouse_watch import alerts
from lakehouse_watch.probes import sources
from lakehouse_watch.targets.delivery import Delivery, declared_targets
from lakehouse_watch.watch import Watch, declared_probes, look_once
from tests.listeners import webhook
from tests.slots import until
from tests.test_kills import assert_right, fill
from tests.world import World, _plain

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture
def follower(loaded_world: World) -> Iterator[subprocess.Popen[bytes]]:
    """A follower in its own process, which follows."""
    plan = loaded_world.settings.home / f"{loaded_world.source.name}.pickle"
    plan.write_bytes(pickle.dumps((_plain(loaded_world.settings), loaded_world.source)))
    argv = [sys.executable, "-m", "tests.driver", str(plan), "--follow"]
    process = subprocess.Popen(argv, cwd=Path(__file__).parents[1], env={**os.environ, "LAKEHOUSE_CONFIG": os.devnull})
    try:
        until(lambda: source_status(loaded_world.settings, loaded_world.source.name).follower == "alive")
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_follower_is_told_and_the_next_writer_does_not_wait_for_its_lease(
    loaded_world: World, follower: subprocess.Popen[bytes], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease runs for 30 seconds; the next `ingest --once` waited for its end."""
    monkeypatch.setattr(sources, "RESTART_SECONDS", 1.0)
    monkeypatch.setattr(alerts, "CALM", alerts.timedelta(seconds=1))
    name = loaded_world.source.name
    probes = [probe for probe in declared_probes(loaded_world.settings) if probe.source == name]
    with webhook() as hook:
        targets = declared_targets(AlertSettings(webhook=SecretStr(hook.url)))
        this = Watch(loaded_world.settings, probes, Delivery(targets), str)
        this.look()
        assert hook.posted == []
        follower.kill()
        follower.wait()
        killed = time.monotonic()
        while not hook.posted:
            this.look()
            assert time.monotonic() - killed < 20
            time.sleep(0.2)
        assert hook.posted[0]["key"] == f"follower/{name}"
        fill(loaded_world, 2001, 50)
        begun = time.monotonic()
        loaded_world.ingest(spark)
        assert time.monotonic() - begun < 15, "it waited for the lease of a process that is gone"
        assert_right(loaded_world)
        assert source_status(loaded_world.settings, name).follower == "dead", "there is still nobody who follows"
        this.look()
        assert len(hook.posted) == 1


def test_everything_is_looked_at_in_a_running_lake(loaded_world: World) -> None:
    """Each probe reads the real thing; one that cannot is an occasion."""
    found = look_once(loaded_world.settings)
    assert not [occasion for occasion in found if occasion.kind == "unreadable"], found
