"""Maintenance against the real stack: nothing a reader can see may change, and what should go is gone."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pytest

from lakehouse.catalog import newest_data_snapshot
from lakehouse.policies import MaintenancePolicy
from lakehouse.settings import Settings
from maintenance.clean_dbt_temporary import clean_dbt_temporary, strays
from maintenance.compact import compact
from maintenance.declared import MaintainedTable
from maintenance.drop_extended_stats import drop_extended_stats
from maintenance.expire_snapshots import expire_snapshots
from maintenance.lake import list_objects
from maintenance.outcome import Outcome, TableName
from maintenance.remove_orphan_files import remove_orphan_files
from maintenance.run import run_action
from maintenance.session import Session

pytestmark = pytest.mark.stack

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("note", pa.string())])
DAYS = [datetime(2024, 1, day).date() for day in (1, 2)]


def policy(**parts: object) -> MaintenancePolicy:
    """A policy for one session: what is removed need not stay restorable."""
    return MaintenancePolicy.model_validate({"schedule_group": "nightly", "keep_removed_hours": 0, **parts})


COMPACT = policy(compact={"target_file_size_mb": 128, "min_input_files": 5})
EXPIRE_NOW = policy(expire_snapshots={"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 20})
ORPHANS_NOW = policy(remove_orphan_files={"older_than_hours": 0})
TEMPORARY_NOW = policy(clean_dbt_temporary={"older_than_hours": 0})
STATISTICS = policy(statistics={"analyze": True, "stale_share": 0})


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    session = Session(settings)
    yield session
    session.close()


@pytest.fixture(scope="module")
def source() -> str:
    """A source of this run only, so that the tests leave everybody else's tables alone."""
    return f"mnt{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module", autouse=True)
def schema(settings: Settings, source: str) -> Iterator[str]:
    session, name = Session(settings), f"raw_{source}"
    session.catalog.create_namespace(name)
    yield name
    for table in session.catalog.list_tables(name):
        session.catalog.drop_table(table)
    for view in session.trino(f"SELECT table_name FROM information_schema.views WHERE table_schema = '{name}'"):
        session.trino(f'DROP VIEW {name}."{view[0]}"')
    session.catalog.drop_namespace(name)
    session.close()


@pytest.fixture
def table(session: Session, schema: str) -> TableName:
    """Eight small appends."""
    name = TableName(schema, f"t{uuid.uuid4().hex[:8]}")
    session.catalog.create_table(name, SCHEMA)
    append(session, name, times=8)
    return name


def append(session: Session, name: TableName, times: int = 1) -> None:
    loaded = session.catalog.load_table(name)
    for number in range(times):
        rows = [{"id": number, "day": day, "note": f"{number} {day}"} for day in DAYS]
        loaded.append(pa.Table.from_pylist(rows, SCHEMA))


def rows(session: Session, name: TableName) -> list[dict[str, object]]:
    found = session.catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["id"], row["day"], row["note"]))


def paths(session: Session, name: TableName) -> set[str]:
    return {stored.path for stored in list_objects(session.io, session.catalog.load_table(name).location())}


def plant(session: Session, path: str) -> str:
    with session.io.new_output(path).create(overwrite=True) as stream:
        stream.write(b"planted")
    return path


def look_again(session: Session) -> Session:
    """A session whose clock is now: an age limit of 0 hours means "before the session began"."""
    return Session(session.settings, session.dry_run)


def test_compaction_keeps_every_row_and_leaves_one_file(session: Session, table: TableName) -> None:
    before = rows(session, table)
    outcome = compact(session, table, COMPACT)
    assert outcome.status == "done", outcome
    assert (outcome.before.files, outcome.after.files) == (8, 1)
    assert (outcome.before.manifests, outcome.after.manifests) == (8, 1)
    assert rows(session, table) == before
    assert compact(session, table, COMPACT).status == "skipped"


def test_a_table_with_few_files_is_skipped_without_starting_spark(session: Session, schema: str) -> None:
    name = TableName(schema, "few")
    session.catalog.create_table(name, SCHEMA)
    append(session, name, times=2)
    outcome = compact(session, name, COMPACT)
    assert (outcome.status, outcome.reason) == ("skipped", "2 files, below min_input_files 5")
    assert "spark" not in session._shared


def test_compaction_removes_the_delete_files_that_trino_wrote(session: Session, table: TableName) -> None:
    for number in range(5):
        session.trino(f"DELETE FROM {table.namespace}.{table.name} WHERE id = {number} AND day = DATE '2024-01-01'")
    before = rows(session, table)
    outcome = compact(session, table, COMPACT)
    assert outcome.status == "done", outcome
    assert outcome.before.delete_files == 5
    assert outcome.after.delete_files == 0
    assert rows(session, table) == before


