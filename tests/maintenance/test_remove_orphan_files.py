"""Orphan removal against the real stack: what nothing refers to goes, and nothing else."""

import psycopg
import pytest

from lakehouse.catalog.objects import list_objects
from maintenance.actions.compact import compact
from maintenance.actions.expire_snapshots import expire_snapshots
from maintenance.actions.remove_orphan_files import remove_orphan_files
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import run_action
from tests.maintained import COMPACT, EXPIRE_NOW, ORPHANS_NOW, SCHEMA, append, look_again, paths, plant, policy, rows
from tests.marks import slow

pytestmark = pytest.mark.stack


@pytest.mark.slow
def test_orphans_are_found_from_worker_threads_with_nothing_run_in_spark_before(
    session: Session, table: TableName
) -> None:
    """Run alone it once failed: a worker thread's class loader did not know the catalog."""
    plant(session, session.catalog.load_table(table).location() + "/data/orphan.parquet")
    fresh = look_again(session)
    tables = [MaintainedTable(table, ORPHANS_NOW)]
    assert [outcome.status for outcome in run_action(fresh, "remove_orphan_files", tables)] == ["done"]


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
        from ingestion.state.store import ensure_state, register_staged

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            ensure_state(connection)
            register_staged(connection, f"cycle-{self.source}", self.source, [self.prefix])

    def __exit__(self, *_: object) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM lakehouse.staged_files WHERE source = %s", (self.source,))


@pytest.mark.parametrize("part", ["metadata", slow("manifest")])
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
