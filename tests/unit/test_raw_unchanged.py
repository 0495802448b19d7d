"""Which snapshots of a raw table concern its mirror, on a real Iceberg table in a directory."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from ingestion.mirrors.state import data_snapshot
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import is_unchanged, newest_of
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.writing.manifests import TieredAppend
from lakehouse_serve.past.states import _changed

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def raw(tmp_path: Path) -> Table:
    made = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("raw_shop")
    return made.create_table(("raw_shop", "orders"), ROWS.schema, properties={"format-version": "2"})


def join_cut(raw: Table) -> None:
    """The snapshot without rows of a table that is in the cuts again, as a publish makes it."""
    transaction = Staging(raw)
    with TieredAppend(Operation.APPEND, transaction, raw.io, snapshot_properties={"lakehouse.cycle": "c"}):
        pass
    transaction.commit_transaction()


def test_a_mirror_is_refreshed_for_rows_and_not_for_a_snapshot_without_any(raw: Table) -> None:
    """A table that was back in the cuts without a change was looked through at each refresh from then on."""
    assert not is_unchanged(raw.metadata, None)
    raw.append(ROWS)
    first = data_snapshot(raw)
    assert is_unchanged(raw.metadata, first) and not is_unchanged(raw.metadata, 1)
    join_cut(raw)
    join_cut(raw)
    assert data_snapshot(raw) != first, "loads see it"
    assert is_unchanged(raw.metadata, first)
    assert not _changed(raw, first, data_snapshot(raw)), "a pin keeps the mirror, which stands at the same rows"
    told = newest_of(raw)
    assert told is not None and (told.snapshot_id, told.total_rows, told.added_rows) == (data_snapshot(raw), 2, 2)
    raw.delete("id = 2")
    assert _changed(raw, first, data_snapshot(raw))
    assert not is_unchanged(raw.metadata, first)
    second = data_snapshot(raw)
    raw.append(ROWS)
    assert not is_unchanged(raw.metadata, second) and is_unchanged(raw.metadata, data_snapshot(raw))