def test_a_compaction_that_meets_an_append_keeps_the_rows_of_both(session: Session, table: TableName) -> None:
    before = len(rows(session, table))
    with ThreadPoolExecutor(2) as pool:
        compaction = pool.submit(compact, session, table, COMPACT)
        for _ in range(10):
            append(session, table)
        outcome = compaction.result()
    assert outcome.status == "done", outcome
    assert len(rows(session, table)) == before + 20


def test_two_compactions_at_once_end_with_the_same_rows(session: Session, table: TableName) -> None:
    before = rows(session, table)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: compact(session, table, COMPACT), range(2)))
    assert "done" in {outcome.status for outcome in outcomes}
    assert all("\n" not in (outcome.error or "") for outcome in outcomes)
    assert rows(session, table) == before


def test_expiry_drops_old_snapshots_and_their_files(session: Session, table: TableName) -> None:
    compact(session, table, COMPACT)
    before, objects = rows(session, table), paths(session, table)
    data = newest_data_snapshot(session.catalog, *table)
    outcome = expire_snapshots(look_again(session), table, EXPIRE_NOW)
    assert outcome.status == "done", outcome
    # The compaction, made of one or two commits, and the append before it, which sensors compare with.
    assert outcome.after.snapshots is not None and outcome.after.snapshots <= 3
    assert outcome.removed_files > 0
    assert len(paths(session, table)) < len(objects)
    assert newest_data_snapshot(session.catalog, *table) == data
    assert rows(session, table) == before


def test_orphans_are_found_from_worker_threads_with_nothing_run_in_spark_before(
    session: Session, table: TableName
) -> None:
    """Run alone it once failed: a worker thread's class loader did not know the catalog."""
    plant(session, session.catalog.load_table(table).location() + "/data/orphan.parquet")
    fresh = look_again(session)
    tables = [MaintainedTable(table, ORPHANS_NOW)]
    assert [outcome.status for outcome in run_action(fresh, "remove_orphan_files", tables)] == ["done"]


def test_expiry_keeps_the_last_snapshots_that_the_policy_names(session: Session, table: TableName) -> None:
    keep_three = policy(expire_snapshots={"older_than_hours": 0, "retain_last": 3, "keep_metadata_files": 20})
    outcome = expire_snapshots(look_again(session), table, keep_three)
    assert (outcome.before.snapshots, outcome.after.snapshots) == (8, 3)


def test_expiry_leaves_young_snapshots_alone(session: Session, table: TableName) -> None:
    outcome = expire_snapshots(
        session, table, policy(expire_snapshots={"older_than_hours": 24, "retain_last": 1, "keep_metadata_files": 20})
    )
    assert (outcome.status, outcome.reason) == ("skipped", "8 snapshots, none to expire after 24 h")


def test_a_reader_at_the_newest_cut_can_still_travel_there(session: Session, table: TableName, source: str) -> None:
    named = session.catalog.load_table(table).snapshots()[2].snapshot_id
    publish_cut(session, source, {table.name: named})
    at_cut = session.catalog.load_table(table).scan(snapshot_id=named).to_arrow()
    outcome = expire_snapshots(look_again(session), table, EXPIRE_NOW)
    assert outcome.after.snapshots == 2
    assert session.catalog.load_table(table).scan(snapshot_id=named).to_arrow() == at_cut
    assert session.trino(f"SELECT count(*) FROM {table.namespace}.{table.name} FOR VERSION AS OF {named}") == [[6]]


def publish_cut(session: Session, source: str, snapshots: dict[str, int]) -> None:
    """A row of meta.cuts, as ingestion writes it."""
    from ingestion.publish import ensure_cuts

    now = datetime.now(UTC)
    row = {
        "source": source,
        "epoch": 1,
        "cut_lsn": 1,
        "cut_at": now,
        "published_at": now,
        "snapshots": [(name, str(snapshot)) for name, snapshot in snapshots.items()],
    }
    cuts = ensure_cuts(session.catalog)
    cuts.append(pa.Table.from_pylist([row], cuts.schema().as_arrow()))


