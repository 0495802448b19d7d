"""Files that are due are deleted by whoever holds the table's lock, and by nobody else."""

from collections.abc import Collection
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.objects import list_objects
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from maintenance.actions import purge as purging
from maintenance.actions.exclusion import exclusive
from maintenance.actions.purge import purge
from maintenance.inventory import removed
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

pytestmark = pytest.mark.stack
NAME = TableName("vault", "hub")


class Due:
    """A table with a file that is out of use for long enough."""

    def __init__(self, settings: Settings, catalog: LakeCatalog) -> None:
        self.session = Session(settings)
        self.session._shared["catalog"] = catalog
        catalog.create_namespace_if_not_exists("vault")
        table = catalog.create_table(NAME, pa.schema([("id", pa.int64())]))
        self.folder = f"{table.location()}/data"
        with table.io.new_output(f"{self.folder}/old").create() as stream:
            stream.write(b"old")
        with removed.catalog_database(settings) as connection:
            connection.execute("DELETE FROM lakehouse.removed_files")
            removed.record(connection, NAME, [(f"{self.folder}/old", 3)], "expire_snapshots", "")

    def there(self) -> tuple[int, int]:
        """How many objects, and how many of them are recorded."""
        with removed.catalog_database(self.session.settings) as connection:
            recorded = len(removed.recorded(connection, NAME))
        return len(list_objects(self.session.io, self.folder)), recorded


@pytest.fixture
def due(catalog_settings: Settings, postgres_catalog: LakeCatalog) -> Due:
    return Due(catalog_settings, postgres_catalog)


def test_what_is_due_goes_with_its_record(due: Due) -> None:
    with exclusive(due.session, NAME):
        assert str(purge(due.session, NAME, 0)) == "deleted 1 files removed earlier"
    assert due.there() == (0, 0) and due.session.locks == {}


def test_a_purge_that_has_lost_its_lock_deletes_nothing(due: Due, monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept (a laptop, a paused machine); a restore took the lock meanwhile, and its files were deleted."""
    used = purging._used

    def sleep(session: Session, table: TableName) -> set[str]:
        found = used(session, table)
        with connect_catalog(session.settings) as server:
            server.execute("SELECT pg_terminate_backend(%s, 10000)", (session.locks[table].info.backend_pid,))
        return found

    monkeypatch.setattr(purging, "_used", sleep)
    with exclusive(due.session, NAME), pytest.raises(psycopg.OperationalError):
        purge(due.session, NAME, 0)
    assert due.there() == (1, 1)


def test_a_batch_that_was_not_deleted_stays_recorded(due: Due, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(io: Any, paths: Collection[str]) -> None:
        assert len(paths) == 1
        raise OSError("the store refuses")

    monkeypatch.setattr(purging, "delete_objects", refuse)
    with exclusive(due.session, NAME), pytest.raises(OSError, match="refuses"):
        purge(due.session, NAME, 0)
    assert due.there() == (1, 1)
