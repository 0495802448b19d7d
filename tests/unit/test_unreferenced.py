"""Which objects nothing refers to, on real Iceberg tables in a directory: no server, no Spark."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from maintenance.inventory import reachable
from maintenance.inventory.reachable import reachable_files, without_reference

SCHEMA = pa.schema([("id", pa.int64())])
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
SNAPSHOTS = 8


@pytest.fixture
def plain(tmp_path: Path) -> Table:
    """Appends, and nothing else."""
    return appended(tmp_path, {})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A past in which files were replaced and manifests merged, so that old snapshots alone name some of them."""
    table = appended(tmp_path, MERGING)
    table.delete("id < 4")
    return table


def appended(folder: Path, properties: dict[str, str]) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.sales", SCHEMA, properties=properties)
    for number in range(SNAPSHOTS):
        table.append(pa.Table.from_pylist([{"id": number}, {"id": number + 100}], SCHEMA))
    return table


def objects(table: Table) -> set[str]:
    """All files of the table that are there."""
    folder = Path(table.location().removeprefix("file://"))
    return {f"file://{path}" for path in folder.rglob("*") if path.is_file()}


def times(table: Table, paths: set[str]) -> dict[str, int]:
    """When each was written, in epoch milliseconds."""
    return {path: int(Path(path.removeprefix("file://")).stat().st_mtime * 1000) for path in paths}


def orphan(table: Table, name: str) -> str:
    path = f"{table.location()}/{name}"
    Path(path.removeprefix("file://")).write_bytes(b"orphan")
    return path


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Snapshots whose manifest lists are read from now on."""
    read: list[int] = []
    real = reachable.manifests_of

    def noting(table: Table, snapshots: list) -> dict:
        read.extend(snapshot.snapshot_id for snapshot in snapshots)
        return real(table, snapshots)

    monkeypatch.setattr(reachable, "manifests_of", noting)
    return read


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_that_no_snapshot_reaches_whatever_the_times_say(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    planted = {orphan(table, name) for name in ("data/a.parquet", "metadata/b.avro", "metadata/c.metadata.json")}
    there = objects(table)
    first, last = (table.snapshots()[place].timestamp_ms for place in (0, -1))
    written = {path: chance.randint(first - 10 * reachable.CLOSE_MS, last + 10 * reachable.CLOSE_MS) for path in there}
    lost = there - reachable_files(table)
    assert without_reference(table, written) == lost >= planted


def test_where_nothing_is_lost_the_newest_snapshot_is_enough(plain: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read, unlogged = asked(monkeypatch), orphan(plain, "metadata/unlogged.metadata.json")
    assert without_reference(plain, times(plain, objects(plain))) == {unlogged}
    assert read == [plain.metadata.current_snapshot_id]


def test_before_an_object_is_lost_all_snapshots_are_asked(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, read = orphan(table, "data/lost.parquet"), asked(monkeypatch)
    assert without_reference(table, times(table, {lost})) == {lost}
    assert sorted(read) == sorted(snapshot.snapshot_id for snapshot in table.snapshots())


def test_without_objects_nothing_is_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read = asked(monkeypatch)
    assert without_reference(table, {}) == set() and read == []