def test_an_orphan_goes_and_live_staged_and_neighbouring_files_stay(
    session: Session, table: TableName, source: str
) -> None:
    location = session.catalog.load_table(table).location()
    orphan = plant(session, f"{location}/data/orphan.parquet")
    staged = plant(session, f"{location}/data/cycle-7/staged.parquet")
    neighbour = plant(session, f"{location}_old/data/neighbour.parquet")
    live, before = paths(session, table) - {orphan, staged}, rows(session, table)
    with staged_prefix(session, source, f"{location}/data/cycle-7/"):
        outcome = remove_orphan_files(look_again(session), table, ORPHANS_NOW)
    assert outcome.status == "done", outcome
    assert orphan not in paths(session, table)
    assert paths(session, table) >= live | {staged}
    assert list_objects(session.io, f"{location}_old")[0].path == neighbour
    assert rows(session, table) == before


class staged_prefix:
    """A prefix in `lakehouse.staged_files` for as long as the block runs."""

    def __init__(self, session: Session, source: str, prefix: str) -> None:
        self.dsn, self.source, self.prefix = session.settings.catalog_dsn(), source, prefix

    def __enter__(self) -> None:
        from ingestion.state import ensure_state, register_staged

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            ensure_state(connection)
            register_staged(connection, f"cycle-{self.source}", self.source, [self.prefix])

    def __exit__(self, *_: object) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM lakehouse.staged_files WHERE source = %s", (self.source,))


@pytest.mark.parametrize("part", ["metadata", "manifest"])
def test_while_a_table_cannot_be_read_nothing_of_others_is_deleted_and_the_reason_names_it(
    session: Session, table: TableName, part: str
) -> None:
    """What it refers to is unknown. All else is done, and no action of the others fails."""
    orphan = plant(session, session.catalog.load_table(table).location() + "/data/orphan.parquet")
    broken = TableName(table.namespace, f"broken_{part}")
    session.catalog.create_table(broken, SCHEMA)
    append(session, broken)
    made = session.catalog.load_table(broken)
    first = made.current_snapshot().manifests(made.io)[0].manifest_path
    plant(session, made.metadata_location if part == "metadata" else first)
    try:
        outcome = remove_orphan_files(look_again(session), table, ORPHANS_NOW)
        assert outcome.status == "skipped" and f"{broken} cannot be read" in outcome.reason, outcome
        assert orphan in paths(session, table)
        assert expire_snapshots(look_again(session), table, EXPIRE_NOW).status == "done"
    finally:
        session.catalog.drop_table(broken)
    assert remove_orphan_files(look_again(session), table, ORPHANS_NOW).status == "done"


def test_orphan_removal_spares_young_objects_and_starts_no_spark(session: Session, table: TableName) -> None:
    orphan = plant(session, session.catalog.load_table(table).location() + "/data/young.parquet")
    fresh = look_again(session)
    outcome = remove_orphan_files(fresh, table, policy(remove_orphan_files={"older_than_hours": 1}))
    assert outcome.status == "skipped", outcome
    assert orphan in paths(session, table)
    assert "spark" not in fresh._shared


def test_files_that_only_an_old_snapshot_refers_to_are_no_orphans(session: Session, table: TableName) -> None:
    first = session.catalog.load_table(table).snapshots()[0].snapshot_id
    compact(session, table, COMPACT)
    remove_orphan_files(look_again(session), table, ORPHANS_NOW)
    assert session.catalog.load_table(table).scan(snapshot_id=first).to_arrow().num_rows == 2


def test_a_table_that_shares_its_location_is_never_cleaned(session: Session, table: TableName) -> None:
    loaded = session.catalog.load_table(table)
    twin = TableName(table.namespace, table.name + "_twin")
    session.catalog.register_table(twin, loaded.metadata_location)
    append(session, twin)
    outcome = remove_orphan_files(look_again(session), table, ORPHANS_NOW)
    assert (outcome.status, outcome.reason) == ("skipped", f"shares its location with {twin}")
    assert len(rows(session, twin)) == 18


def test_statistics_are_made_once_and_left_alone_while_the_data_is_the_same(session: Session, table: TableName) -> None:
    assert drop_extended_stats(session, table, STATISTICS).status == "done"
    assert distinct_values(session, table) == 8
    assert drop_extended_stats(session, table, STATISTICS).reason == "statistics describe the newest data"
    compact(session, table, COMPACT)
    assert drop_extended_stats(session, table, STATISTICS).status == "skipped"
    append(session, table)
    assert drop_extended_stats(session, table, STATISTICS).status == "done"


def distinct_values(session: Session, table: TableName) -> float:
    statistics = session.trino(f"SHOW STATS FOR {table.namespace}.{table.name}")
    return next(row[2] for row in statistics if row[0] == "id")


