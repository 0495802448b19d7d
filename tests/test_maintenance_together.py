"""Maintenance beside everything else: publishes, loads and all actions at once, and the lake is the source at the end.

`SOAK_MINUTES` sets how long the long form runs (20).
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ingestion.sink import cuts as publishing
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.writing import growing
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident
from maintenance.actions.compact import compact
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS, run
from tests.fourth_source import Table
from tests.orchestrated import BIN, Orchestrated, make_orchestrated
from tests.slots import following, until
from tests.steady_load import Repeated, SteadyLoad
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World, make_world

pytestmark = pytest.mark.stack

SEED = 20261121
RATE = 1000.0
RETENTION_HOURS = 0.03  # longer than any write of this test
POLICY = (
    "{schedule_group: hourly, compact: {target_file_size_mb: 64, min_input_files: 5},"
    " expire_snapshots: {older_than_hours: 1, retain_last: 2, keep_metadata_files: 5},"
    " remove_orphan_files: {older_than_hours: 1}, keep_removed_hours: 1,"
    " statistics: {analyze: true, stale_share: 0.1}}"
)
COMPACT = MaintenancePolicy.model_validate(
    {"schedule_group": "hourly", "compact": {"target_file_size_mb": 64, "min_input_files": 2}}
)


@pytest.mark.slow
def test_compaction_racing_with_publishes_never_doubles_or_loses(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every publish and every compaction of the same table finishes, whichever of them commits first."""
    monkeypatch.setattr(publishing, "GROWS", timedelta(seconds=1))
    monkeypatch.setattr(growing, "LEFT_ALONE", timedelta(seconds=3))
    world = make_world(settings, ORDERS, TABLES, flush_interval_seconds=0.1, poll_seconds=0.1)
    world.ingest(spark)
    outcomes: list[Outcome] = []

    def compact_both() -> None:
        with closing(Session(settings, start_spark=lambda: spark)) as session:
            for name in (TableName(f"raw_{world.source.name}", "orders"), TableName("meta", "cuts")):
                outcomes.append(compact(session, name, COMPACT))

    with following(world):
        compaction = Repeated(compact_both)
        compaction.start()
        for first in range(1, 2000, 20):
            world.sql(f"INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series({first}, {first + 19}) i")
            time.sleep(0.05)
        compaction.finish()
        until(lambda: newest_cut(world)[1] == len(world.raw("orders")) == 2000)
    assert [outcome.error for outcome in outcomes if outcome.status == "failed"] == []
    assert {str(o.table) for o in outcomes if o.status == "done"} == {f"raw_{world.source.name}.orders", "meta.cuts"}
    cycles = "SELECT cut_lsn FROM lakehouse.cycles WHERE source = %s AND cut_lsn IS NOT NULL ORDER BY published_at"
    with store.connect_catalog(settings) as states:
        published = [lsn for (lsn,) in states.execute(cycles, (world.source.name,)).fetchall()]
    assert [cut["cut_lsn"] for cut in cuts(world)] == published
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def newest_cut(world: World) -> tuple[int, int]:
    """LSN of the newest cut, and rows of `orders` that it shows in Trino."""
    where = f"source = '{world.source.name}' ORDER BY epoch DESC, cut_lsn DESC LIMIT 1"
    [[lsn, snapshot]] = query(
        world.settings, f"SELECT cut_lsn, element_at(snapshots, 'orders') FROM meta.cuts WHERE {where}"
    )
    table = f"raw_{world.source.name}.orders FOR VERSION AS OF {snapshot}"
    return lsn, query(world.settings, f"SELECT count(*) FROM {table}")[0][0]


@dataclass
class Everything:
    """A source under load, its follower, its loads, and all maintenance actions with a retention of minutes."""

    o: Orchestrated
    settings: Settings
    spark: Any
    follower_log: Path
    outcomes: list[Outcome] = field(default_factory=list)

    @contextmanager
    def follower(self) -> Iterator[None]:
        """`lakehouse ingest --follow`, ended by Ctrl-C."""
        environment = self.o.environment | {"LAKEHOUSE_INGESTION__MAX_SNAPSHOTS": "100"}
        command = [str(BIN / "lakehouse"), "ingest", "--follow", self.o.name]
        with self.follower_log.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield
            assert process.poll() is None, self.follower_log.read_text()[-2000:]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)

    def load(self) -> None:
        """Raw → parsed → vault, as the sensor would start it."""
        self.o.command("lakehouse", "run", f"load_{self.o.name}")

    def maintain(self) -> None:
        """All actions on all tables of the project."""
        with closing(Session(self.settings, start_spark=lambda: self.spark)) as session:
            self.outcomes += run(session, list(ACTIONS)).outcomes

    def done(self, action: str) -> set[str]:
        """Tables on which the action has done something."""
        return {str(o.table) for o in self.outcomes if o.action == action and o.status == "done"}


