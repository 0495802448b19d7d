"""Rolling a restored catalog forward: the choice of the cut, and when a source may continue without recovery."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from sqlalchemy import text

from ingestion.mirrors.write import BRANCH
from ingestion.schema.positions import Lsn
from ingestion.state.store import Stream, TablePosition
from lakehouse import extras
from lakehouse.catalog.objects import StoredObject, list_objects
from lakehouse.catalog.relations import Relation
from lakehouse.catalog.writing.next_tables import BUILT_FROM
from lakehouse.declarations.access.rules import ABOVE, REMEMBERED, read_remembered, write_remembered
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, TrinoSettings
from lakehouse_backup import dump, run
from lakehouse_backup.cuts import Cut, choose, diverging_states
from lakehouse_backup.folder import DUMP, OBJECTS, locked_folder
from lakehouse_backup.metadata_files import metadata_files, version
from lakehouse_backup.objects import Saved, load_objects, save_objects
from lakehouse_backup.personal import load_personal, save_personal
from lakehouse_backup.pointers import RawStates, behind, find_pointers, second_names, view_moves
from lakehouse_backup.positions import held_offsets, recovery_reason
from lakehouse_backup.roll_forward import RollForward, forget_builds
from lakehouse_backup.run import make_backup
from lakehouse_cli.lake import backup as backup_command
from maintenance.inventory.outcome import TableName
from maintenance.inventory.outside import is_below

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64())])


def cut(lsn: int, epoch: int = 1, *tables: str) -> Cut:
    return Cut(epoch, lsn, NOW, dict.fromkeys(tables, 1))


@pytest.mark.parametrize(
    ("found", "slots", "place"),
    [
        ([{"a": cut(9)}, {"a": cut(5)}], {"a": 6}, 0),
        ([{"a": cut(9), "b": cut(3)}, {"a": cut(5), "b": cut(4)}], {"a": 6, "b": 5}, 1),
        ([{"a": cut(9), "b": cut(3)}, {"a": cut(5), "b": cut(4)}], {"a": 6, "b": 4}, 0),
        ([{"a": cut(9), "b": cut(3)}, {"a": cut(5), "b": cut(4)}], {"a": 6, "b": None}, 1),
        ([{"a": cut(1, 2)}, {"a": cut(5, 1)}], {"a": 7}, 0),
        ([{}], {"a": None}, 0),
    ],
)
def test_the_newest_cuts_count_unless_a_slot_proves_that_others_were_published(
    found: list[dict[str, Cut]], slots: dict[str, int | None], place: int
) -> None:
    assert choose(found, {source: None if slot is None else Lsn(slot) for source, slot in slots.items()}) == place


def test_a_source_goes_on_only_when_its_tables_are_what_they_were() -> None:
    stream = Stream("shop", 1, Lsn(5), "slot", "1", 1, 1, 4, Lsn(5), NOW, [], NOW, 0)
    sales, stores = (
        TablePosition("sales", 1, Lsn(5), "streaming", Lsn(0)),
        TablePosition("stores", 1, Lsn(5), "streaming", Lsn(0)),
    )
    both = {"sales": sales, "stores": stores}
    assert recovery_reason(stream, both, cut(9, 1, "sales", "stores"), ()) is None
    assert recovery_reason(stream, both, cut(9, 2, "sales", "stores"), ()) == "it was recovered since: epoch 1 is now 2"
    assert "stores joined or left" in (recovery_reason(stream, both, cut(9, 1, "sales"), ()) or "")
    assert "more joined or left" in (recovery_reason(stream, both, cut(9, 1, "more", "sales", "stores"), ()) or "")
    parked = {**both, "stores": TablePosition("stores", 1, Lsn(5), "parked", Lsn(0))}
    assert "stores joined or left" in (recovery_reason(stream, parked, cut(9, 1, "sales"), ()) or "")
    lacking = recovery_reason(stream, both, cut(9, 1, "sales", "stores"), ["sales"])
    assert lacking == "the warehouse lacks files of sales at the newest cut"


def test_a_table_that_is_not_found_at_its_cut_is_told() -> None:
    cuts = {"shop": cut(9, 1, "sales", "stores"), "bank": cut(9, 1, "users")}
    found = {TableName("raw_shop", "sales"), TableName("raw_bank", "users"), TableName("raw_bank", "stores")}
    raw = RawStates(
        found, {TableName("raw_shop", "stores"): frozenset({7, 8}), TableName("raw_shop", "more"): frozenset()}
    )
    assert behind(cuts, raw) == {"shop": {"stores": {7, 8}}}


CLICKS = [
    Cut(1, lsn, NOW, {"clicks": clicks, "visits": visits}, text)
    for lsn, clicks, visits, text in (
        (5099, 53, 63, "clicks/0:5000,visits/0:100"),
        (4099, 52, 63, "clicks/0:4000,visits/0:100"),
        (190, 51, 61, "clicks/0:100,visits/0:91"),
    )
]
TOPICS = {"clicks": "clicks", "visits": "visits"}


@pytest.mark.parametrize(
    ("behind", "topics", "reached"),
    [
        ({"clicks": {50, 51}}, TOPICS, "clicks/0:100,visits/0:100"),
        ({"clicks": {52}, "visits": {61}}, TOPICS, ""),
        ({"clicks": {51, 52}, "visits": {61, 62}}, TOPICS, "clicks/0:100,visits/0:91"),
        ({"clicks": {49}}, TOPICS, "visits/0:100"),
        ({"clicks": {51}}, {"visits": "visits"}, "visits/0:100"),
    ],
)
def test_topics_go_back_to_what_their_tables_have(
    behind: dict[str, set[int]], topics: dict[str, str], reached: str
) -> None:
    assert held_offsets(CLICKS[0], CLICKS, "kafka", topics, behind).text == reached


def test_topics_of_transactions_go_back_together() -> None:
    texts = ("a/0:9,b/0:9,tx/0:30@8:1<9", "a/0:5,b/0:8,tx/0:20@6:1<7")
    newest, former = (
        Cut(1, lsn, NOW, {"a": at, "b": 3}, text) for lsn, at, text in zip((8, 6), (2, 1), texts, strict=True)
    )
    topics = {"a": "a", "b": "b"}
    held = [held_offsets(newest, (newest, former), "debezium", topics, {"a": ids}) for ids in ({1}, {0})]
    assert [position.text for position in held] == [texts[1], ""]
    unknown = held_offsets(newest, (newest, former), "debezium", {"b": "b"}, {"a": {1}})
    assert unknown.text == "", "the backup does not say which topic is that of the table"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    return catalog.create_table("shop.sales", SCHEMA)


def append(table: Table, *numbers: int) -> None:
    for number in numbers:
        table.append(pa.Table.from_pylist([{"id": number}], SCHEMA))


def test_the_newest_whole_state_at_a_snapshot_is_found_from_an_old_metadata_file(table: Table) -> None:
    append(table, 1, 2)
    old = table.catalog.load_table("shop.sales")
    append(table, 3, 4)
    middle, last = table.snapshots()[2], table.snapshots()[3]
    io = cast(Any, table.io)
    newer = metadata_files(io, old)
    assert [len(state.scan().to_arrow()) for state in newer.states()][:3] == [4, 3, 2]
    found = newer.with_rows_of(middle.snapshot_id)
    assert found is not None and len(found.scan().to_arrow()) == 3
    until = newer.until(last.timestamp_ms - 1)
    assert until is not None and until.metadata_location == found.metadata_location
    newest = {task.file.file_path for task in table.scan().plan_files()}
    before = {task.file.file_path for task in found.scan().plan_files()}
    (lost,) = newest - before
    table.io.delete(lost)
    whole = next(state for state in metadata_files(io, old).states() if metadata_files(io, old).is_complete(state))
    assert whole.metadata_location == found.metadata_location, "what lacks a file is passed over"


@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest", "data"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_state_with_a_file_that_was_cut_short_is_passed_over(table: Table, kind: str, keep: float) -> None:
    """A copy that broke off leaves one, and so may a power loss: it counted as complete, and reads failed for good."""
    append(table, 1)
    whole = table.metadata_location
    append(table, 2)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    newest = next(m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id)
    cut_short = {
        "metadata": table.metadata_location,
        "manifest list": snapshot.manifest_list,
        "manifest": newest.manifest_path,
        "data": newest.fetch_manifest_entry(table.io)[0].data_file.file_path,
    }
    file = Path(cut_short[kind].removeprefix("file://"))
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    catalog = cast(SqlCatalog, table.catalog)
    settings = Settings(_env_file=None, warehouse=str(catalog.properties["warehouse"]))
    session = cast(Any, SimpleNamespace(catalog=catalog, io=table.io, settings=settings))
    found = find_pointers(session, {}, None, lambda step: None)
    assert found.moved == {TableName("shop", "sales"): (table.metadata_location, whole)} and not found.gone


def test_a_state_that_the_newest_does_not_come_from_is_its_rival(table: Table) -> None:
    append(table, 1, 2)
    loser = table.catalog.load_table("shop.sales")
    lost: Any = loser.transaction()
    lost.append(pa.Table.from_pylist([{"id": 9}], SCHEMA))
    catalog = cast(Any, table.catalog)
    staged = catalog._update_and_stage_table(loser, loser.name(), (), lost._updates)
    catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
    append(table, 3)
    states = list(metadata_files(cast(Any, table.io), table).states())
    assert len(states) == 5
    newest = next(state for state in states if state.metadata_location == table.metadata_location)
    found = diverging_states([newest, *(state for state in states if state is not newest)])
    assert [state.metadata_location for state in found] == [newest.metadata_location, staged.metadata_location]


def test_versions_of_metadata_files_are_those_of_their_names() -> None:
    assert [version(f"s3://w/t/metadata/{name}") for name in ("00012-ab.metadata.json", "v3.metadata.json")] == [12, -1]


def test_objects_are_copied_once_and_written_back_where_they_lack(table: Table, tmp_path: Path) -> None:
    append(table, 1)
    io, warehouse, folder = cast(Any, table.io), f"file://{tmp_path}/warehouse", tmp_path / "backup"
    saved = save_objects(io, warehouse, folder)
    assert saved.objects > 3 and saved.bytes > 0 and saved.gone == ()
    assert save_objects(io, warehouse, folder) == Saved()
    path = next(task.file.file_path for task in table.scan().plan_files())
    io.delete(path)
    assert load_objects(io, warehouse, folder)[0] == 1
    assert len(table.scan().to_arrow()) == 1


def test_an_object_that_went_before_it_was_copied_is_told_unless_an_earlier_run_has_it(
    table: Table, tmp_path: Path
) -> None:
    append(table, 1)
    io, warehouse, folder = cast(Any, table.io), f"file://{tmp_path}/warehouse", tmp_path / "backup"
    save_objects(io, warehouse, folder)
    append(table, 2)
    known = list_objects(io, warehouse)
    copied = {path.name for path in folder.rglob("*.parquet")}
    paths = [task.file.file_path for task in table.scan().plan_files()]
    for path in paths:
        io.delete(path)
    assert save_objects(io, warehouse, folder, known).gone == tuple(p for p in paths if Path(p).name not in copied)
    assert len(copied) == 1 and len(paths) == 2


@pytest.mark.parametrize("losses", [1, 9])
def test_where_objects_go_meanwhile_the_catalog_is_dumped_again_and_a_former_backup_stays(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """An erasure deletes what the dump's tables name: each of some dumps takes so long that a file comes and goes."""
    append(table, 1)
    io, dumps, fleeting = cast(Any, table.io), [], tmp_path / "warehouse" / "fleeting.parquet"
    session = SimpleNamespace(io=io, catalog=None, check=lambda: None, close=lambda: None)

    def listed(io: Any, warehouse: str) -> list[StoredObject]:
        if len(dumps) < losses:
            fleeting.write_text("rows")
        return list_objects(io, warehouse)

    def dump(settings: Settings, to: Path) -> None:
        dumps.append(to)
        to.write_text(f"dump {len(dumps)}")
        fleeting.unlink(missing_ok=True)

    monkeypatch.setattr(run, "list_objects", listed)
    monkeypatch.setattr(run, "Session", lambda settings: session)
    monkeypatch.setattr(run, "dump_catalog", dump)
    monkeypatch.setattr(run, "refuse_another", lambda former, fresh: None)  # these are no dumps
    monkeypatch.setattr(run, "_record", lambda *about: None)  # the database is not there, as in `dump`
    monkeypatch.setattr(run, "_cluster", lambda settings: None)
    monkeypatch.setattr(run, "list_relations", lambda catalog: ())
    settings, folder = Settings(home=tmp_path / "home", warehouse=f"file://{tmp_path}/warehouse"), tmp_path / "backup"
    folder.mkdir()
    (folder / DUMP).write_text("the former one")
    if losses == 1:
        assert make_backup(settings, folder).objects > 3
        assert (folder / DUMP).read_text() == "dump 2"
        return
    with pytest.raises(
        LakehouseError, match=r"1 objects were deleted before they were copied, first .*fleeting.parquet: an erasure,"
    ):
        make_backup(settings, folder)
    assert len(dumps) == run.TRIES
    assert (folder / DUMP).read_text() == "the former one" and not list(folder.glob("*.new"))


