"""What an erasure refuses, it refuses before it has written anything."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from trino.exceptions import TrinoUserError

from erasure import plan as planning
from erasure import run, steps, tombstones
from erasure.plan import Plan
from erasure.proof import Search
from erasure.rows import SubjectRows
from erasure.steps import Erasing, kept_back
from erasure.targets import Target
from erasure.tombstones import Tombstone
from lakehouse.errors import LakehouseError

PIT = Target(("vault", "pit_person"), "rebuild", ("hk_person",), frozenset(), model="pit_person")
STONE = Tombstone("shop", "people", {"id": "5"}, "2026-01-01T00:00:00+00:00", "me")


def test_a_pin_on_a_table_that_dbt_builds_whole_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its past is cut off in the end, wherever the person is found, and it ended in the middle each time."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("vault")
    rows = pa.table({"hk_person": ["a"]})
    table = catalog.create_table(PIT.identifier, rows.schema)
    table.append(rows)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "pin_report").commit()
    monkeypatch.setattr(steps, "open_io", lambda settings: None)
    monkeypatch.setattr(steps, "search", lambda *_: Search())
    monkeypatch.setattr(Erasing, "_stones", lambda *_: [STONE])
    monkeypatch.setattr(tombstones, "read", lambda *_: ())
    monkeypatch.setattr(tombstones, "files_to_delete", lambda *_: set())
    monkeypatch.setattr(tombstones, "keep", lambda *_: pytest.fail("a tombstone was written"))
    monkeypatch.setattr(tombstones, "add", lambda *_: pytest.fail("a tombstone was written"))
    plan = Plan(cast(Any, None), {}, (), (SubjectRows(PIT, ()),), 0, {})
    erasing = Erasing(
        cast(Any, None), cast(Any, SimpleNamespace(catalog=catalog)), cast(Any, None), plan, print, cast(Any, None)
    )
    with pytest.raises(LakehouseError, match=r"vault\.pit_person: pin report .*`lakehouse maintain unpin report`"):
        erasing.run([STONE.key])
    assert kept_back(catalog, plan, ["vault.gone"]) == [
        "vault.pit_person: pin report keeps old snapshots: run `lakehouse maintain unpin report` first"
    ]


def test_an_erasure_is_ended_by_the_words_in_which_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column whose name has a `=` was split there, so that its erasure could not be ended; of a column that was given
    twice the last value counted."""
    stone, ended = Tombstone("shop", "people", {"a=b": "1", "id": "2"}, STONE.asked_at, "me"), list[Tombstone]()
    monkeypatch.setattr(run.store, "connect_catalog", lambda settings: nullcontext())
    monkeypatch.setattr(run.store, "ensure_state", lambda states: None)
    monkeypatch.setattr(run, "open_io", lambda settings: None)
    monkeypatch.setattr(tombstones, "read", lambda *_: (STONE, stone))
    monkeypatch.setattr(tombstones, "end", lambda *given: ended.append(given[-1]))
    for words in (["a=b=1"], ["a=b=1", "id=2", "id=2"], ["id=3", "a=b=1", "id=2"], ["a=b=1", "id"], []):
        with pytest.raises(LakehouseError, match="no such erasure"):
            run.end(cast(Any, None), "shop.people", words)
    assert run.end(cast(Any, None), "shop.people", ["id=2", "a=b=1"]) == stone and ended == [stone]


@pytest.mark.parametrize(
    ("name", "remedy"), [("COLUMN_NOT_FOUND", "run the loads"), ("NO_NODES_AVAILABLE", "start Trino")]
)
def test_a_vault_of_before_a_rename_is_loaded_and_trino_not_started(
    monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    """After a restore of an older backup Trino ran, and the message said to start it."""

    def refuse(settings: Any) -> Any:
        raise TrinoUserError({"errorName": name, "message": "line 1:17: Column 'hk_person' cannot be resolved"})

    monkeypatch.setattr(planning, "connect", refuse)
    with pytest.raises(LakehouseError, match=rf"'hk_person' cannot be resolved.*; .*{remedy}"):
        planning.ask(cast(Any, None), "SELECT 1")
