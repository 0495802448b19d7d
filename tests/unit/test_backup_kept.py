"""What keeps the one good backup: cron backs up a catalog that was lost, and set up anew, before it is restored."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from killed import kills
from pydantic import SecretStr
from throwaway_postgres import throwaway_postgres

from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse_backup import run
from lakehouse_backup.dump import count_relations, dump_catalog
from lakehouse_backup.folder import ABOUT, DUMP, FORMER, locked_folder, read_facts, refuse_other_lake
from lakehouse_backup.roll_forward import RollForward
from lakehouse_backup.run import Warehouse, make_backup, restore_backup
from maintenance.inventory.session import Session

ONE = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name) VALUES (%s, 'marts', %s)"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A catalog that names two tables, whose warehouse is a folder."""
    monkeypatch.setattr(Session, "check", lambda session: None)  # it asks an object store
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    with throwaway_postgres() as url:
        made = load_settings(home=tmp_path / "home", catalog_url=url, warehouse=f"file://{warehouse}")
        set_up(made)
        add(made, "first", "second")
        yield made


def set_up(settings: Settings) -> None:
    """What `lakehouse up` and the first command make of an empty database."""
    with store.connect_catalog(settings) as states:
        with closing(open_catalog(settings)) as catalog:
            catalog.create_tables()
        store.ensure_state(states)


def add(settings: Settings, *tables: str) -> None:
    with store.connect_catalog(settings) as states:
        for table in tables:
            states.execute(ONE, (settings.catalog_name, table))


def lose(settings: Settings, state: bool = True) -> None:
    """The catalog is gone, or Iceberg's part of it."""
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as catalog:
        catalog.execute("DROP TABLE iceberg_tables, iceberg_namespace_properties")
        if state:
            catalog.execute("DROP SCHEMA lakehouse CASCADE")
    set_up(settings)


def back_up(settings: Settings, folder: Path) -> None:
    make_backup(settings, folder, catalog_only=True)


