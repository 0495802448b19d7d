"""What goes wrong beside a running worker is told once, and once when it is over; readers see nothing of it."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from lakehouse.servers.trino import query
from lakehouse.settings import AlertSettings
from lakehouse.text.sql import ident
from lakehouse_watch import alerts
from lakehouse_watch.probes import limits
from lakehouse_watch.targets.delivery import Delivery, declared_targets
from lakehouse_watch.watch import Watch, declared_probes
from tests.listeners import Webhook, webhook
from tests.orchestrated import Orchestrated
from tests.test_worker import hash_key, mart_of, plant_a_key_twice, shop, wait_for, working

__all__ = ["shop"]
pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3000)]


@contextmanager
def watching(o: Orchestrated, **limits_of: float) -> Iterator[tuple[Webhook, Callable[[], list[tuple[str, str]]]]]:
    """A webhook, and what it was told of the source after one more look: state and key, oldest first."""
    settings = o.settings.model_copy(
        update={
            "alerts": AlertSettings(**limits_of),  # type: ignore[arg-type]
            "project_dir": Path(o.environment["LAKEHOUSE_PROJECT_DIR"]),
        }
    )
    probes = [replace(probe, every=0.0) for probe in declared_probes(settings)]
    wanted = [probe for probe in probes if probe.name in ("dagster", "dagster checks", "loads")]
    with webhook() as hook:
        targets = declared_targets(AlertSettings(webhook=SecretStr(hook.url)))
        watch = Watch(settings, wanted, Delivery(targets), str)

        def told() -> list[tuple[str, str]]:
            watch.look()
            return [(m["state"], m["key"]) for m in hook.posted if o.name in m["key"]]

        try:
            yield hook, told
        finally:
            watch._disconnect()


def sell(o: Orchestrated, first: int, last: int) -> None:
    o.world.sql(o.tables[0].insert(first, last))
    o.command("lakehouse", "ingest", o.name, "--once")


def take_back_the_key(o: Orchestrated) -> None:
    """The duplicate is gone, as after a repair by hand."""
    hub, key = f"vault.{ident(f'hub_{o.name}_{o.tables[0].name}')}", hash_key(o)
    [[twice]] = query(o.settings, f"SELECT {key} FROM {hub} GROUP BY 1 HAVING count(*) > 1")
    snapshots = f"vault.{ident(f'hub_{o.name}_{o.tables[0].name}$snapshots')}"
    [[twice_at]] = query(o.settings, f"SELECT max_by(snapshot_id, committed_at) FROM {snapshots}")
    query(o.settings, f"DELETE FROM {hub} WHERE {key} = '{twice}'")
    past = f"SELECT DISTINCT * FROM {hub} FOR VERSION AS OF {twice_at} WHERE {key} = '{twice}'"
    query(o.settings, f"INSERT INTO {hub} {past}")


def test_a_key_twice_is_told_once_and_readers_see_no_mart_of_it(
    shop: Orchestrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "CALM", timedelta(seconds=1))
    before, log = shop.count("marts", mart_of(shop)), tmp_path / "worker.log"
    hub = f"check/vault.hub_{shop.name}_{shop.tables[0].name}"
    with watching(shop) as (hook, told):
        assert told() == []
        with working(shop, log):
            plant_a_key_twice(shop)
            sell(shop, 501, 510)
            wait_for(lambda: ("began", hub) in told())
            seen = {shop.count("marts", mart_of(shop))}
            sell(shop, 511, 515)
            wait_for(lambda: shop.count("vault", f"hub_{shop.name}_{shop.tables[0].name}") == 516)
            for _ in range(5):
                told()
                seen.add(shop.count("marts", mart_of(shop)))
            assert seen == {before}, "a mart of a hub with a key twice was published"
            take_back_the_key(shop)
        shop.command("lakehouse", "run", f"load_{shop.name}", "build_marts")
        wait_for(lambda: ("over", hub) in told())
        assert shop.count("marts", mart_of(shop)) == 515
        wait_for(lambda: len(Counter(state for state, _ in told())) == 2)
        counted, begun = Counter(told()), [m["summary"] for m in hook.posted if m["state"] == "began"]
    assert {count for (state, _), count in counted.items() if state == "over"} == {1}, "each alert ends once"
    assert len(begun) == len(set(begun)), "and begins once, but for another check of the same table that fails later"
    assert {key for state, key in counted if state == "began"} == {key for state, key in counted if state == "over"}


def test_a_worker_that_hangs_is_told_until_its_rows_are_loaded(
    shop: Orchestrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives, so the sensors leave new data to it: nothing was loaded for ever, and nobody heard of it."""
    monkeypatch.setattr(alerts, "CALM", timedelta(seconds=1))
    limits._read.cache_clear()
    with watching(shop, load_seconds=3.0) as (_, told), working(shop, tmp_path / "worker.log") as process:
        assert told() == []
        os.kill(process.pid, signal.SIGSTOP)
        try:
            sell(shop, 501, 510)
            wait_for(lambda: ("began", f"freshness/{shop.name}") in told())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: shop.lake_rows(shop.tables[0]) == shop.source_rows(shop.tables[0]))
        wait_for(lambda: ("over", f"freshness/{shop.name}") in told())
        assert told() == [("began", f"freshness/{shop.name}"), ("over", f"freshness/{shop.name}")]
