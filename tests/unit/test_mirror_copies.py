"""The copies in which mirrors' next states are built."""

import pyarrow as pa
import pytest

from ingestion.mirrors import copies
from ingestion.mirrors.write import BRANCH
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.settings import Settings

MIRROR = ("mirror_shop", "items")
SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, SCHEMA)


@pytest.mark.parametrize("written", [(2, 3), None], ids=["rows", "nothing"])
def test_a_refresh_does_not_take_the_rows_of_one_that_was_cut_off(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, written: tuple[int, ...] | None
) -> None:
    """A restored catalog named the file of a copy with its branch: the next refresh, which wrote all rows to main, took
    those of the branch instead, for good."""
    copies.make_room(postgres_catalog, MIRROR)
    mirror = postgres_catalog.create_table(MIRROR, SCHEMA)
    mirror.append(rows(1, 2))
    mirror.manage_snapshots().create_branch(mirror.metadata.current_snapshot_id, BRANCH).commit()
    mirror.delete("id = 1", branch=BRANCH)
    with store.connect_catalog(catalog_settings) as states:
        copy = copies.begin(states, postgres_catalog, MIRROR, mirror.metadata_location, BRANCH)
    if written is not None:
        copy.overwrite(rows(*written))
    settled = copies.settle(postgres_catalog, MIRROR, BRANCH)
    assert settled.scan().to_arrow()["id"].to_pylist() == list(written or (1, 2))
    assert BRANCH not in settled.metadata.refs
