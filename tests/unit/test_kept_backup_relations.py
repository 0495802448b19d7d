"""What of dbt's temporary relations is kept, though it is old: a backup relation is the model's table as it was."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse.catalog.relations import list_relations
from maintenance.actions.clean_dbt_temporary import _why_kept
from maintenance.inventory.lake import Lake
from maintenance.inventory.outcome import TableName
from maintenance.restore.moments import find
from maintenance.restore.table import _register

BACKUP, COPY = TableName("marts", "fct__dbt_backup"), TableName("marts", "fct__as_of_20261130000000")
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    """A backup relation that a killed run has left of a mart."""
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("marts")
    made.create_table(BACKUP, ROWS.schema, location=f"file://{tmp_path}/warehouse/marts/fct-0a").append(ROWS)
    made.create_table(("marts", "fct"), ROWS.schema).append(ROWS)
    return made


def why_kept(catalog: SqlCatalog) -> str | None:
    once: Callable[[str, Callable[[], Any]], Any] = lambda _, make: make()  # noqa: E731
    session: Any = SimpleNamespace(catalog=catalog, io=catalog._load_file_io(), once=once)
    relations = {relation.name: relation for relation in list_relations(catalog)}
    lake = Lake((), (), tuple(relations.values()), {}, {})
    return _why_kept(session, lake, relations[BACKUP], datetime.now(UTC) + timedelta(hours=1))


def test_what_nobody_keeps_goes(catalog: SqlCatalog) -> None:
    assert why_kept(catalog) is None


def test_a_pin_keeps_its_relation(catalog: SqlCatalog) -> None:
    """A month's end went with the backup relation of a build that was killed."""
    table = catalog.load_table(BACKUP)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "pin_month").commit()
    assert why_kept(catalog) == f"{BACKUP} kept: pin month keeps a snapshot of it"


def test_a_restored_copy_keeps_the_files_on_which_it_lives(catalog: SqlCatalog) -> None:
    """It was made of the table before dbt called that a backup."""
    catalog.rename_table(BACKUP, ("marts", "fct_before"))
    table, now = catalog.load_table(("marts", "fct_before")), datetime.now(UTC)
    session: Any = SimpleNamespace(catalog=catalog)
    _register(session, TableName("marts", "fct"), COPY, find(cast(Any, table.io), table, now), now)
    catalog.rename_table(("marts", "fct_before"), BACKUP)
    assert why_kept(catalog) == f"{BACKUP} kept: {COPY} refers to its files"
