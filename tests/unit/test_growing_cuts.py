"""The files of `meta.cuts`: one grows with each publish, on a real Iceberg table in a directory, without servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.types import StringType

from ingestion.sink import cuts
from ingestion.sink.cuts import CUTS, CUTS_SCHEMA, Grown, append_of, grow, remember
from ingestion.sink.publish import drop_surplus
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.writing import manifests
from lakehouse.catalog.writing.growing import GROWS, LEFT_ALONE, settled
from lakehouse.catalog.writing.manifests import FAN, GrowingAppend
from lakehouse.declarations.policies import CompactPolicy
from lakehouse_backup.cuts import cuts_of
from maintenance.actions.layout import plan_for
from maintenance.inventory.cuts import newest_row
from tests.marks import slow

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    made = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("meta")
    made.create_table(CUTS, CUTS_SCHEMA, properties={"format-version": "2"})
    return made


def staged(catalog: LakeCatalog, number: int, source: str = "s", **more: Any) -> tuple[Grown, GrowingAppend, Staging]:
    """The cut with this position, a second after the one before it."""
    table, now = catalog.load_table(CUTS), more.pop("now", BEGIN + number * SECOND)
    row = {"source": source, "epoch": 1, "cut_lsn": number, "published_at": now, "snapshots": [("t", str(number))]}
    grown = grow(table, source, pa.Table.from_pylist([row | more], schema=table.schema().as_arrow()), now)
    transaction = Staging(table)
    with append_of(grown, transaction, {"lakehouse.source": source}) as update:
        for file in grown.files:
            update.append_data_file(file)
    return grown, update, transaction


def publish(catalog: LakeCatalog, number: int, source: str = "s", **more: Any) -> None:
    grown, update, transaction = staged(catalog, number, source, **more)
    transaction.commit_transaction()
    remember(grown, update)


def positions(table: Table, source: str = "s") -> list[int]:
    rows = table.scan(f"source = '{source}'").to_arrow()
    return sorted(rows["cut_lsn"].to_pylist())


def files(table: Table) -> list[int]:
    """The rows of each."""
    return sorted(table.inspect.files()["record_count"].to_pylist())


def test_cuts_share_a_file_until_it_is_full_and_each_state_has_every_cut_once(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = 4
    for module in (cuts, manifests):
        monkeypatch.setattr(module, "FULL_ROWS", full)
    most, count = 0, 12 * full + 3
    for number in range(1, count + 1):
        publish(catalog, number)
        table = catalog.load_table(CUTS)
        assert positions(table) == list(range(1, number + 1))
        most = max(most, len(table.current_snapshot().manifests(table.io)))
    assert files(table) == [3, *[full] * 12]
    assert most <= FAN + 3, "full ones are merged ten at a time"
    newest = newest_row(table, "s")
    assert newest is not None and newest["cut_lsn"] == count
    assert newest["snapshots"] == [("t", str(count))]
    summary = table.current_snapshot().summary
    assert (summary["total-records"], summary["total-data-files"]) == (str(count), "13")


def test_earlier_states_keep_their_files_and_the_replaced_one_is_written_down(catalog: LakeCatalog) -> None:
    for number in range(1, 4):
        publish(catalog, number)
    table = catalog.load_table(CUTS)
    for number, snapshot in enumerate(table.snapshots(), start=1):
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert sorted(rows["cut_lsn"].to_pylist()) == list(range(1, number + 1))
    assert [s.summary.operation.value for s in table.snapshots()] == ["append", "overwrite", "overwrite"]
    entries = [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    found = {e.status: (e.snapshot_id, e.sequence_number) for e in entries}
    newest = table.current_snapshot().snapshot_id
    assert found == {ManifestEntryStatus.ADDED: (newest, 3), ManifestEntryStatus.DELETED: (newest, 2)}


def test_sources_have_files_of_their_own(catalog: LakeCatalog) -> None:
    sources = [f"s{n}" for n in range(12)]
    for number in range(1, 5):
        for source in sources:
            publish(catalog, number, source)
    table = catalog.load_table(CUTS)
    assert files(table) == [4] * 12
    assert all(positions(table, source) == list(range(1, 5)) for source in sources)


def test_what_was_staged_and_not_published_is_not_replaced(catalog: LakeCatalog) -> None:
    publish(catalog, 1)
    staged(catalog, 2)  # its writer is killed, or another commit was first
    publish(catalog, 3)
    assert positions(catalog.load_table(CUTS)) == [1, 3]
    grown, update, _ = staged(catalog, 4)
    remember(grown, update)  # of an unknown outcome, which was none
    publish(catalog, 5)
    assert positions(catalog.load_table(CUTS)) == [1, 3, 5]


def test_another_process_begins_a_file_of_its_own(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(catalog, 1)
    publish(catalog, 2)
    mine = dict(cuts._newest)
    cuts._newest.clear()
    publish(catalog, 3)
    publish(catalog, 4)
    assert files(catalog.load_table(CUTS)) == [2, 2]
    cuts._newest.update(mine)  # the first one has the lease again
    publish(catalog, 5)
    assert files(catalog.load_table(CUTS)) == [2, 3]
    assert positions(catalog.load_table(CUTS)) == [1, 2, 3, 4, 5]


def test_rows_that_somebody_has_deleted_stay_so(catalog: LakeCatalog) -> None:
    for number in (1, 2, 3):
        publish(catalog, number)
    catalog.load_table(CUTS).delete("cut_lsn = 2")
    publish(catalog, 4)
    assert positions(catalog.load_table(CUTS)) == [1, 3, 4]


def test_an_earlier_state_that_is_restored_goes_on_from_its_rows(catalog: LakeCatalog) -> None:
    publish(catalog, 1)
    publish(catalog, 2)
    table = catalog.load_table(CUTS)
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(first).commit()
    publish(catalog, 3)
    assert positions(catalog.load_table(CUTS)) == [1, 3]


def test_a_file_of_other_columns_is_left_as_it_is(catalog: LakeCatalog) -> None:
    publish(catalog, 1)
    with catalog.load_table(CUTS).update_schema() as update:
        update.add_column("of_a_newer_release", StringType())
    publish(catalog, 2)
    assert files(catalog.load_table(CUTS)) == [1, 1]
    assert positions(catalog.load_table(CUTS)) == [1, 2]


def test_a_file_that_is_old_or_large_grows_no_more(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(catalog, 1)
    publish(catalog, 2, now=BEGIN + SECOND + GROWS)
    publish(catalog, 3, now=BEGIN + 2 * SECOND + GROWS)
    assert files(catalog.load_table(CUTS)) == [1, 2]
    monkeypatch.setattr(cuts, "FULL_BYTES", 1)
    publish(catalog, 4, now=BEGIN + 3 * SECOND + GROWS)
    assert files(catalog.load_table(CUTS)) == [1, 1, 2]


def test_maintenance_leaves_files_alone_that_may_grow(catalog: LakeCatalog) -> None:
    rule, now = CompactPolicy(target_file_size_mb=64, min_input_files=2), datetime.now(UTC)
    for number in range(4):
        cuts._newest.clear()
        publish(catalog, number, now=now - LEFT_ALONE - SECOND if number < 2 else now - GROWS)
    table = catalog.load_table(CUTS)
    plan = plan_for(table, rule)
    assert plan.files == 2 and not plan.manifests
    assert settled(table, now) == f"published_at < TIMESTAMP '{now - LEFT_ALONE:%Y-%m-%d %H:%M:%S} UTC'"


class History:
    """Random events of `meta.cuts`, and what each of its states has to hold."""

    def __init__(self, catalog: LakeCatalog, seed: int) -> None:
        self.catalog, self.dice, self.number, self.clock = catalog, Random(seed), 0, BEGIN
        self.processes: list[dict[Any, Any]] = [{}, {}, {}]
        self.states: dict[int, list[int]] = {}
        self.now: list[int] = []

    @contextmanager
    def as_process(self) -> Iterator[None]:
        """One of several processes, each of which remembers what it has published itself."""
        mine = self.dice.randrange(len(self.processes))
        cuts._newest.clear()
        cuts._newest.update(self.processes[mine])
        yield
        self.processes[mine] = dict(cuts._newest)

    def begin(self) -> tuple[Grown, GrowingAppend, Staging]:
        self.number += 1
        self.clock += SECOND * self.dice.choice((0, 1, 1, 1, 30, 200, -500))
        return staged(self.catalog, self.number, self.dice.choice("ab"), now=self.clock)

    def publish(self) -> None:
        with self.as_process():
            grown, update, transaction = self.begin()
            transaction.commit_transaction()
            remember(grown, update)
        self.now = [*self.now, self.number]

    def kill(self) -> None:
        """Before the commit, or at a commit that never came; the number is not taken again."""
        with self.as_process():
            grown, update, _ = self.begin()
            if self.dice.random() < 0.5:
                remember(grown, update)

    def lose(self) -> None:
        """Staged, and refused, because another commit was first; then staged again."""
        with self.as_process():
            self.begin()
        self.publish()

    def delete(self) -> None:
        gone = self.dice.choice(self.now)
        self.catalog.load_table(CUTS).delete(f"cut_lsn = {gone}")
        self.now = [number for number in self.now if number != gone]

    def rewrite(self) -> None:
        table = self.catalog.load_table(CUTS)
        table.overwrite(table.scan().to_arrow())

    def put_back(self) -> None:
        table = self.catalog.load_table(CUTS)
        kept = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id in self.states]
        chosen = self.dice.choice(kept[-8:])
        table.manage_snapshots().set_current_snapshot(chosen).commit()
        self.now = self.states[chosen]

    def pin(self) -> None:
        table = self.catalog.load_table(CUTS)
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, f"pin_{self.number}").commit()

    def expire(self) -> None:
        table = self.catalog.load_table(CUTS)
        transaction = Staging(table)
        drop_surplus(transaction, table.metadata, 4)
        transaction.commit_transaction()

    def alter(self) -> None:
        table = self.catalog.load_table(CUTS)
        with table.update_schema() as update:
            update.add_column(f"of_release_{len(table.schema().fields)}", StringType())

    def check(self) -> None:
        """The newest state."""
        table = self.catalog.load_table(CUTS)
        newest = table.current_snapshot()
        self.states[newest.snapshot_id] = self.now
        self._check(table, newest.snapshot_id)
        assert newest.summary["total-records"] == str(len(self.now))

    def check_all(self) -> None:
        """Every state that is kept; nothing is told of one between the two commits of an overwrite."""
        table = self.catalog.load_table(CUTS)
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in self.states:
                self._check(table, snapshot.snapshot_id)

    def _check(self, table: Table, snapshot: int) -> None:
        rows = table.scan(snapshot_id=snapshot).to_arrow()["cut_lsn"].to_pylist()
        assert sorted(rows) == sorted(self.states[snapshot])


@pytest.mark.parametrize("seed", [1, slow(2), slow(3)])
def test_whatever_happens_between_publishes_each_state_has_each_cut_once(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Several processes, clocks that jump, kills, and whatever a user or maintenance does to the table meanwhile."""
    for module in (cuts, manifests):
        monkeypatch.setattr(module, "FULL_ROWS", 5)
    history = History(catalog, seed)
    history.publish()
    history.check()
    others = [history.kill, history.lose, history.delete, history.rewrite, history.put_back, history.pin,
              history.expire, history.alter]  # fmt: skip
    for _ in range(40):
        act = history.publish if history.dice.random() < 0.6 else history.dice.choice(others)
        if history.now or act is not history.delete:
            act()
            history.check()
    history.check_all()


def test_all_cuts_of_a_source_are_read_newest_first(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintenance.inventory.cuts.ROWS_AT_ONCE", 2)
    for number in range(1, 6):
        publish(catalog, number, position=f"clicks/0:{number}", cut_at=BEGIN)
        publish(catalog, number, "other")
    found = list(cuts_of(catalog.load_table(CUTS), "s"))
    assert [(cut.lsn, cut.text, cut.snapshots) for cut in found] == [
        (number, f"clicks/0:{number}", {"t": number}) for number in (5, 4, 3, 2, 1)
    ]