@pytest.fixture
def everything(settings: Settings, spark: Any, tmp_path: Path) -> Everything:
    o = make_orchestrated(settings, tmp_path, SEED, count=4, maintenance=POLICY)
    for file in (tmp_path / "dbt_project").rglob("*.yml"):
        names = "older_than_hours|keep_removed_hours|longest_write_hours"
        file.write_text(re.sub(rf"({names}): [\d.]+", rf"\1: {RETENTION_HOURS}", file.read_text()))
    mine = o.settings.model_copy(update={"project_dir": tmp_path})
    return Everything(o, mine, spark, tmp_path / "follower.log")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("minutes", [1.5, float(os.environ.get("SOAK_MINUTES", "20"))], ids=["short", "long"])
def test_ingestion_loads_and_all_actions_together_end_with_the_source(everything: Everything, minutes: float) -> None:
    o = everything.o
    load = SteadyLoad(o.world.owner_url, o.tables, RATE)
    threads = (load, Repeated(everything.load), Repeated(everything.maintain))
    with everything.follower():
        everything.load()
        for thread in threads:
            thread.start()
        load.stop.wait(minutes * 60)
        for thread in threads:
            thread.finish()
        everything.load()
        o.command("lakehouse", "reconcile", o.name)
    raw = {f"raw_{o.name}.{table.name}" for table in o.tables}
    passes = [len(thread.seconds) for thread in threads[1:]]
    print(f"{load.changes / load.seconds:,.0f} changes/s, {passes} loads and passes")
    assert load.changes / load.seconds > 0.9 * RATE
    assert [line for line in everything.follower_log.read_text().splitlines() if " ERROR " in line] == []
    assert [outcome for outcome in everything.outcomes if outcome.status == "failed"] == []
    assert everything.done("compact") >= raw | ({"meta.cuts"} if minutes > 10 else set()), "young cuts may still move"
    for table in o.tables:
        assert o.lake_rows(table) == o.source_rows(table), table.name
        assert newest_in_raw(o, table) == o.source_rows(table), table.name
        assert events_in_raw(o, table) == (load.done[table.name], 1), table.name
    assert_the_newest_cut_is_there(o)


def newest_in_raw(o: Orchestrated, table: Table) -> list[tuple[Any, ...]]:
    """The independent oracle: what the raw log amounts to, by a window function in Trino."""
    columns, key = ", ".join(ident(name) for name, _ in table.columns), ident(table.key)
    newest = f"row_number() OVER (PARTITION BY {key} ORDER BY _epoch DESC, _commit_lsn DESC, _seq DESC)"
    rows = f"SELECT *, {newest} AS _newest FROM raw_{o.name}.{ident(table.name)}"
    statement = f"SELECT {columns} FROM ({rows}) WHERE _newest = 1 AND _op <> 'd' ORDER BY {key}"
    return [tuple(row) for row in query(o.settings, statement)]


def events_in_raw(o: Orchestrated, table: Table) -> tuple[dict[str, int], int]:
    """Events by operation, and how often the most frequent position occurs."""
    raw = f"raw_{o.name}.{ident(table.name)}"
    counts = dict(query(o.settings, f"SELECT _op, count(*) FROM {raw} GROUP BY 1"))
    times = f"SELECT count(*) AS n FROM {raw} GROUP BY _epoch, _commit_lsn, _seq"
    return counts, query(o.settings, f"SELECT max(n) FROM ({times})")[0][0]


def assert_the_newest_cut_is_there(o: Orchestrated) -> None:
    """The state and `meta.cuts` agree, all tables stream, and every snapshot that the cut names can be read."""
    where = f"source = '{o.name}' ORDER BY epoch DESC, cut_lsn DESC, published_at DESC LIMIT 1"
    [[lsn, snapshots]] = query(o.settings, f"SELECT cut_lsn, CAST(snapshots AS json) FROM meta.cuts WHERE {where}")
    with store.connect_catalog(o.settings) as states:
        stream, positions = store.read_stream(states, o.name), store.read_positions(states, o.name)
    assert stream is not None and stream.cut_lsn == lsn
    assert {name: position.state for name, position in positions.items()} == {t.name: "streaming" for t in o.tables}
    with closing(open_catalog(o.settings)) as catalog:
        for name, snapshot in json.loads(snapshots).items():
            assert catalog.load_table((f"raw_{o.name}", name)).snapshot_by_id(int(snapshot)) is not None
            at_cut = f"raw_{o.name}.{ident(name)} FOR VERSION AS OF {snapshot}"
            assert query(o.settings, f"SELECT count(*) FROM {at_cut}")[0][0] == o.count(f"raw_{o.name}", name)
