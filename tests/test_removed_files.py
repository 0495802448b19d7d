"""What maintenance removes stays restorable for a while, and nothing goes for good that anybody uses."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.writing.next_tables import building_next
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from maintenance.actions.compact import compact
from maintenance.actions.expire_snapshots import expire_snapshots
from maintenance.actions.purge import purge
from maintenance.actions.remove_orphan_files import remove_orphan_files
from maintenance.inventory import removed
from maintenance.inventory.outcome import TableName
from maintenance.inventory.pins import pin_table, unpin
from maintenance.inventory.session import Session
from maintenance.restore.table import restore
from tests.maintained import COMPACT, SCHEMA, append, look_again, make_table, paths, plant, policy, rows

pytestmark = pytest.mark.stack

EXPIRY = {"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 20}
KEEP = policy(expire_snapshots=EXPIRY, remove_orphan_files={"older_than_hours": 0}, keep_removed_hours=1)


@pytest.fixture(scope="module")
def namespace(settings: Settings) -> Iterator[str]:
    name = f"rem{uuid.uuid4().hex[:8]}"
    with closing(Session(settings)) as session:
        session.catalog.create_namespace(name)
        yield name
        for table in session.catalog.list_tables(name):
            session.catalog.drop_table(table)
        session.catalog.drop_namespace(name)


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    with closing(Session(settings)) as session:
        yield session


@pytest.fixture
def table(session: Session, namespace: str) -> TableName:
    """Six small appends."""
    return make_table(session, namespace, appends=6)


def recorded(session: Session, table: TableName) -> dict[str, removed.RemovedFile]:
    with removed.catalog_database(session.settings) as connection:
        return removed.recorded(connection, table)


def test_what_expiry_removes_stays_and_is_deleted_when_its_time_is_over(session: Session, table: TableName) -> None:
    done = compact(session, table, COMPACT)
    assert done.status == "done" and done.read_bytes > done.written_bytes > 0, done
    append(session, table)
    before, there = rows(session, table), paths(session, table)
    outcome = expire_snapshots(look_again(session), table, KEEP)
    gone = recorded(session, table)
    assert outcome.status == "done" and outcome.removed_files == len(gone) - 1, "and the metadata file of before"
    assert sum(path.endswith(".parquet") for path in gone) == 6
    assert outcome.removed_bytes > 0 and paths(session, table) >= there | gone.keys()
    assert purge(look_again(session), table, 0).files == len(gone) - 1, "that file is in the table's log yet"
    assert recorded(session, table) == {}
    assert rows(session, table) == before


def test_a_file_that_is_in_use_again_is_not_deleted(session: Session, table: TableName) -> None:
    """An expiry that was killed before its commit leaves such rows; a restore makes them too."""
    files = [task.file.file_path for task in session.catalog.load_table(table).scan().plan_files()]
    staged = plant(session, session.catalog.load_table(table).location() + "/data/orphan")
    with removed.catalog_database(session.settings) as connection:
        removed.record(connection, table, [(path, 1) for path in [*files, staged]], "expire_snapshots", "")
    assert purge(session, table, 0).files == 1
    assert len(rows(session, table)) == 12 and recorded(session, table) == {}


def test_objects_with_odd_names_are_deleted_and_their_neighbours_stay(session: Session, table: TableName) -> None:
    """A path is a key as it stands: nothing of it is decoded, and no prefix is taken for a folder."""
    location = session.catalog.load_table(table).location() + "/data"
    odd = [f"{location}/{name}" for name in ("a b", "ü", "<x>&'y", "50%25", "1+1=2", "day=2024-01-01/x", "a")]
    stays = plant(session, f"{location}/a b c")
    for path in odd:
        plant(session, path)
    delete_objects(session.io, [*odd, f"{location}/never there"])
    left = {stored.path for stored in list_objects(session.io, location)}
    assert stays in left and not left & set(odd)
    assert len(rows(session, table)) == 12


@pytest.mark.slow
def test_thousands_of_old_orphans_go_in_batches_and_a_fresh_one_stays(session: Session, table: TableName) -> None:
    location, before = session.catalog.load_table(table).location(), rows(session, table)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: plant(session, f"{location}/data/lost/{number}"), range(2100)))
    then = look_again(session)
    then.lake()
    fresh = plant(session, f"{location}/data/lost/fresh")
    outcome = remove_orphan_files(then, table, KEEP)
    assert outcome.removed_files == 2100 and len(list_objects(session.io, f"{location}/data/lost")) == 2101
    again = remove_orphan_files(then, table, KEEP)
    assert again.status == "skipped", "they are out of use already"
    assert purge(session, table, 0).files == 2100
    assert [stored.path for stored in list_objects(session.io, f"{location}/data/lost")] == [fresh]
    assert rows(session, table) == before
    assert list_objects(session.io, f"{location}/data/nothing") == [], "a prefix that is empty"


def test_a_table_is_restored_beside_itself_and_dropping_the_copy_harms_nothing(
    session: Session, table: TableName
) -> None:
    append(session, table)
    at, state = datetime.now(UTC), rows(session, table)
    session.trino(f"DELETE FROM {table.namespace}.{table.name} WHERE id < 3")
    after = rows(session, table)
    expire_snapshots(look_again(session), table, KEEP)
    found = restore(session, table, at)
    assert (found.table.name, found.rows) == (f"{table.name}__as_of_{at:%Y%m%d%H%M%S}", len(state))
    assert rows(session, found.table) == state
    copy = f'{found.table.namespace}."{found.table.name}"'
    assert session.trino(f"SELECT count(*) FROM {copy}") == [[len(state)]]
    with pytest.raises(LakehouseError, match="already exists: drop it first"):
        restore(session, table, at)
    purge(look_again(session), table, 0)
    assert rows(session, found.table) == state, "what a copy needs is not deleted"
    session.trino(f"DROP TABLE {copy}")
    assert rows(session, table) == after
    assert session.trino(f"SELECT count(*) FROM {table.namespace}.{table.name}") == [[len(after)]]
    remove_orphan_files(look_again(session), table, KEEP)
    purge(look_again(session), table, 0)
    assert rows(session, table) == after
    with pytest.raises(LakehouseError, match=r"already deleted|no state of"):
        restore(session, table, at)


def test_a_derived_table_is_restored_in_place_and_engines_go_on_writing(session: Session, table: TableName) -> None:
    at, state = datetime.now(UTC), rows(session, table)
    session.trino(f"DELETE FROM {table.namespace}.{table.name} WHERE id < 3")
    session.trino(f"ALTER TABLE {table.namespace}.{table.name} ADD COLUMN more integer")
    session.trino(f"INSERT INTO {table.namespace}.{table.name} VALUES (70, DATE '2024-01-01', 'x', 1)")
    expire_snapshots(look_again(session), table, KEEP)
    restore(session, table, at, in_place=True)
    assert rows(session, table) == state
    session.trino(f"DELETE FROM {table.namespace}.{table.name} WHERE id = 5")
    session.trino(f"INSERT INTO {table.namespace}.{table.name} VALUES (80, DATE '2024-01-01', 'y')")
    assert session.trino(f"SELECT count(*) FROM {table.namespace}.{table.name}") == [[len(state) - 2 + 1]]
    compact(session, table, policy(compact={"target_file_size_mb": 1, "min_input_files": 2}))
    expire_snapshots(look_again(session), table, policy(expire_snapshots=EXPIRY))
    assert len(rows(session, table)) == len(state) - 2 + 1


def test_a_table_that_is_built_whole_is_restored_to_what_readers_saw(session: Session, namespace: str) -> None:
    """Before its last whole build no state was left, and until a build was published the build itself was it."""
    mart, wanted = TableName(namespace, "built"), ([[1]], [[1]], [[2]], [[2], [3]])
    beside = TableName(*next_name(mart))
    session.trino(f"CREATE TABLE {mart} AS SELECT 1 AS id")
    moments = [datetime.now(UTC)]
    for statement in ("CREATE OR REPLACE TABLE {} AS SELECT 2 AS id", "INSERT INTO {} VALUES 3"):
        with building_next(session.catalog, {mart: {}}) as sound:
            session.trino(statement.format(beside))
            sound.add(mart)
            moments.append(datetime.now(UTC))
            time.sleep(0.1)
    moments.append(datetime.now(UTC))
    for at, ids in zip(moments, wanted, strict=True):
        copy = restore(session, mart, at).table
        for name in (copy, restore(session, mart, at, in_place=True).table):
            assert session.trino(f"SELECT id FROM {name} ORDER BY id") == ids
        session.trino(f"DROP TABLE {copy}")
    assert not restore(session, mart, at, in_place=True).changed
    session.catalog.drop_namespace(beside.namespace)


def test_a_pin_keeps_its_state_through_expiry_until_it_is_taken_off(session: Session, table: TableName) -> None:
    first = session.catalog.load_table(table).snapshots()[0].snapshot_id
    pin_table(session, "audit", table, first)
    until = datetime.now(UTC) + timedelta(minutes=10)
    pin_table(session, "over", table, None, until)
    append(session, table)
    later = look_again(session)
    later.once("now", lambda: until + timedelta(seconds=1))
    expire_snapshots(later, table, KEEP)
    name = f"{table.namespace}.{table.name}"
    assert session.trino(f"SELECT count(*) FROM {name} FOR VERSION AS OF 'pin_audit'") == [[2]]
    unpin(session, "audit")
    expire_snapshots(look_again(session), table, KEEP)
    loaded = session.catalog.load_table(table)
    assert list(loaded.refs()) == ["main"] and loaded.snapshot_by_id(first) is None


def test_sorting_touches_only_what_is_not_in_order(session: Session, namespace: str) -> None:
    name = TableName(namespace, f"s{uuid.uuid4().hex[:8]}")
    session.trino(
        f"CREATE TABLE {namespace}.{name.name} (id bigint, day date, note varchar) WITH (partitioning = ARRAY['day'])"
    )
    rule = policy(compact={"target_file_size_mb": 1, "min_input_files": 3, "sort_by": ["note", "id"]})
    scatter(session, name, times=3, day=1)
    scatter(session, name, times=3, day=2)
    before = rows(session, name)
    outcome = compact(session, name, rule)
    assert (outcome.status, outcome.after.files) == ("done", 2), outcome
    assert "6 files in 2 partitions, sort by note, id" in outcome.reason
    for task in session.catalog.load_table(name).scan().plan_files():
        with session.io.new_input(task.file.file_path).open() as stream:
            found = [(row["note"], row["id"]) for row in pa.parquet.read_table(stream).to_pylist()]
        assert found == sorted(found)
    assert compact(session, name, rule).status == "skipped", "a sorted table is not sorted again"
    first = files_of_the_first_day(session, name)
    scatter(session, name, times=3, day=2)
    before = rows(session, name)
    assert "3 files in 1 partition" in compact(session, name, rule).reason
    assert files_of_the_first_day(session, name) == first and rows(session, name) == before
    zorder = policy(compact={"target_file_size_mb": 1, "min_input_files": 3, "zorder_by": ["note", "id"]})
    scatter(session, name, times=3, day=2)
    outcome = compact(session, name, zorder)
    assert outcome.status == "done" and "zorder by note, id" in outcome.reason, outcome
    assert len(rows(session, name)) == len(before) + 30


def files_of_the_first_day(session: Session, name: TableName) -> set[str]:
    tasks = session.catalog.load_table(name).scan(EqualTo(term="day", value="2024-01-01")).plan_files()
    return {task.file.file_path for task in tasks}


def scatter(session: Session, name: TableName, times: int, day: int) -> None:
    """Appends of ten rows in no order."""
    loaded: Any = session.catalog.load_table(name)
    for number in range(times):
        made = [{"id": i, "day": datetime(2024, 1, day).date(), "note": f"{(i * 7 + number) % 10}"} for i in range(10)]
        loaded.append(pa.Table.from_pylist(made, SCHEMA))
