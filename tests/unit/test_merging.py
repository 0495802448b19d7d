"""Small files that a follower has published are merged: readers open few, and see the same rows at every snapshot."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, TimestamptzType

from ingestion.schema.positions import Lsn
from ingestion.sink import merging
from ingestion.sink import publish as sink
from ingestion.sink.publication import Cut, Publication, TableAppend
from ingestion.sink.writer import TableWriter, fitted, writable_metadata
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.added_rows import added_rows
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import changes_rows, is_unchanged
from lakehouse.catalog.private_pyiceberg import Rewrite, Staging
from lakehouse.catalog.views.regular import newest_tag
from lakehouse.catalog.writing.commit import until_committed
from lakehouse.catalog.writing.rewriting import rewriting
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
RAW, NOON = ("raw_shop", "items"), datetime(2026, 11, 26, 12, tzinfo=UTC)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "_op", StringType(), required=False),
    NestedField(3, "_commit_lsn", LongType(), required=False),
    NestedField(4, "_committed_at", TimestamptzType(), required=False),
    NestedField(5, "_unchanged", ListType(6, StringType(), element_required=False), required=False),
)
BY_DAY = PartitionSpec(PartitionField(source_id=4, field_id=1000, transform=DayTransform(), name="day"))


class Shop:
    """A source with one raw table, what its follower publishes, and what others do to the table meanwhile."""

    def __init__(self, settings: Settings, catalog: LakeCatalog, states: Any, spec: PartitionSpec) -> None:
        self.settings, self.catalog, self.number = settings, catalog, 0
        lease = leases.acquire(states, "shop", 600, "once")
        assert lease is not None
        self.lease, self.expected = lease, Counter[int]()
        store.create_stream(states, "shop", "slot", store.Cluster("7", 1), 2)
        catalog.create_namespace_if_not_exists("raw_shop")
        catalog.create_table(RAW, SCHEMA, partition_spec=spec)
        self.restart()

    @property
    def table(self) -> Table:
        return self.catalog.load_table(RAW)

    def publish(self, left_out: bool = False, days: int = 0) -> None:
        """Two rows; the second may be of an earlier day."""
        self.number += 1
        ids = [2 * self.number, 2 * self.number + 1]
        rows = {
            "id": ids, "_op": ["u", "u"], "_commit_lsn": ids, "_committed_at": [NOON, NOON - timedelta(days=days)],
            "_unchanged": [None, ["note"] if left_out else None],
        }  # fmt: skip
        table, cycle = self.table, f"c{self.number}"
        writer = TableWriter(writable_metadata(table, cycle), table.io, 1 << 20)
        writer.add(fitted(pa.table(rows), writer.schema))
        append = TableAppend(RAW, writer.close(), {"lakehouse.rows.u": "2"})
        cut = Cut(1, Lsn(ids[1] + 1), NOON, ("items",))
        made = Publication(cycle, "shop", 1, (append,), cut=cut, advance_to=cut.position)
        sink.publish(self.settings, self.catalog, self.lease, made)
        self.expected.update(ids)

    def compact(self, most: int) -> None:
        """Another process puts the oldest files in one, as a compaction does."""
        table = self.table
        files = [task.file for task in table.scan().plan_files()][:most]
        transaction = Staging(table)
        update = Rewrite(transaction, table.io, -1, {})
        for file in files:
            update.delete_data_file(file)
        for days in {file.partition: [f for f in files if f.partition == file.partition] for file in files}.values():
            for file in merging._as_one(table, f"by-another-{self.number}", days):
                update.append_data_file(file)
        update.commit()
        transaction.commit_transaction()

    def erase(self, below: int) -> None:
        """Rows go in files that are written anew."""
        self.table.delete(LessThan(term="id", literal=below))  # type: ignore[call-arg]
        self.expected = Counter({i: n for i, n in self.expected.items() if i >= below})

    def add_column(self) -> None:
        with self.table.update_schema() as update:
            update.add_column(f"c{self.number}", StringType())

    def restart(self) -> None:
        """Another process follows, which remembers nothing."""
        merging._recent.clear()

    def hold(self, seconds: int) -> None:
        """A compaction says that it is under way, or no longer."""
        until = int((datetime.now(UTC).timestamp() + seconds) * 1000)
        until_committed(self.catalog, RAW, lambda t: (SetPropertiesUpdate(updates=rewriting(t.metadata, until)),))

    def ids(self, snapshot: int | None = None) -> Counter[int]:
        return Counter(self.table.scan(snapshot_id=snapshot).to_arrow().column("id").to_pylist())

    def files(self) -> int:
        return len(list(self.table.scan().plan_files()))


@pytest.fixture
def make_shop(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[PartitionSpec], Shop]]:
    monkeypatch.setattr(merging, "FAN", 3)
    with store.connect_catalog(catalog_settings) as states:
        states.execute("DROP SCHEMA IF EXISTS lakehouse CASCADE")
        ensure_state(states)
        yield lambda spec: Shop(catalog_settings, postgres_catalog, states, spec)


def test_a_publish_each_second_leaves_few_files(make_shop: Any) -> None:
    shop, most = make_shop(BY_DAY), 0
    for _ in range(13):
        shop.publish()
        most = max(most, shop.files())
    metadata = shop.table.metadata
    assert most <= 2 * merging.FAN and shop.ids() == shop.expected
    kinds = Counter(snapshot.summary.operation for snapshot in metadata.snapshots)
    assert kinds == {Operation.APPEND: 13, Operation.REPLACE: 5}, "four merges of three, and one of these"
    merges = [snapshot for snapshot in metadata.snapshots if snapshot.summary.operation == Operation.REPLACE]
    assert not any(changes_rows(snapshot) for snapshot in merges)
    totals = {s.summary["total-records"] for s in metadata.snapshots if s.snapshot_id == metadata.current_snapshot_id}
    assert totals == {"26"}
    for number, snapshot in enumerate(metadata.snapshots):
        since = added_rows(shop.table, snapshot.snapshot_id, ["id"])
        before = shop.ids(snapshot.snapshot_id)
        assert since is not None and before + Counter(row["id"] for row in since) == shop.expected, number


def test_a_compaction_under_way_is_not_disturbed(make_shop: Any) -> None:
    shop = make_shop(PartitionSpec())
    for _ in range(merging.FAN):
        shop.publish()
    shop.hold(600)
    for _ in range(4):
        shop.publish()
    assert shop.files() == merging.FAN + 4
    shop.hold(-1)
    shop.publish()
    assert shop.files() < merging.FAN + 4


def test_the_tag_of_regular_rows_shows_few_files_too(make_shop: Any) -> None:
    shop = make_shop(PartitionSpec())
    for number in range(2 * merging.FAN):
        shop.publish(left_out=number == 3)
        name, snapshot = newest_tag(shop.table.metadata) or ("", 0)
        assert is_unchanged(shop.table.metadata, snapshot) and shop.ids(snapshot) == shop.expected, name
    assert len(list(shop.table.scan(snapshot_id=snapshot).plan_files())) == shop.files() <= merging.FAN + 1


def test_a_file_that_cannot_be_read_holds_no_publish_up(make_shop: Any) -> None:
    shop = make_shop(PartitionSpec())
    shop.publish()
    [first] = [task.file for task in shop.table.scan().plan_files()]
    shop.table.io.delete(first.file_path)
    for _ in range(7):
        shop.publish()
    assert shop.files() == 6, "begun anew behind the first three"


def test_a_table_with_delete_files_is_left_to_compaction(make_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_shop(PartitionSpec())
    monkeypatch.setattr(sink, "total", lambda snapshot, key: int(key == "total-delete-files"))
    for _ in range(5):
        shop.publish()
    assert shop.files() == 5


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 22))])
def test_rows_are_the_same_whatever_others_do_to_the_table(
    make_shop: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    shop = make_shop(dice.choice([BY_DAY, PartitionSpec()]))
    swap, seen = sink._swap, list[tuple[int, Counter[int]]]()

    def conflict(*given: Any) -> None:
        monkeypatch.setattr(sink, "_swap", swap)
        dice.choice([lambda: shop.compact(dice.randrange(2, 9)), lambda: None])()
        raise sink._Conflict

    for _ in range(40):
        match dice.choices(
            ["publish", "compact", "erase", "column", "restart", "hold", "conflict"], [60, 3, 3, 1, 1, 1, 4]
        )[0]:
            case "compact" if shop.files() > 1:
                shop.compact(dice.randrange(2, shop.files() + 1))
            case "erase" if shop.number:
                shop.erase(dice.randrange(2 * shop.number))
            case "column":
                shop.add_column()
            case "restart":
                shop.restart()
            case "hold":
                shop.hold(dice.choice([600, -1]))
            case "conflict" if shop.files() > 1:
                monkeypatch.setattr(sink, "_swap", conflict)
                shop.publish()
            case _:
                shop.publish(dice.random() < 0.1, dice.choice([0, 0, 1]))
        assert shop.ids() == shop.expected
        current = shop.table.metadata.current_snapshot_id
        if current is not None:
            seen.append((current, shop.expected.copy()))
    kept = {snapshot.snapshot_id for snapshot in shop.table.metadata.snapshots}
    assert all(shop.ids(snapshot) == rows for snapshot, rows in dice.sample(seen, 10) if snapshot in kept)
