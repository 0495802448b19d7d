"""What the clean-up of dbt's temporary objects deletes, in a folder: no server."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import Settings
from maintenance.actions.clean_dbt_temporary import clean_dbt_temporary, inspect
from maintenance.inventory import session as sessions
from maintenance.inventory.lake import Lake, _group, read_lake
from maintenance.inventory.outcome import Outcome
from maintenance.runner.run import hindrances_for

FCT = TableName("marts", "fct")
POLICY = MaintenancePolicy.model_validate(
    {"schedule_group": "nightly", "clean_dbt_temporary": {"older_than_hours": 24}}
)
TEMPORARY = f"__dbt_tmp-{'0' * 32}"


def session_of(folder: Path) -> Any:
    """A session that has listed the folder, in which `marts/fct` alone is a table."""
    io, shared = LakeFileIO({}), {"lake.files": set[str]()}
    objects = list_objects(io, f"file://{folder}")
    fct = Relation(FCT, "table", f"file://{folder}/marts/fct/metadata/1.metadata.json")
    table: Any = SimpleNamespace(location=lambda: f"file://{folder}/marts/fct")
    lake = Lake(tuple(objects), (), (fct,), {FCT: table}, _group(objects, {fct.location}))

    def once(name: str, make: Callable[[], Any]) -> Any:
        if name not in shared:
            shared[name] = make()
        return shared[name]

    return SimpleNamespace(
        io=io, dry_run=False, settings=Settings(warehouse=f"file://{folder}"), once=once, lake=lambda: lake,
        ago=lambda hours: datetime.now(UTC) - timedelta(hours=hours),
    )  # fmt: skip


def clean(session: Any, model: TableName) -> Outcome:
    return cast(Any, clean_dbt_temporary).__wrapped__(session, model, POLICY)


def put(folder: Path, name: str) -> Path:
    """An object that was written a week ago."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)
    week = datetime.now(UTC).timestamp() - 7 * 86_400
    os.utime(file, (week, week))
    return file


def test_nothing_goes_but_the_objects_below_the_name_as_it_is(tmp_path: Path) -> None:
    """`#` in a folder's name cut it off: the whole warehouse went, or another table."""
    living = [put(tmp_path, "marts/fct/data/live.parquet"), put(tmp_path, "raw_shop/orders/data/live.parquet")]
    models = {"#recycle/marts/x": "x", "archive?/marts/y": "y", "marts/fct#2024": "fct#2024"}
    gone = [put(tmp_path, f"{path}{TEMPORARY}/data/f.parquet") for path in models]
    session = session_of(tmp_path)
    for model in models.values():
        assert clean(session, TableName("marts", model)).reason == "removed 0 relations, 1 objects"
    assert all(file.exists() for file in living) and not any(file.exists() for file in gone)


def test_a_folder_into_which_something_came_since_it_was_listed_stays(tmp_path: Path) -> None:
    """Also what is as old by its time: nobody has asked whether a table refers to it."""
    old = put(tmp_path, f"marts/x{TEMPORARY}/data/f.parquet")
    session = session_of(tmp_path)
    moved = put(tmp_path, f"marts/x{TEMPORARY}/data/moved.parquet")
    assert clean(session, TableName("marts", "x")).reason == "removed 0 relations, 0 objects"
    assert old.exists() and moved.exists()


def test_a_build_that_was_not_published_goes_and_counts_until_then(tmp_path: Path) -> None:
    file = put(tmp_path, f"marts_next/new-{'0' * 32}/data/f.parquet")
    session, new = session_of(tmp_path), TableName("marts", "new")
    assert inspect(session, new, None, POLICY) == {"temporary": 1, "temporary_bytes": file.stat().st_size}
    assert clean(session, new).reason == "removed 0 relations, 1 objects"
    assert not file.exists()


def test_a_table_that_keeps_the_objects_of_all_models_is_a_failure_and_told_once(tmp_path: Path) -> None:
    """Each model was skipped, which nothing records, and no clean-up was made any more."""
    file = put(tmp_path, f"marts/x{TEMPORARY}/data/f.parquet")
    session = session_of(tmp_path)
    session.lake().tables.clear()
    assert clean(session, TableName("marts", "x")).status == "skipped"
    (told,) = hindrances_for(session, "clean_dbt_temporary", ())
    assert (told.table, told.status) == (FCT, "failed") and "its metadata cannot be read" in str(told.error)
    assert hindrances_for(session, "compact", ()) == hindrances_for(session, "clean_dbt_temporary", ("marts.x",)) == []
    file.unlink()
    session = session_of(tmp_path)
    session.lake().tables.clear()
    assert hindrances_for(session, "clean_dbt_temporary", ()) == [], "it keeps nothing"


@pytest.mark.parametrize("namespace", ["next_mirror_shop", "marts_next", "marts"])
def test_a_copy_whose_metadata_file_is_gone_keeps_nothing(
    namespace: str, postgres_catalog: LakeCatalog, tmp_path: Path
) -> None:
    """A killed refresh left it; `remove` dropped the mirror whose file it named."""
    postgres_catalog.create_namespace_if_not_exists(namespace)
    made = postgres_catalog.create_table((namespace, "orders"), pa.schema([("id", pa.int64())]))
    file, name = Path(made.metadata_location.removeprefix("file://")), TableName(namespace, "orders")

    def lake() -> Lake:
        fresh = LakeCatalog(postgres_catalog.name, **postgres_catalog.properties)
        return read_lake(fresh, LakeFileIO({}), f"file://{tmp_path}")

    assert [relation.name for relation in lake().relations] == [name]
    content = file.read_bytes()
    file.write_bytes(b"")
    assert lake().unreadable == [name], "it is there, and may name files"
    file.unlink()
    assert lake().unreadable == ([name] if namespace == "marts" else [])
    file.write_bytes(content)


def test_the_clock_of_the_machine_decides_nothing_that_is_for_good(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was days ahead, what a run of dbt was writing went at once, and so did pins."""
    ahead = datetime.now(UTC) + timedelta(days=9)
    monkeypatch.setattr(sessions, "datetime", SimpleNamespace(now=lambda _: ahead))
    monkeypatch.setattr(sessions, "_open_catalog", lambda _: postgres_catalog)
    session = sessions.Session(catalog_settings)
    assert abs(session.now - datetime.now(UTC)) < timedelta(minutes=1) and session.now.tzinfo == UTC
    assert session.ago(24) == session.now - timedelta(hours=24), "one time for the whole run"