def _without_servers(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of the table's catalog, whose dump is a text."""
    session = SimpleNamespace(io=table.io, catalog=table.catalog, check=lambda: None, close=lambda: None)
    monkeypatch.setattr(run, "Session", lambda settings: session)
    monkeypatch.setattr(run, "dump_catalog", lambda settings, to: to.write_text("dump"))
    monkeypatch.setattr(run, "refuse_another", lambda former, fresh: None)
    monkeypatch.setattr(run, "_record", lambda *about: None)
    monkeypatch.setattr(run, "_cluster", lambda settings: None)


@pytest.mark.parametrize("how", ["another warehouse", "write.data.path", "write.metadata.path", "a view"])
def test_a_table_with_files_outside_of_the_warehouse_is_not_left_out_of_a_backup_in_silence(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The warehouse was set to another folder, and the backup said that it had all tables: their rows were in none."""
    append(table, 1)
    root, place = f"file://{tmp_path}/warehouse", f"file://{tmp_path}/elsewhere"
    if how == "another warehouse":
        root, place = f"{root}/new", f"{root}/shop/sales/metadata"
    elif how == "a view":
        row = "INSERT INTO iceberg_tables VALUES ('lake', 'shop', 'sales_now', :location, NULL, 'VIEW')"
        with cast(SqlCatalog, table.catalog).engine.begin() as connection:
            connection.execute(text(row), {"location": f"{place}/metadata/v1.metadata.json"})
    else:
        table.transaction().set_properties({how: place}).commit_transaction()
    _without_servers(table, monkeypatch)
    settings, folder = Settings(home=tmp_path / "home", warehouse=root), tmp_path / "backup"
    with pytest.raises(
        LakehouseError, match=rf"^shop.sales\w* has files in {place}.*, outside of the warehouse {root},"
    ):
        make_backup(settings, folder)
    assert not (folder / DUMP).exists() and not (folder / OBJECTS).exists()
    assert make_backup(settings, folder, catalog_only=True).tables == (2 if how == "a view" else 1)
    if how != "a view":
        assert (
            make_backup(settings.model_copy(update={"warehouse": f"file://{tmp_path}"}), tmp_path / "all").tables == 1
        )


def test_a_broken_table_in_the_warehouse_does_not_keep_the_others_from_being_backed_up(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 1)
    Path(table.metadata_location.removeprefix("file://")).write_text("")
    _without_servers(table, monkeypatch)
    settings = Settings(home=tmp_path / "home", warehouse=f"file://{tmp_path}/warehouse")
    assert make_backup(settings, tmp_path / "backup").objects > 3


@pytest.mark.parametrize(
    ("place", "warehouse", "below"),
    [
        ("s3://lake/w/shop/sales", "s3://lake/w/", True),
        ("s3a://lake/w/shop/sales/", "s3://lake/w", True),
        ("s3://lake/w", "s3://lake/w/", True),
        ("s3://lake/w2/shop", "s3://lake/w", False),
        ("s3://lake2/shop", "s3://lake", False),
        ("file:/lake/w/shop", "file:///lake/w", True),
        ("/lake/w/shop", "file:///lake/w", True),
        ("file:///lake/w", "s3://lake/w", False),
    ],
)
def test_a_place_is_below_the_warehouse_by_whole_folders(place: str, warehouse: str, below: bool) -> None:
    assert is_below(PyArrowFileIO({}), place, warehouse) == below


def test_an_object_that_was_cut_short_by_a_restore_is_written_again(table: Table, tmp_path: Path) -> None:
    append(table, 1)
    io, warehouse, folder = cast(Any, table.io), f"file://{tmp_path}/warehouse", tmp_path / "backup"
    save_objects(io, warehouse, folder)
    file = Path(next(task.file.file_path for task in table.scan().plan_files()).removeprefix("file://"))
    file.write_bytes(file.read_bytes()[:10])
    assert load_objects(io, warehouse, folder)[0] == 1
    assert len(table.scan().to_arrow()) == 1


@pytest.mark.parametrize("name", ["../out", "t/../../out", "/out", "t//data", "t/./data", "t/data.part"])
def test_an_object_whose_name_leads_elsewhere_is_refused_before_anything_is_copied(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    append(table, 1)
    io, warehouse, folder = cast(Any, table.io), f"file://{tmp_path}/warehouse", tmp_path / "backup"
    there = [*list_objects(io, warehouse), StoredObject(f"{warehouse}/{name}", 1, datetime.now(UTC))]
    monkeypatch.setattr("lakehouse_backup.objects.list_objects", lambda *given: there)
    with pytest.raises(LakehouseError, match="rename or delete it; nothing was copied"):
        save_objects(io, warehouse, folder)
    assert not list(folder.iterdir()) and not (tmp_path / "out").exists()


def test_only_the_owner_may_read_a_backup(table: Table, tmp_path: Path) -> None:
    """This includes a folder that an earlier version left readable by all."""
    append(table, 1)
    io, warehouse, folder = cast(Any, table.io), f"file://{tmp_path}/warehouse", tmp_path / "backup"
    (folder / "warehouse").mkdir(parents=True, mode=0o755)
    before = os.umask(0o022)
    try:
        with locked_folder(folder):
            save_objects(io, warehouse, folder / "warehouse")
            (folder / "catalog.dump").write_text("rows")
    finally:
        os.umask(before)
    assert (folder / "warehouse").stat().st_mode & 0o777 == 0o700
    made = [path for path in folder.rglob("*") if path.is_file()]
    assert len(made) > 4 and {path.stat().st_mode & 0o777 for path in made} == {0o600}


def test_two_backups_do_not_write_to_one_folder_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "backup"
    busy = pytest.raises(LakehouseError, match="a backup or a restore is at work in")
    with locked_folder(folder), busy, locked_folder(folder):
        raise AssertionError
    with locked_folder(folder):
        pass


def test_a_folder_that_cannot_be_one_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakehouseError, match="name a folder that can be written"), locked_folder(tmp_path / "file"):
        raise AssertionError


def test_a_backup_is_not_put_among_the_lakes_own_data(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(LakehouseError, match="would be lost with it"):
        make_backup(settings, tmp_path / "data" / "s3" / "backup")


def test_a_home_that_is_set_up_anew_hides_what_was_personal_when_the_backup_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of personal columns that are declared no more were in the lost home alone: parsed still has them."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))  # not that of a demo that was run here
    read: list[Settings] = []
    monkeypatch.setattr("lakehouse_backup.personal.load_declarations", read.append)
    lost, anew = (Settings(_env_file=None, trino=TrinoSettings(access=tmp_path / name)) for name in ("lost", "anew"))
    backup = tmp_path / "backup"
    for folder in (tmp_path / "lost", tmp_path / "anew", backup):
        folder.mkdir()
    write_remembered(tmp_path / "lost" / REMEMBERED, {"raw_shop.people": frozenset({"email"})})
    write_remembered(tmp_path / "anew" / REMEMBERED, {"raw_shop.people": frozenset({"name"})})
    write_remembered(tmp_path / "lost" / ABOVE, {"marts.report": frozenset({"raw_shop.people"})})
    save_personal(lost, backup)
    load_personal(anew, backup)
    hidden = {"raw_shop.people": frozenset({"name", "email"})}
    assert read_remembered(tmp_path / "anew" / REMEMBERED) == hidden and read == [anew], "and rules are made of it"
    assert read_remembered(tmp_path / "anew" / ABOVE) == {"marts.report": {"raw_shop.people"}}
    load_personal(anew, backup)
    assert read == [anew], "nothing is new"
    load_personal(anew, tmp_path)  # a backup of an earlier release
    assert read_remembered(tmp_path / "anew" / REMEMBERED) == hidden
    save_personal(Settings(_env_file=None), backup)
    assert "email" in read_remembered(backup / REMEMBERED)["raw_shop.people"], "rules of another home are not ours"


def test_a_view_whose_metadata_went_since_the_backup_has_its_newest_one(tmp_path: Path) -> None:
    """Its row named a missing file for good: no refresh replaced it, and nobody was told."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("parsed")
    row = "INSERT INTO iceberg_tables VALUES ('lake', 'parsed', :name, :location, NULL, 'VIEW')"
    for name, files in (("moved", (2, 10, 11)), ("lost", ()), ("there", (1,)), ("short", (1, 3))):
        folder = tmp_path / "warehouse" / "parsed" / name / "metadata"
        folder.mkdir(parents=True)
        for number in files:
            version = {"version-id": 1, "representations": [{"type": "sql", "dialect": "trino", "sql": "SELECT 1"}]}
            file = folder / f"{number:05d}-x.metadata.json"
            file.write_text(json.dumps({"current-version-id": 1, "versions": [version]}))
            if (name, number) in (("moved", 11), ("short", 1)):  # cut short by a power loss
                file.write_text(file.read_text()[: 9 if name == "moved" else 0])
            os.utime(file, (number, number))
        with catalog.engine.begin() as connection:
            connection.execute(text(row), {"name": name, "location": f"file://{folder}/00001-x.metadata.json"})
    session = cast(Any, SimpleNamespace(catalog=catalog, io=catalog._load_file_io()))
    moved, gone = view_moves(session)
    files = {
        name: tuple(f"file://{tmp_path}/warehouse/parsed/{name}/metadata/{n:05d}-x.metadata.json" for n in (1, newest))
        for name, newest in (("moved", 10), ("short", 3))
    }
    assert moved == {("parsed", name): pair for name, pair in files.items()}
    assert gone == [TableName("parsed", "lost")]


def test_a_mirror_is_not_rolled_forward_to_a_copy_that_a_refresh_was_writing(table: Table) -> None:
    """The copy is in the mirror's own location, and its main branch lacks no file."""
    append(table, 1)
    behind = table.metadata_location
    append(table, 2)
    whole = table.metadata_location
    table.manage_snapshots().create_branch(table.snapshots()[-1].snapshot_id, BRANCH).commit()
    append(table, 3)
    catalog = cast(SqlCatalog, table.catalog)
    with catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = :behind"), {"behind": behind})
    settings = Settings(_env_file=None, warehouse=str(catalog.properties["warehouse"]))
    session = cast(Any, SimpleNamespace(catalog=catalog, io=table.io, settings=settings))
    found = find_pointers(session, {}, None, lambda step: None)
    assert found.moved == {TableName("shop", "sales"): (behind, whole)} and not found.gone


def test_a_second_name_of_a_table_stays_at_its_own_state(table: Table) -> None:
    """A report that somebody had frozen by `register_table` showed the newest rows after a restore."""
    catalog, sales = cast(SqlCatalog, table.catalog), TableName("shop", "sales")
    append(table, 1)
    frozen, elder = TableName("shop", "frozen"), TableName("shop", "audit")
    catalog.register_table(elder, table.metadata_location)
    append(table, 2)
    former = table.metadata_location
    catalog.register_table(frozen, former)  # of the same state as the table in the backup
    catalog.create_namespace("shop_next")
    catalog.register_table(("shop_next", "sales"), former)
    append(table, 3)
    newest = table.metadata_location
    with catalog.engine.begin() as connection:
        behind = "UPDATE iceberg_tables SET metadata_location = :former WHERE table_name = 'sales'"
        connection.execute(text(behind), {"former": former})
    settings = Settings(_env_file=None, warehouse=str(catalog.properties["warehouse"]))
    session = cast(Any, SimpleNamespace(catalog=catalog, io=table.io, settings=settings))
    found = find_pointers(session, {}, None, lambda step: None)
    assert found.moved == dict.fromkeys((sales, TableName("shop_next", "sales")), (former, newest))
    assert sorted(found.stayed) == [elder, frozen] and not found.gone
    (lost,) = (task.file.file_path for task in catalog.load_table(elder).scan().plan_files())
    table.io.delete(lost)
    assert find_pointers(session, {}, None, lambda step: None).stayed == [], "one that lacks files is no state"


@pytest.mark.parametrize(
    ("places", "second"),
    [
        ({"marts.fct": "marts/fct-{}/metadata/00007-a", "marts.frozen": "marts/fct-{}/metadata/00007-a"}, {"frozen"}),
        ({"marts.fct": "marts/fct/metadata/00002-a", "marts.fct_2": "marts/fct/metadata/00003-b"}, {"fct"}),
        ({"raw_shop.sales": "raw_shop/sales/metadata/00002-a", "x.y": "raw_shop/sales/metadata/00009-b"}, {"y"}),
        ({"raw_shop.o": "raw_shop/sales/metadata/00002-a", "raw_shop.sales": "raw_shop/sales/metadata/00001-b"}, {"o"}),
        ({"marts.a": "marts/moved/metadata/00001-a", "marts.b": "marts/moved/metadata/00001-a"}, set()),
        ({"marts.a": "marts/a/metadata/00001-a", "marts.b": "marts/b/metadata/00002-a"}, set()),
        ({"mirror_shop.a": "mirror_shop/a/metadata/1-a", "next_mirror_shop.a": "mirror_shop/a/metadata/2-a"}, set()),
    ],
)  # fmt: skip
def test_a_location_belongs_to_one_table(places: dict[str, str], second: set[str]) -> None:
    relations = [
        Relation(TableName(*name.split(".")), "table", f"s3://w/{place.format('0a' * 16)}.metadata.json")
        for name, place in places.items()
    ]
    assert {name.name for name in second_names(relations, {"shop": cut(9, 1, "sales")})} == second


def test_a_mart_that_is_rolled_forward_is_built_anew(tmp_path: Path) -> None:
    """Its newest state may be one whose tests had failed, which was shown from then on, and counted as built."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("marts")
    names = [TableName("marts", "built"), TableName("marts", "other")]
    for name, made_of in zip(names, ({BUILT_FROM: "abc"}, {}), strict=True):
        catalog.create_table(name, SCHEMA, properties={**made_of, "comment": "mine"})
    before = catalog.load_table(names[1]).metadata_location
    forget_builds(catalog, names)
    assert [catalog.load_table(name).properties for name in names] == [{"comment": "mine"}] * 2
    assert catalog.load_table(names[1]).metadata_location == before


@pytest.mark.parametrize("erasures", [0, 2])
def test_a_restore_tells_of_erasures_to_repeat_and_of_sources_that_are_not_declared(
    erasures: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its JSON told nothing of them, and a source that was removed was to be recovered, which it cannot be."""
    forward = RollForward(to_recover={"shop": "it was altered", "gone": "it was altered"})
    declared = SimpleNamespace(sources=(SimpleNamespace(name="shop"),))
    monkeypatch.setattr(run, "restore_backup", lambda *_: run.Restored(datetime(2026, 5, 4, tzinfo=UTC), 0, forward))
    monkeypatch.setattr("erasure.run.remembered", lambda _: ("someone",) * erasures)
    monkeypatch.setattr("lakehouse_cli.lake.backup.load_declarations", lambda _: declared)
    for as_json in (True, False):
        with pytest.raises(LakehouseError, match=r"shop \(it was altered\): lakehouse ingest --recover shop; ") as told:
            backup_command.restore_backup(Path("folder"), yes=True, as_json=as_json)
        assert "gone (it was altered), which is not declared: lakehouse remove gone --drop-tables" in str(told.value)
        said = capsys.readouterr().out
        if as_json:
            assert json.loads(said)["erasures_to_repeat"] == erasures
        else:
            assert ("lakehouse erase --repeat, for 2 erasures" in said) == bool(erasures)


def test_without_embedded_servers_the_systems_programs_dump_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lakehouse backup` asked for the extra that brings servers, though the catalog was somebody's own."""
    monkeypatch.setitem(extras.PACKAGES, "embedded", ("not_installed",))
    monkeypatch.setattr(dump.shutil, "which", {"pg_dump": "/usr/bin/pg_dump"}.get)
    assert dump._program("pg_dump") == "/usr/bin/pg_dump"
    with pytest.raises(LakehouseError, match="psql was not found: install Postgres's client programs"):
        dump._program("psql")


def test_a_table_of_a_format_that_is_not_known_here_stays_at_its_newest_whole_metadata_file(
    table: Table, tmp_path: Path
) -> None:
    """It was taken for one that was cut short, and went back to the newest state that PyIceberg could read."""
    append(table, 1)
    catalog, read = cast(SqlCatalog, table.catalog), Path(table.metadata_location.removeprefix("file://"))
    later = {**json.loads(read.read_text()), "format-version": 9}
    files = [read.with_name(f"{90 + number}-x.metadata.json") for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(json.dumps(later)[: 50 if number == 2 else None])  # the last one was cut short
        os.utime(file, (2_000_000_000 + number,) * 2)
    settings = Settings(_env_file=None, warehouse=str(catalog.properties["warehouse"]))
    session = cast(Any, SimpleNamespace(catalog=catalog, io=table.io, settings=settings))
    name, (former, newest, short) = TableName("shop", "sales"), [f"file://{file}" for file in files]
    for pointer, moved in ((former, {}), (short, {name: (short, newest)})):
        with catalog.engine.begin() as connection:
            connection.execute(text("UPDATE iceberg_tables SET metadata_location = :pointer"), {"pointer": pointer})
        found = find_pointers(session, {}, None, lambda step: None)
        assert found.moved == moved and found.unread == [name] and not found.gone
