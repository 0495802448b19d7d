"""Parts that run more than once, each as a process of its own: a second worker of Trino, a follower per source, and the
steps of Dagster's runs."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from trino.exceptions import TrinoQueryError

from ingestion import source_status
from lakehouse.servers.trino import connect, query
from lakehouse.settings import Settings
from lakehouse_stack.control.start_stop import running
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.pages import block
from tests.ports import free_port
from tests.slots import until
from tests.test_dev import running_dev

pytestmark = [pytest.mark.stack, pytest.mark.slow]
LESS = (("memory-per-node=1GB", "memory-per-node=300MB"), ("headroom-per-node=512MB", "headroom-per-node=200MB"))
NODES = "SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'"


@contextmanager
def started(argv: list[str], environment: Mapping[str, str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block."""
    with log.open("w") as output:
        process = subprocess.Popen(argv, env=environment, cwd=cwd, stdout=output, stderr=output, text=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


@pytest.fixture
def second_worker(settings: Settings, tmp_path: Path) -> Iterator[None]:
    """Beside the stack's own Trino, with which it speaks on loopback as that does with itself."""
    coordinator = running(settings, "trino")
    assert coordinator is not None
    argv, environment = coordinator.cmdline(), coordinator.environ()
    etc = Path(next(each for each in argv if each.startswith("-Dconfig=")).removeprefix("-Dconfig=")).parent
    (discovery,) = re.findall(r"^discovery\.uri=.*$", (etc / "config.properties").read_text(), re.MULTILINE)
    plain = (  # as the stack's own
        ("http-server.http.enabled=false", f"http-server.http.enabled=true\nhttp-server.http.port={free_port()}"),
        ("http-server.https.enabled=true\nhttp-server.https.port=8444\n", ""),
        ("https.required=true", "https.required=false"),
        ("discovery.uri=https://COORDINATOR:8443", discovery),
    )
    config = block("how-to/beyond-one-machine.md", "properties", *plain, *LESS)
    data = tmp_path / "worker"
    data.mkdir()
    file = tmp_path / "config.properties"
    file.write_text(f"{config}plugin.dir={etc}/plugin\ncatalog.config-dir={etc}/catalog\n")
    changed = {"-Dconfig=": f"-Dconfig={file}", "-Dnode.id=": "-Dnode.id=second", "-Xmx": "-Xmx768m"}
    mine = [next((new for old, new in changed.items() if each.startswith(old)), each) for each in argv]
    with started(mine, environment, data, tmp_path / "worker.log"):
        try:
            until(lambda: _nodes(settings) == 2, 240)
        except AssertionError:
            raise AssertionError((tmp_path / "worker.log").read_text()[-3000:]) from None
        yield
    until(lambda: _nodes(settings) == 1, 240)


def _nodes(settings: Settings) -> int:
    """Trino's nodes; 0 where the query was sent to one that is gone, which takes a while to be noticed."""
    try:
        return int(query(settings, NODES)[0][0])
    except TrinoQueryError:
        return 0


def test_a_second_worker_of_trino_takes_its_part_of_a_query(
    settings: Settings, second_worker: None, tmp_path: Path
) -> None:
    o = make_orchestrated(settings, tmp_path / "project", 20261124, count=1)
    o.command("lakehouse", "ingest", o.name, "--once")
    table = o.tables[0]
    o.world.sql(*[table.insert(1000 * n, 1000 * n + 999) for n in range(1, 4)])
    o.command("lakehouse", "ingest", o.name, "--once")
    cursor = connect(settings).cursor()
    cursor.execute(f'SELECT count(DISTINCT "{table.key}") FROM raw_{o.name}."{table.name}"')
    assert cursor.fetchall() == [[3500]]
    nodes = query(settings, f"SELECT DISTINCT node_id FROM system.runtime.tasks WHERE query_id = '{cursor.query_id}'")
    assert ["second"] in nodes and len(nodes) == 2


def test_two_followers_of_two_sources_publish_to_one_catalog_and_one_outlives_the_other(
    settings: Settings, tmp_path: Path
) -> None:
    shops = [make_orchestrated(settings, tmp_path / f"project{n}", 7 + n, count=1) for n in (1, 2)]
    with ExitStack() as ends:
        followers = [ends.enter_context(_follower(shop, tmp_path)) for shop in shops]
        for shop in shops:
            until(lambda shop=shop: _is_followed(shop), 180)
        _insert(shops, 501, 700)
        for shop in shops:
            until(lambda shop=shop: len(shop.world.current(shop.tables[0].name)) == 700, 120)

        for each in (followers[0], *psutil.Process(followers[0].pid).children(recursive=True)):
            each.send_signal(signal.SIGKILL)
        _insert(shops, 701, 900)
        until(lambda: len(shops[1].world.current(shops[1].tables[0].name)) == 900, 120)
        assert len(shops[0].world.current(shops[0].tables[0].name)) == 700, "nobody follows it"

        ends.enter_context(_follower(shops[0], tmp_path))
        until(lambda: len(shops[0].world.current(shops[0].tables[0].name)) == 900, 180)
        for shop in shops:
            table, current = shop.tables[0], shop.world.current(shop.tables[0].name)
            rows = sorted(tuple(row[name] for name, _ in table.columns) for row in current.values())
            assert rows == sorted(shop.source_rows(table))


def test_a_run_that_the_daemon_launches_has_a_process_for_each_step(settings: Settings, tmp_path: Path) -> None:
    made = make_orchestrated(settings, tmp_path / "project", 20261125, count=1)
    apart = replace(made, environment={**made.environment, "LAKEHOUSE_DAGSTER__STEP_PROCESSES": "true"})
    with running_dev(apart, tmp_path / "dev.log") as dev:
        until(lambda: dev.runs(dg.DagsterRunStatus.SUCCESS), 500)
        [run] = dev.runs()
        events = [entry.dagster_event for entry in dev.instance.all_logs(run.run_id) if entry.dagster_event]
        pids = [event.pid for event in events if event.is_step_start]
        launched = {event.pid for event in events if event.event_type is dg.DagsterEventType.RUN_START}
        assert len(pids) >= 2 and len({*pids, *launched}) == len(pids) + 1
        assert apart.lake_rows(apart.tables[0]) == apart.source_rows(apart.tables[0])


def _follower(shop: Orchestrated, folder: Path) -> Any:
    log = folder / f"{shop.name}.log"
    argv = [str(BIN / "lakehouse"), "ingest", shop.name, "--follow"]
    return started(argv, {**os.environ, **shop.environment}, Path(shop.environment["LAKEHOUSE_PROJECT_DIR"]), log)


def _is_followed(shop: Orchestrated) -> bool:
    status = source_status(shop.world.settings, shop.name)
    return status.follower_alive and len(shop.world.current(shop.tables[0].name)) == 500


def _insert(shops: list[Orchestrated], first: int, last: int) -> None:
    for shop in shops:
        shop.world.sql(shop.tables[0].insert(first, last))
