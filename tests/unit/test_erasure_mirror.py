"""An erasure that has lost the lease of the mirrors leaves the mirror that another one has made."""

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from erasure import steps
from ingestion.mirrors.copies import location_of
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.migrations import ensure_state
from lakehouse.settings import Settings

pytestmark = pytest.mark.stack
MIRROR = ("mirror_shop", "people")


@pytest.mark.parametrize("lost", [False, True])
def test_a_mirror_is_dropped_by_whom_holds_its_lease(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """One that had been stopped beyond its lease deleted the files of the mirror that was made anew meanwhile."""
    rows = pa.table({"id": [1, 2]})
    postgres_catalog.create_namespace_if_not_exists(MIRROR[0])
    location = location_of(postgres_catalog, MIRROR)
    postgres_catalog.create_table(MIRROR, rows.schema, location=location).append(rows)
    monkeypatch.setattr(steps, "open_io", lambda settings: PyArrowFileIO())
    with store.connect_catalog(catalog_settings) as states:
        ensure_state(states)
        lease = leases.acquire(states, leases.mirrors_of("shop"), 60, "once")
        assert lease is not None
        try:
            if lost:
                states.execute("UPDATE lakehouse.leases SET token = token + 1, holder = 'a refresh'")
                with pytest.raises(leases.LeaseLost):
                    steps.drop_mirror(catalog_settings, postgres_catalog, states, MIRROR, lease)
                assert postgres_catalog.load_table(MIRROR).scan().to_arrow().num_rows == 2
            else:
                assert steps.drop_mirror(catalog_settings, postgres_catalog, states, MIRROR, lease) > 0
                assert not postgres_catalog.table_exists(MIRROR)
        finally:
            states.execute("DELETE FROM lakehouse.leases")
