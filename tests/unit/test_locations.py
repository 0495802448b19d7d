"""A location means the object of exactly this name, and the same one however its scheme is spelled."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import proof, steps, tombstones
from erasure.strays import _folders
from lakehouse.catalog.locations import parse_location
from lakehouse.catalog.objects import StoredObject, list_objects
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_backup.metadata_files import metadata_files
from lakehouse_backup.objects import save_objects
from lakehouse_serve.export import plan
from lakehouse_serve.exported import Owner
from maintenance.inventory import lake as lakes
from maintenance.inventory import manifest_files, reachable, removed
from maintenance.inventory.lake import Lake, read_lake
from maintenance.inventory.temporary import leftovers
from maintenance.restore import table as restored

OLD = datetime(2026, 1, 1, tzinfo=UTC)
FCT = TableName("marts", "fct")
HOME = f"wh/marts/fct__dbt_tmp-{'0' * 32}"


@pytest.mark.parametrize("name", ["a#b", "a?b", "#a", "a\tb", "a\nb", "a;b", "a%23b", "a b", " a", "~a*b|c", "a://b"])
def test_every_character_of_a_name_is_of_the_name(name: str) -> None:
    assert parse_location(f"s3://wh/m/{name}/x", {}) == ("s3", "wh", f"wh/m/{name}/x")
    assert LakeFileIO.parse_location(f"file:///m/{name}") == ("file", "", f"/m/{name}")


@pytest.mark.parametrize(
    "location",
    [
        "s3://wh",
        "s3://wh/",
        "s3a://wh/m/a/",
        "S3://wh/A",
        "file:///m/a",
        "file:/m/a",
        "/m/a/",
        "hdfs://host:1/m",
        "m/a",
    ],
)
def test_a_location_without_such_characters_is_read_as_pyiceberg_does(location: str) -> None:
    assert parse_location(location, {}) == PyArrowFileIO.parse_location(location)


def test_a_neighbour_is_neither_listed_nor_read_in_the_place_of_what_is_named(tmp_path: Path) -> None:
    """An erasure proved by another table's listing, and a backup kept `f` under the name of `f#1`."""
    warehouse, io = tmp_path / "warehouse", LakeFileIO({})
    for name in ("fct/f", "fct#2024/f", "fct/f#1"):
        (warehouse / name).parent.mkdir(parents=True, exist_ok=True)
        (warehouse / name).write_text(name)
    assert [stored.path for stored in list_objects(io, f"file://{warehouse}/fct#2024")] == [
        f"file://{warehouse}/fct#2024/f"
    ]
    save_objects(io, f"file://{warehouse}", tmp_path / "backup")
    assert (tmp_path / "backup" / "fct" / "f#1").read_text() == "fct/f#1"


def stored(path: str) -> StoredObject:
    return StoredObject(path, 1, OLD)


@pytest.fixture(params=[("s3", "s3a"), ("s3a", "s3"), ("s3n", "s3")], ids="-".join)
def lake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table whose writer spells the scheme of the warehouse otherwise."""
    ours, theirs = request.param
    files = [f"{ours}://{HOME}/data/live.parquet", f"{ours}://wh/marts/gone-1/data/a.parquet"]
    relation = Relation(FCT, "table", f"{theirs}://{HOME}/metadata/1.metadata.json")
    table: Any = SimpleNamespace(location=lambda: f"{theirs}://{HOME}")
    monkeypatch.setattr(lakes, "list_objects", lambda io, place: list(map(stored, files)))
    monkeypatch.setattr(lakes, "list_relations", lambda catalog: (relation,))
    monkeypatch.setattr(lakes, "load_table", lambda catalog, *name: table)
    engine = SimpleNamespace(connect=lambda: Connection([f"{theirs}://{HOME}/data/live"]))
    return read_lake(SimpleNamespace(engine=engine), None, f"{ours}://wh")  # type: ignore[arg-type]


class Connection:
    """Answers with these prefixes."""

    def __init__(self, prefixes: list[str]) -> None:
        self._prefixes = prefixes

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: object) -> Any:
        return SimpleNamespace(scalar=lambda: "there", scalars=lambda: iter(self._prefixes))


def test_the_files_of_a_table_are_its_own_in_each_spelling(lake: Lake) -> None:
    """A live table counted as a leftover of dbt, and an erasure told people to delete its folder."""
    (live,) = lake.objects_of(FCT)
    assert live.path == f"s3://{HOME}/data/live.parquet" and lake.is_staged(live.path)
    assert leftovers(lake, "s3://wh") == {}
    for warehouse in ("s3://wh", "s3a://wh/"):
        assert [trace.table for trace in _folders(lake, warehouse, {"marts"})] == ["marts/gone-1"]


def test_what_metadata_refers_to_is_told_in_one_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "manifest_path": "s3a://wh/m", "manifest_length": 1, "status": 1,
        "data_file": {"file_path": "s3a://wh/f", "file_size_in_bytes": 2},
    }  # fmt: skip
    monkeypatch.setattr(manifest_files, "_records", lambda io, path: iter([record]))
    snapshot = SimpleNamespace(manifest_list="s3a://wh/l", timestamp_ms=0)
    metadata = SimpleNamespace(
        metadata_log=[SimpleNamespace(metadata_file="s3n://wh/0")], snapshots=[snapshot],
        statistics=[SimpleNamespace(statistics_path="s3a://wh/s")], partition_statistics=[],
    )  # fmt: skip
    table: Any = SimpleNamespace(io=None, metadata_location="s3a://wh/1", metadata=metadata)
    assert reachable.reachable_files(table) == {f"s3://wh/{name}" for name in "01lsmf"}
    assert set(reachable.only_of(table, metadata.snapshots, [])) == {f"s3://wh/{name}" for name in "lmf"}
    assert reachable.without_reference(table, {"s3://wh/f": 0, "s3://wh/x": 0}) == {"s3://wh/x"}


def test_a_state_is_complete_in_each_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore took a state for complete without looking at its files."""
    table: Any = SimpleNamespace(location=lambda: "s3a://wh/t", current_snapshot=lambda: "one")
    monkeypatch.setattr("lakehouse_backup.metadata_files.files_of", lambda *_: {"s3://wh/t/f": 1})
    for there, is_complete in (([], False), ([stored("s3a://wh/t/f")], True)):
        monkeypatch.setattr("lakehouse_backup.metadata_files.list_objects", lambda *_, there=there: there)
        assert metadata_files(None, table).is_complete(table) == is_complete  # type: ignore[arg-type]


