"""An erasure expires the history that it has looked at, and nothing that came while it looked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from erasure import expire, tombstones
from lakehouse.errors import LakehouseError
from maintenance.inventory import removed

NAME = ("vault", "sat_person")
ROWS = pa.table({"hk_person": ["a"]})
STATES = cast(Any, None)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """A table with three snapshots."""
    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("vault")
    table = made.create_table(NAME, ROWS.schema)
    for _ in range(3):
        table.append(ROWS)
    monkeypatch.setattr(removed, "recorded", lambda *_: {})
    monkeypatch.setattr(tombstones, "record_files_to_delete", lambda *_: None)
    return made


def while_it_looks(monkeypatch: pytest.MonkeyPatch, catalog: SqlCatalog, change: Callable[[Table], None]) -> None:
    """Makes a change by another writer after the erasure has loaded the table."""
    changes, look = [change], expire.reachable_files

    def looking(table: Table) -> set[str]:
        if changes:
            changes.pop()(catalog.load_table(NAME))
        return look(table)

    monkeypatch.setattr(expire, "reachable_files", looking)


def test_all_but_the_newest_snapshot_goes(catalog: SqlCatalog) -> None:
    assert expire.expire_history(catalog, STATES, NAME) == 2
    assert len(catalog.load_table(NAME).snapshots()) == 1 and catalog.load_table(NAME).scan().to_arrow().num_rows == 3


def test_a_pin_that_comes_meanwhile_is_refused_and_not_taken_off(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was gone with its snapshot, and whoever had made it was told that it is there."""

    def pin(table: Table) -> None:
        table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "pin_month").commit()

    while_it_looks(monkeypatch, catalog, pin)
    with pytest.raises(LakehouseError, match="unpin month"):
        expire.expire_history(catalog, STATES, NAME)
    assert "pin_month" in catalog.load_table(NAME).refs() and len(catalog.load_table(NAME).snapshots()) == 3


def test_a_state_that_is_put_back_meanwhile_is_kept(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table was left without a current snapshot: its readers saw no row."""
    while_it_looks(
        monkeypatch, catalog,
        lambda table: table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id).commit(),
    )  # fmt: skip
    expire.expire_history(catalog, STATES, NAME)
    assert catalog.load_table(NAME).scan().to_arrow().num_rows == 2