def test_the_backup_of_a_catalog_that_was_lost_is_not_replaced_by_that_of_an_empty_one(
    mine: Settings, tmp_path: Path
) -> None:
    """Cron put an empty dump in the place of the only one, and said `0 tables and views`."""
    folder = tmp_path / "backup"
    back_up(mine, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    lose(mine)
    with pytest.raises(LakehouseError, match=r"has a backup with 2 tables and views of another catalog, and it stays"):
        back_up(mine, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    add(mine, "of_a_topic")  # its follower has begun anew
    with pytest.raises(LakehouseError, match=r"of another catalog.*run `lakehouse restore-backup .*backup`"):
        back_up(mine, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    back_up(mine, tmp_path / "another")


def test_a_catalog_that_has_lost_its_tables_alone_does_not_replace_their_backup(mine: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    back_up(mine, folder)
    lose(mine, state=False)
    with pytest.raises(LakehouseError, match="2 tables and views of this catalog, which has none now, and it stays"):
        back_up(mine, folder)
    assert count_relations(folder / DUMP) == 2


def test_a_backup_keeps_the_dump_of_the_one_before(mine: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    back_up(mine, folder)
    assert not (folder / FORMER).exists()
    for table in ("third", "fourth"):
        add(mine, table)
        back_up(mine, folder)
    assert [count_relations(folder / name) for name in (FORMER, DUMP)] == [3, 4]
    assert (folder / FORMER).stat().st_mode & 0o777 == 0o600


def test_a_restored_catalog_goes_on_in_the_folder_of_its_backup(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    back_up(mine, folder)
    lose(mine)
    monkeypatch.setattr(run, "roll_forward", lambda *_: RollForward())
    restore_backup(mine, folder, Warehouse.KEPT)
    back_up(mine, folder)
    assert count_relations(folder / DUMP) == 2


def test_the_backup_of_another_lake_does_not_replace_the_catalog_of_this_one(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warehouse of every embedded stack is `s3://warehouse/`, so a folder mixed up cost the lake its catalog."""
    folder = tmp_path / "of_another"
    back_up(mine, folder)
    lose(mine)
    add(mine, "of", "this", "lake")
    monkeypatch.setattr(run, "roll_forward", lambda *_: RollForward())
    monkeypatch.setattr(run, "load_personal", lambda *_: pytest.fail("the home was changed"))
    with pytest.raises(
        LakehouseError, match=r"^the catalog .* has 3 tables and views of another lake than .*; add --re"
    ):
        restore_backup(mine, folder, Warehouse.KEPT)
    dump_catalog(mine, tmp_path / "now")
    assert count_relations(tmp_path / "now") == 3, "nothing was changed"
    monkeypatch.setattr(run, "load_personal", lambda *_: None)
    restore_backup(mine, folder, Warehouse.KEPT, replace_other_lake=True)
    back_up(mine, folder)
    assert count_relations(folder / DUMP) == 2


def test_a_lake_of_which_no_time_is_known_is_replaced_by_a_backup_without_one_alone(
    mine: Settings, tmp_path: Path
) -> None:
    """State of 0.1.0 has no version: its backup is the way back from an upgrade, and it is nobody's to replace."""
    back_up(mine, tmp_path)
    refuse_other_lake(mine, tmp_path, None)
    with psycopg.connect(mine.catalog_dsn(), autocommit=True) as catalog:
        catalog.execute("ALTER TABLE lakehouse.schema_version RENAME TO aside")
        with pytest.raises(LakehouseError, match="of another lake"):
            refuse_other_lake(mine, tmp_path, None)
        dump_catalog(mine, tmp_path / DUMP)
        refuse_other_lake(mine, tmp_path, None)
        catalog.execute("ALTER TABLE lakehouse.aside RENAME TO schema_version")
        refuse_other_lake(mine, tmp_path, None)


def test_a_lake_that_was_restored_elsewhere_is_not_replaced_by_a_backup_of_its_original(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test environment that was made from production's backup began when production did; the folders mixed up cost
    production its catalog."""
    folder = tmp_path / "of_the_original"
    back_up(mine, folder)
    monkeypatch.setattr(run, "roll_forward", lambda *_: RollForward())
    restore_backup(mine, folder, Warehouse.KEPT)
    with throwaway_postgres() as url:
        copy = mine.model_copy(update={"catalog_url": SecretStr(url)})
        set_up(copy)
        with monkeypatch.context() as patched:
            patched.setattr(run, "roll_forward", lambda *_: pytest.fail("killed"))
            with pytest.raises(pytest.fail.Exception):
                restore_backup(copy, folder, Warehouse.KEPT)  # it has no tables that could be lost
        restore_backup(copy, folder, Warehouse.KEPT)  # what came from there may come from there again
        of_copy = tmp_path / "of_the_copy"
        back_up(copy, of_copy)
    with pytest.raises(LakehouseError, match=r"has 2 tables and views of another database than .*; add --replace"):
        restore_backup(mine, of_copy, Warehouse.KEPT)
    about = json.loads((of_copy / ABOUT).read_text())
    del about["cluster"]  # a backup of an earlier release
    (of_copy / ABOUT).write_text(json.dumps(about))
    restore_backup(mine, of_copy, Warehouse.KEPT)


def test_no_backup_replaces_the_dump_while_it_is_restored(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects were written back for hours, and what was restored then was the dump that cron had made meanwhile."""
    folder = tmp_path / "backup"
    back_up(mine, folder)
    at_work = "a backup or a restore is at work in"

    def beside(*_: object) -> None:
        with pytest.raises(LakehouseError, match=at_work):
            back_up(mine, folder)

    monkeypatch.setattr(run, "load_personal", beside)
    monkeypatch.setattr(run, "roll_forward", lambda *_: RollForward())
    restore_backup(mine, folder, Warehouse.KEPT)
    with locked_folder(folder), pytest.raises(LakehouseError, match=at_work):
        restore_backup(mine, folder, Warehouse.KEPT)
    back_up(mine, folder)


def test_a_folder_that_can_only_be_read_is_restored(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copied"
    folder.mkdir()
    dump_catalog(mine, folder / DUMP)
    about = {"made_at": "2027-01-01T00:00:00+00:00", "warehouse": mine.warehouse, "catalog_only": True}
    (folder / ABOUT).write_text(json.dumps(about))
    monkeypatch.setattr(run, "roll_forward", lambda *_: RollForward())
    restore_backup(mine, folder, Warehouse.KEPT)
    assert {path.name for path in folder.iterdir()} == {DUMP, ABOUT}


def test_a_backup_that_is_killed_leaves_the_former_or_the_new_one_and_the_next_one_is_whole(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of the former dump, such as that it came without objects, stayed beside the new one."""
    monkeypatch.setattr(run, "_refuse_outside", lambda *_: None)  # the tables have no metadata
    former, folder = tmp_path / "former", tmp_path / "backup"
    back_up(mine, former)
    objects = {Path(mine.warehouse.removeprefix("file://")) / f"{n}.parquet": f"rows {n}" for n in range(2)}
    for path, text in objects.items():
        path.write_text(text)
    add(mine, "third")

    def again() -> None:
        make_backup(mine, folder)

    shutil.copytree(former, folder)
    seen = list[tuple[int, bool]]()
    for _ in kills(again, folder):
        seen.append((count_relations(folder / DUMP), read_facts(folder)["catalog_only"]))
        assert seen[-1] in ((2, True), (3, False))
        if seen[-1] == (3, False):
            assert {path.name for path in (folder / "warehouse").iterdir()} == {path.name for path in objects}
            (folder / FORMER).replace(folder / DUMP)
            assert read_facts(folder)["catalog_only"], "the dump before, renamed back, has its own facts"
        again()
        assert (count_relations(folder / DUMP), read_facts(folder)["catalog_only"]) == (3, False)
        assert [path for path in folder.rglob("*") if path.suffix in (".part", ".new")] == []
        assert {path.read_text() for path in (folder / "warehouse").iterdir()} == {*objects.values()}
        shutil.rmtree(folder)
        shutil.copytree(former, folder)
    assert (2, True) in seen and len(seen) > 10


def test_a_dump_that_nothing_is_written_of_is_not_restored_by_the_facts_of_another(
    mine: Settings, tmp_path: Path
) -> None:
    """Such as one that was copied while the next backup replaced it."""
    for folder in ("one", "another"):
        back_up(mine, tmp_path / folder)
        add(mine, folder)
    shutil.copy(tmp_path / "another" / DUMP, tmp_path / "one" / DUMP)
    with pytest.raises(
        LakehouseError, match=r"catalog\.dump is none of the dumps that backup\.json is about: copy both"
    ):
        restore_backup(mine, tmp_path / "one", Warehouse.KEPT)
