"""What an erasure drops: not a mirror that another one has made meanwhile, and nothing that a pin keeps."""

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from erasure import steps
from erasure.targets import Target
from ingestion.mirrors.copies import location_of
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.pins import TAG
from lakehouse.errors import LakehouseError
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


@pytest.mark.parametrize("dropped", ["mirror", "failures of a test"])
@pytest.mark.parametrize("when", ["before it is inspected", "after that"])
def test_a_pin_that_comes_during_an_erasure_keeps_what_it_keeps(
    catalog_settings: Settings, postgres_catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, dropped: str, when: str
) -> None:
    """Only the beginning looked for pins: one that was made later lost its mirror without a word."""
    rows = pa.table({"id": [1, 2]})
    postgres_catalog.create_namespace_if_not_exists(MIRROR[0])
    table = postgres_catalog.create_table(MIRROR, rows.schema, location=location_of(postgres_catalog, MIRROR))
    table.append(rows)

    def pin() -> None:
        kept = table.refresh().metadata.current_snapshot_id
        assert kept is not None
        table.manage_snapshots().create_tag(kept, f"{TAG}close").commit()

    inspect = steps.expire.check_references

    def inspected(found: Table) -> None:
        inspect(found)
        if not any(name.startswith(TAG) for name in table.refresh().metadata.refs):
            pin()

    monkeypatch.setattr(steps, "open_io", lambda settings: PyArrowFileIO())
    monkeypatch.setattr(steps, "await_readers", lambda settings: None)
    if when == "after that":
        monkeypatch.setattr(steps.expire, "check_references", inspected)
    else:
        pin()
    with store.connect_catalog(catalog_settings) as states:
        ensure_state(states)
        lease = leases.acquire(states, leases.mirrors_of("shop"), 60, "once")
        assert lease is not None
        writer: Any = SimpleNamespace(catalog=postgres_catalog)
        erasing = steps.Erasing(catalog_settings, writer, states, cast(Any, None), lambda step: None, lease)
        target = Target(MIRROR, "drop" if dropped == "mirror" else "discard", ("id",), frozenset())
        try:
            with pytest.raises(LakehouseError, match=r"mirror_shop\.people: pin close keeps old snapshots"):
                (erasing._mirror if dropped == "mirror" else erasing._discard)(target, steps.Erasure([]))
        finally:
            states.execute("DELETE FROM lakehouse.leases")
    assert postgres_catalog.load_table(MIRROR).scan().to_arrow().num_rows == 2
