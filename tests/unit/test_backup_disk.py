"""A backup on a full disk is one line, leaves no half file and what was there; and no command shows a password."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse.text.urls import secret_options
from lakehouse_backup import dump
from lakehouse_backup.dump import dump_catalog, load_catalog
from lakehouse_backup.folder import locked_folder
from lakehouse_backup.objects import save_objects
from tests.disks import small_disk
from tests.unit.throwaway_postgres import throwaway_postgres

MEGABYTE = 1 << 20


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A catalog of which a dump has more than a megabyte."""
    monkeypatch.chdir(tmp_path)
    with throwaway_postgres() as url:
        with psycopg.connect(url) as catalog:
            catalog.execute(
                "CREATE SCHEMA lakehouse; CREATE TABLE lakehouse.t AS"
                " SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100000);"
                "CREATE TABLE iceberg_tables (t text); CREATE TABLE iceberg_namespace_properties (t text)"
            )
        monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", url)
        yield load_settings()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 1):
        made = tmp_path / "small" / "backup"
        made.mkdir()
        (made / "former").write_text("backup")
        yield made


def assert_told(folder: Path, work: Callable[[], Any]) -> None:
    with pytest.raises(LakehouseError) as caught, locked_folder(folder):
        work()
    assert str(caught.value) == f"{folder}: No space left on device; make room, then run this again"
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert left == {"former", "backup.lock"} and (folder / "former").read_text() == "backup"


def test_a_dump_that_does_not_fit_is_one_line_and_leaves_no_half(mine: Settings, folder: Path) -> None:
    """Half of it stayed on the full disk, and nothing was said of what to do."""
    assert_told(folder, lambda: dump_catalog(mine, folder / "catalog.dump.new"))


def test_a_passphrase_is_on_no_command_line_and_libpq_has_it(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ps` showed the `sslpassword` of a catalog's URL while a backup ran."""
    commands: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: commands.append(command) or run(command, **how))
    url = f"{mine.catalog_dsn()}?sslmode=disable&sslpassword=p4ssphrase&application_name=p4ssport"
    monkeypatch.setenv("LAKEHOUSE_CATALOG_URL", url)
    dump_catalog(load_settings(), tmp_path / "catalog.dump")
    load_catalog(load_settings(), tmp_path / "catalog.dump")
    assert "p4ssport" in str(commands) and "p4ssphrase" not in str(commands)
    monkeypatch.setattr(dump, "secret_options", lambda: secret_options() | {"application_name"})
    del commands[:]
    assert dump._run(load_settings(), "psql", "-Atc", "SHOW application_name") == "p4ssport\n"
    assert "p4ss" not in str(commands)


def test_an_object_that_does_not_fit_is_one_line_and_leaves_no_half(folder: Path, tmp_path: Path) -> None:
    """The advice was to name a folder that can be written."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    warehouse = tmp_path / "warehouse"
    (warehouse / "t").mkdir(parents=True)
    (warehouse / "t" / "data.parquet").write_bytes(bytes(2 * MEGABYTE))
    assert_told(folder, lambda: save_objects(cast(Any, PyArrowFileIO()), f"file://{warehouse}", folder / "warehouse"))
