"""A power loss takes what the file system has not written yet, while the catalog's database and the slot remember."""

import errno
import os
from pathlib import Path

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from lakehouse.catalog import STORE_FOLDER
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import file_io_properties
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.writing.commit import commit_on
from lakehouse.errors import LakehouseError
from lakehouse.files import durable
from lakehouse.files.durable import sync_file_system
from lakehouse.settings import Settings
from tests.unit.test_irregular import RAW, Shop, shop  # noqa: F401


@pytest.fixture
def folder(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """That of a store on this machine."""
    found = Path(str(shop.catalog.properties["warehouse"]).removeprefix("file://"))
    monkeypatch.setitem(shop.catalog.file_io.properties, STORE_FOLDER, str(found))
    return found


def test_all_objects_of_a_publish_are_on_the_disk_before_the_catalog_names_them(
    shop: Shop,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot was confirmed, so that the source forgot the changes, and their files were empty after a power loss."""
    synced: list[set[str]] = []

    def sync(asked: Path) -> None:
        assert asked == folder and shop.catalog.load_table(RAW).metadata_location == before, "nothing is published yet"
        synced.append({stored.path for stored in list_objects(shop.catalog.file_io, f"file://{folder}")})

    before = shop.catalog.load_table(RAW).metadata_location
    monkeypatch.setattr("lakehouse.catalog.objects.sync_file_system", sync)
    shop.publish(shop.append(lsn=200), lsn=201)
    assert shop.catalog.load_table(RAW).metadata_location != before
    assert synced == [{stored.path for stored in list_objects(shop.catalog.file_io, f"file://{folder}")}]


def test_the_metadata_of_a_pin_is_on_the_disk_before_the_catalog_names_it(
    shop: Shop,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A raw table whose metadata file a power loss emptied has lost its rows, also those published long ago."""
    table = shop.catalog.load_table(RAW)
    there: list[str] = []
    monkeypatch.setattr(
        "lakehouse.catalog.objects.sync_file_system",
        lambda asked: there.extend(stored.path for stored in list_objects(shop.catalog.file_io, f"file://{folder}")),
    )
    changed = commit_on(shop.catalog, table, (SetPropertiesUpdate(updates={"lakehouse.pin.close": "{}"}),))
    assert changed.metadata_location != table.metadata_location and changed.metadata_location in there


def test_what_the_disk_does_not_take_is_not_published(
    shop: Shop,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(opened: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = shop.catalog.load_table(RAW).metadata_location
    monkeypatch.setattr(durable, "_syncfs", fail)
    with pytest.raises(LakehouseError, match=r"the disk has not taken what was written, Input/output error"):
        shop.publish(shop.append(lsn=200), lsn=201)
    assert shop.catalog.load_table(RAW).metadata_location == before


def test_objects_are_deleted_once_what_replaces_them_is_on_the_disk(
    shop: Shop,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An erasure deletes at once what it has written anew."""
    old = folder / "old.parquet"
    old.write_text("rows")
    seen: list[bool] = []
    monkeypatch.setattr("lakehouse.catalog.objects.sync_file_system", lambda asked: seen.append(old.exists()))
    delete_objects(shop.catalog.file_io, [f"file://{old}"])
    assert seen == [True] and not old.exists()


def test_a_folder_is_synced_whoever_owns_it_and_on_whichever_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_it: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: all_of_it.append("sync"))
    sync_file_system(tmp_path)
    sync_file_system(tmp_path / "of another machine")
    assert all_of_it == []
    with monkeypatch.context() as patch:
        patch.setattr(durable.ctypes, "CDLL", lambda *_, **__: object())
        sync_file_system(tmp_path)
    assert len(all_of_it) == 1, "no Linux"

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(durable.os, "open", refuse)
    sync_file_system(tmp_path)
    assert len(all_of_it) == 2


def test_the_kernel_says_why_it_cannot_sync(tmp_path: Path) -> None:
    opened = os.open(tmp_path, os.O_RDONLY | os.O_PATH)  # for which syncfs refuses
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            durable._syncfs(opened)
    finally:
        os.close(opened)


def test_only_a_store_with_a_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))  # not that of a demo that was run here
    with_folder = Settings.model_validate({"s3": {"folder": "/data/s3"}})
    assert file_io_properties(with_folder)[STORE_FOLDER] == "/data/s3"
    assert STORE_FOLDER not in file_io_properties(Settings())