def test_what_an_earlier_release_recorded_in_another_spelling_is_known_and_forgotten(
    catalog_settings: Settings,
) -> None:
    with removed.catalog_database(catalog_settings) as connection:
        connection.execute(
            'INSERT INTO lakehouse.removed_files (path, namespace, "table", action, metadata_location)'
            " VALUES ('s3a://wh/f', 'marts', 'fct', 'expire_snapshots', 's3a://wh/m')"
        )
        removed.record(connection, FCT, [("s3n://wh/g", 1)], "expire_snapshots", "s3a://wh/m")
        both = {"s3://wh/f", "s3://wh/g"}
        assert set(removed.recorded(connection, FCT)) == set(removed.recorded_by_table(connection)[FCT]) == both
        assert {file.path for file in removed.due(connection, FCT, 0)} == both
        removed.forget(connection, both)
        assert removed.recorded(connection, FCT) == {}


def test_a_manifest_that_spells_a_file_otherwise_names_it(tmp_path: Path) -> None:
    manifest = tmp_path / "m.avro"
    manifest.write_bytes(b"Obj\x01 s3a://wh/f")
    found = StoredObject(f"file://{manifest}", 1, OLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "decoded", lambda content: content)
        assert proof._says(LakeFileIO({}), found, [], {"s3://wh/f"}) == "names a file of the subject's"


def test_a_table_of_the_lake_is_the_exports_own_in_each_spelling() -> None:
    assert plan({}, {FCT: "s3a://wh/marts/fct/metadata/1.json"}, Owner("s3://wh")).drop == (FCT,)


def test_files_to_delete_that_an_earlier_release_recorded_are_told_in_one_spelling(catalog_settings: Settings) -> None:
    """What the table refers to was not taken out of them, and went."""
    with removed.catalog_database(catalog_settings) as connection:
        tombstones.record_files_to_delete(connection, FCT, ["s3a://wh/f"])
        assert tombstones.files_to_delete(connection, FCT) == {"s3://wh/f"}
        tombstones.forget_files_to_delete(connection, FCT)


def test_an_orphan_of_which_metadata_spells_the_scheme_otherwise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of an erasure deletes orphans with rows of the subject: it took live files for some."""
    path, deleted = "s3a://wh/t/f", list[set[str]]()
    found = SimpleNamespace(
        traces=[proof.Trace("marts.fct", path, 1, "")], values=set(), objects=1, bytes=1, values_searched=0, in_common=0
    )
    monkeypatch.setattr(steps, "search", lambda *_: found)
    monkeypatch.setattr(steps, "parts_of", lambda *_: [])
    monkeypatch.setattr(steps, "strays_of", lambda *_: [])
    monkeypatch.setattr(steps, "reachable_files", lambda _: {"s3://wh/t/f"})
    monkeypatch.setattr(steps, "delete_objects", lambda _, paths: deleted.append(paths))
    erasing: Any = SimpleNamespace(
        say=lambda _: None, catalog=None, settings=None, plan=None, _load=lambda _: SimpleNamespace(io=None)
    )
    steps.Erasing._prove(erasing, None, [], set(), steps.Erasure([]))  # type: ignore[arg-type]
    assert deleted == [set()]


def test_a_restored_state_whose_files_are_spelled_otherwise_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    live: Any = SimpleNamespace(location=lambda: "s3a://wh/t", name=lambda: FCT)
    moment: Any = SimpleNamespace(table=None, snapshot=None)
    session: Any = SimpleNamespace(io=None)
    monkeypatch.setattr(restored, "files_of", lambda *_: {"s3://wh/t/f": 1})
    monkeypatch.setattr(restored, "list_objects", lambda *_: [stored("s3a://wh/t/f")])
    restored._check_whole(session, live, moment)
    monkeypatch.setattr(restored, "list_objects", lambda *_: [])
    with pytest.raises(LakehouseError, match=r"^marts\.fct: 1 of 1 files of that state are already deleted"):
        restored._check_whole(session, live, moment)