@pytest.mark.parametrize("objects", [1100, pytest.param(2500, marks=pytest.mark.slow)])
def test_temporary_relations_and_leftover_objects_of_a_model_go(session: Session, schema: str, objects: int) -> None:
    model = TableName(schema, "orders")
    session.trino(f"CREATE TABLE {schema}.orders__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"CREATE TABLE {schema}.orders__dbt_backup AS SELECT 1 AS x")
    session.trino(f"CREATE VIEW {schema}.orders__dbt_tmp_view AS SELECT 1 AS x")
    prefix = f"{session.settings.warehouse.rstrip('/')}/{schema}/orders__dbt_tmp-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: plant(session, f"{prefix}/data/{number}"), range(objects)))
    young = clean_dbt_temporary(session, model, policy(clean_dbt_temporary={"older_than_hours": 1}))
    assert young.status == "skipped" and "kept" in young.reason
    outcome = clean_dbt_temporary(look_again(session), model, TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("done", f"removed 3 relations, {objects} objects")
    assert session.trino(f"SHOW TABLES FROM {schema} LIKE 'orders%'") == []
    assert list_objects(session.io, prefix) == []
    assert clean_dbt_temporary(look_again(session), model, TEMPORARY_NOW).reason == "nothing temporary"


def test_a_living_table_below_a_temporary_prefix_is_kept(session: Session, schema: str) -> None:
    """dbt replaces a table by renaming `<model>__dbt_tmp`; the files stay where they are."""
    session.trino(f"CREATE TABLE {schema}.renamed__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"ALTER TABLE {schema}.renamed__dbt_tmp RENAME TO {schema}.renamed")
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "renamed"), TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("skipped", "nothing temporary")
    assert session.trino(f"SELECT x FROM {schema}.renamed") == [[1]]


def test_a_file_that_a_table_elsewhere_refers_to_is_kept(session: Session, table: TableName, schema: str) -> None:
    prefix = f"{session.settings.warehouse.rstrip('/')}/{schema}/moved__dbt_tmp-{uuid.uuid4().hex}"
    loaded = session.catalog.load_table(table)
    old = next(iter(loaded.scan().plan_files())).file.file_path
    moved = plant(session, f"{prefix}/data/moved.parquet")
    with session.io.new_input(old).open() as source, session.io.new_output(moved).create(overwrite=True) as target:
        target.write(source.read())
    loaded.add_files([moved])
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "moved"), TEMPORARY_NOW)
    assert (outcome.status, outcome.reason) == ("skipped", f"{prefix}/ kept: a table refers to it")
    assert len(rows(session, table)) == 18


def test_a_temporary_relation_that_a_view_names_is_kept(session: Session, schema: str) -> None:
    session.trino(f"CREATE TABLE {schema}.seen__dbt_tmp AS SELECT 1 AS x")
    session.trino(f"CREATE VIEW {schema}.window AS SELECT x FROM {schema}.seen__dbt_tmp")
    outcome = clean_dbt_temporary(look_again(session), TableName(schema, "seen"), TEMPORARY_NOW)
    assert outcome.reason == f"{schema}.seen__dbt_tmp kept: view {schema}.window refers to it"
    session.trino(f"DROP VIEW {schema}.window")


def test_what_an_undeclared_model_left_follows_the_most_patient_policy_of_its_schema(
    session: Session, schema: str
) -> None:
    session.trino(f"CREATE TABLE {schema}.gone__dbt_tmp AS SELECT 1 AS x")
    patient = policy(clean_dbt_temporary={"older_than_hours": 48})
    declared = (
        MaintainedTable(TableName(schema, "a"), TEMPORARY_NOW),
        MaintainedTable(TableName(schema, "b"), patient),
    )
    found = {table.name: table.policy for table in strays(look_again(session), declared)}
    assert found[TableName(schema, "gone")] == patient


def test_a_dry_run_changes_nothing(settings: Settings, session: Session, table: TableName) -> None:
    plant(session, session.catalog.load_table(table).location() + "/data/orphan.parquet")
    location, objects = session.catalog.load_table(table).metadata_location, paths(session, table)
    dry = Session(settings, dry_run=True)
    everything = policy(
        compact={"target_file_size_mb": 128, "min_input_files": 5},
        expire_snapshots={"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 20},
        remove_orphan_files={"older_than_hours": 0},
        statistics={"analyze": True, "stale_share": 0},
    )
    for act in (compact, expire_snapshots, remove_orphan_files, drop_extended_stats):
        outcome: Outcome = act(dry, table, everything)
        assert outcome.status == "planned", outcome
    assert session.catalog.load_table(table).metadata_location == location
    assert paths(session, table) == objects
    assert "spark" not in dry._shared
