"""What a mirror says of itself, and how it is written; without servers."""

import json
import os
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IntegerType, StringType
from pyspark.sql import Row

from ingestion.mirrors import changes
from ingestion.mirrors.columns import ColumnPlan, plan_columns
from ingestion.mirrors.copies import Published
from ingestion.mirrors.refresh import (
    LACKING,
    LACKING_OF_TOPIC,
    NOT_AS_DECLARED,
    _publish,
    _why_aside,
    newest_cut,
    tables_in_cut,
)
from ingestion.mirrors.state import MirrorState, added_files, columns_with_nulls, data_snapshot, read_state
from ingestion.mirrors.views import forget_old
from ingestion.mirrors.write import SMALL_BYTES, Size, Target, delete_sql, is_written_anew
from ingestion.run.mirrors import Refresher
from ingestion.sink.meta_tables import ensure_mirrors
from ingestion.state.lease import mirrors_of
from ingestion.state.store import TablePosition
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.views.view_versions import NextView
from lakehouse.text.names import NAME

if TYPE_CHECKING:
    from ingestion.pipeline.session import Session

AT = datetime(2026, 11, 20, 1, 2, 3, 4, UTC)
STATE = MirrorState(2, 500, "0/1F5", AT, 11, 7, {"id": 1, "name": 2}, 9, raw="the raw table", key=(1,))
MADE_OF = ("the raw table", (1,))


def mirror(*operations: Operation, properties: dict[str, str]) -> Any:
    """A table whose snapshots, 7, 8 …, are of these operations."""
    snapshots = [
        SimpleNamespace(
            snapshot_id=n, parent_snapshot_id=n - 1 if n > 7 else None, summary=SimpleNamespace(operation=o)
        )
        for n, o in enumerate(operations, start=7)
    ]
    metadata = SimpleNamespace(snapshots=snapshots, current_snapshot_id=snapshots[-1].snapshot_id)
    return SimpleNamespace(metadata=metadata, properties=properties)


@pytest.mark.parametrize("is_whole", [True, False])
def test_behind_a_truncate_too_no_null_stands_for_a_value_that_raw_lacks(
    monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """The insert of a key may be a dead letter, and an update behind it leaves the value out."""
    live, log = MagicMock(), cast(Any, SimpleNamespace(table="raw", columns=()))
    live.where.return_value.isEmpty.return_value = is_whole
    side = SimpleNamespace(log=log, live=live, lacks=(1,), is_truncated=True)
    seen = SimpleNamespace(latest=AT, is_late=False, keys="true")
    monkeypatch.setattr(changes, "_seen", lambda *_: seen)
    monkeypatch.setattr(changes, "sides_of", lambda *_: [side])
    refused = nullcontext() if is_whole else pytest.raises(changes.NotWhole)
    with refused, changes.changes_since(MagicMock(), log, MagicMock(), STATE, (2, 501)) as found:
        assert isinstance(found, changes.Whole)


def test_a_mirror_that_lacks_a_value_names_what_brings_it() -> None:
    """Nothing is repaired in the table of a topic, which the command sets aside."""

    def why(topic: str, *lacking: str) -> str:
        table = cast(Any, SimpleNamespace(name="items", raw=SimpleNamespace(topic=topic)))
        return _why_aside(table, ["items"], lacking)

    assert why("", "items") == LACKING and "reconcile --repair" in LACKING
    assert why("shop.public.items", "items") == LACKING_OF_TOPIC and "by a signal" in LACKING_OF_TOPIC
    assert why("shop.public.items") == NOT_AS_DECLARED


def test_a_mirror_knows_where_it_stands_as_long_as_its_rows_are_those_that_were_written() -> None:
    properties = STATE.properties()

    def state(*operations: Operation, given: dict[str, str] = properties, epoch: int = 2) -> MirrorState | None:
        return read_state(mirror(*operations, properties=given), epoch, *MADE_OF)

    assert properties["lakehouse.position"] == "2:0/1F5"
    assert state(Operation.OVERWRITE) == STATE
    assert state(Operation.APPEND, Operation.REPLACE) == STATE, "a compaction"
    assert state(Operation.APPEND, Operation.DELETE) is None
    assert state(Operation.APPEND, given={}) is None
    assert state(Operation.OVERWRITE, epoch=3) is None, "the source was recovered"


def test_a_mirror_of_another_raw_table_or_by_another_key_is_made_anew() -> None:
    """Events were merged into rows that the raw table never had, or that another key told apart."""
    there = mirror(Operation.OVERWRITE, properties=STATE.properties())
    assert read_state(there, 2, "loaded again", (1,)) is None
    assert read_state(there, 2, "the raw table", (2,)) is None
    stored = json.loads(STATE.properties()["lakehouse.mirror"])
    of_before = json.dumps({name: value for name, value in stored.items() if name not in ("raw", "key")})
    there = mirror(Operation.OVERWRITE, properties={"lakehouse.mirror": of_before})
    assert read_state(there, 2, *MADE_OF) == replace(STATE, raw=None, key=None), "an earlier release does not tell"


@pytest.mark.parametrize(
    ("wanted", "plan"),
    [
        ({"id": 1, "name": 2}, ColumnPlan()),
        ({"id": 1}, ColumnPlan(drop=("name",))),
        ({"id": 1, "name": 2, "new": 10}, ColumnPlan()),
        ({"id": 1, "name": 2, "declared_later": 5}, ColumnPlan(anew=True)),
        ({"id": 1, "title": 2}, ColumnPlan(("name",), anew=True)),
        ({"id": 2, "name": 1}, ColumnPlan(("id", "name"), anew=True)),
    ],
)
def test_columns_are_known_by_the_fields_of_the_raw_table(wanted: dict[str, int], plan: ColumnPlan) -> None:
    assert plan_columns(wanted, STATE) == plan


def test_small_mirrors_and_those_of_many_deletes_are_written_anew() -> None:
    assert is_written_anew(Size(SMALL_BYTES, 10**9, 0), 1)
    large = SMALL_BYTES + 1
    assert not is_written_anew(Size(large, 1000, 100), 100)
    assert is_written_anew(Size(large, 1000, 100), 101)


def test_the_files_that_refreshes_have_added_are_counted_until_they_are_merged() -> None:
    def added(*operations: Operation) -> int:
        made = mirror(*operations, properties={}).metadata
        for snapshot in made.snapshots:
            snapshot.summary.additional_properties = {"added-data-files": "2"}
        return added_files(made)

    assert added(Operation.OVERWRITE, Operation.DELETE, Operation.APPEND) == 4
    assert added(Operation.APPEND, Operation.REPLACE) == 0, "a compaction, or a merge"
    assert added(Operation.APPEND, Operation.REPLACE, Operation.APPEND) == 2


def test_a_delete_reads_the_files_of_its_keys_alone_where_they_are_numbers() -> None:
    target = Target("`lake`.`next_mirror_shop`.`t`", ("odd`id", "n"), ("odd`id", "n"), IntegerType())
    assert delete_sql(target, "v", Row(first=3, last=9, nulls=0)) == (
        "DELETE FROM `lake`.`next_mirror_shop`.`t`.branch_lakehouse_refresh AS t WHERE t.`odd``id` BETWEEN 3 AND 9"
        " AND EXISTS (SELECT 1 FROM v AS s WHERE t.`odd``id` <=> s.k0 AND t.`n` <=> s.k1)"
    )
    text = Target("t", ("id",), ("id",), StringType())
    assert "BETWEEN" not in delete_sql(text, "v", Row(changed=1))


def test_a_delete_of_a_key_that_is_null_reads_the_files_of_nulls_too() -> None:
    """`BETWEEN` spared the row with the null, which was in the mirror twice once its new version was appended."""
    target = Target("t", ("id",), ("id",), IntegerType())
    assert "WHERE (t.`id` BETWEEN 3 AND 9 OR t.`id` IS NULL) AND EXISTS" in delete_sql(
        target, "v", Row(first=3, last=9, nulls=1)
    )
    assert "WHERE true AND EXISTS" in delete_sql(target, "v", Row(first=None, last=None, nulls=1))


def test_a_mirror_tells_which_columns_of_its_key_have_nulls(tmp_path: Path) -> None:
    """Whatever made them: the source, or values that the lake could not hold, under a policy that is no more."""
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("mirror_s")
    columns = [("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]
    table = catalog.create_table(("mirror_s", "t"), pa.schema(columns))
    for text in ("x", None):
        table.append(pa.table({"a": [1], "b": [text]}, pa.schema(columns[:2])))
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert columns_with_nulls(table, first, ["a", "b"]) == ()
    assert columns_with_nulls(table, second, ["a", "b"]) == ("b",)
    assert columns_with_nulls(table, first, ["a", "c"]) == ("c",), "its files say nothing of it"
    table.append(pa.table({"a": [None], "b": ["y"]}, pa.schema(columns[:2])))
    newest, known = data_snapshot(table), replace(STATE, snapshot=second, nulls=("b",))
    assert newest and columns_with_nulls(table, newest, ["a", "b"], known) == ("a", "b")
    of_new_files = columns_with_nulls(table, newest, ["a", "b"], replace(known, nulls=()))
    assert of_new_files == ("a",), "no other file is read again"


def test_no_source_is_called_as_the_lease_of_mirrors() -> None:
    assert not NAME.fullmatch(mirrors_of("shop"))


def test_a_refresh_under_way_is_given_up_when_its_follower_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark cancels the jobs that run at that moment; the refresh may be between two."""
    cancelled: list[str] = []
    context = SimpleNamespace(
        cancelJobGroup=cancelled.append,
        setJobGroup=lambda *_, **__: None,
        setLocalProperty=lambda *_: None,
        _gateway=None,
    )
    source = SimpleNamespace(mirrored=("orders",), refresh_seconds=0.0)
    stop, begun = threading.Event(), threading.Event()
    session = SimpleNamespace(name="shop", source=source, stop=stop, spark=SimpleNamespace(sparkContext=context))

    def refresh(self: Refresher) -> None:
        begun.set()
        deadline = time.monotonic() + 5
        while len(cancelled) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.wait(5)

    monkeypatch.setattr(Refresher, "_once", refresh)
    refresher = Refresher(cast("Session", session))
    assert begun.wait(5)
    stop.set()
    refresher.join()
    assert cancelled[:2] == ["mirrors-shop"] * 2


def test_a_source_whose_last_mirror_is_declared_no_more_is_refreshed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its views went on reading the mirror, which nobody brought up any more."""
    context = SimpleNamespace(setJobGroup=lambda *_, **__: None, setLocalProperty=lambda *_: None)
    source = SimpleNamespace(mirrored=(), tables=(SimpleNamespace(key=("id",)),), refresh_seconds=0.0)
    spark = SimpleNamespace(sparkContext=context)
    session = SimpleNamespace(name="shop", source=source, stop=threading.Event(), spark=spark)
    could = iter((False, True))
    monkeypatch.setattr(Refresher, "_once", lambda self: next(could))
    refresher = Refresher(cast("Session", session))
    refresher._thread.join(5)
    assert not refresher._thread.is_alive() and list(could) == []


def test_a_mirror_that_stays_behind_is_told_of_once_and_not_for_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    """A column that was renamed in the source kept its table's mirror behind, and nothing said so."""
    refresher = Refresher(cast("Session", SimpleNamespace(name="shop", source=SimpleNamespace(mirrored=(), tables=()))))
    for aside in ({"orders"}, {"orders", "lines"}, {"orders"}, set[str](), {"orders"}, {"orders"}):
        refresher._tell(dict.fromkeys(aside, "raw lacks a value"))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("the mirror of orders stays as it was: raw" in said for said in told), (
        "again once it was over"
    )


def test_the_file_that_a_view_named_until_now_stays_however_old_it_is(tmp_path: Path) -> None:
    """Of an idle table it was deleted by the refresh that replaced it, under a query that had just read its name."""
    names = [f"{number:05}-x.gz.metadata.json" for number in (498, 499, 500)]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    _, base, location = (f"{tmp_path}/{name}" for name in names)
    io: Any = SimpleNamespace(
        properties={}, parse_location=lambda path, _: ("file", "", path), fs_by_scheme=lambda *_: LocalFileSystem()
    )
    forget_old(io, [NextView(("parsed", "current_s__t"), base, location)])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[1:]


def test_a_table_that_is_to_be_read_again_is_in_no_cut_though_the_newest_one_has_it() -> None:
    """The refresh of a source failed between `--resnapshot` and the next publish: nothing is known of its columns."""
    shop: Any = [SimpleNamespace(name=name) for name in ("orders", "lines", "new")]
    stream: Any = SimpleNamespace(cut_tables=["orders", "lines"])
    facts: Any = SimpleNamespace(columns=())
    kept = TablePosition("orders", 1, None, "streaming", None, versions=(facts,))
    positions = {"orders": kept, "lines": replace(kept.forgotten, table="lines", state="new")}
    assert [table.name for table in tables_in_cut(shop, stream, positions)] == ["orders"]


def test_a_table_that_comes_back_at_the_same_cut_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row did not name it until the source changed: a pin left its mirror out."""
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("meta")
    table = ensure_mirrors(catalog)
    times = (AT + timedelta(microseconds=n) for n in range(99))

    def publish(_: Any, __: Any, ___: Any, made: Published) -> None:
        table.append(pa.Table.from_pylist([made.row], table.schema().as_arrow()))

    monkeypatch.setattr("ingestion.mirrors.copies.publish", publish)
    monkeypatch.setattr("ingestion.mirrors.refresh.store.catalog_clock", lambda _: next(times))
    monkeypatch.setattr("ingestion.mirrors.refresh.open_io", lambda _: None)
    session: Any = SimpleNamespace(catalog=catalog, name="shop", settings=None, lease=None)
    stream: Any = SimpleNamespace(epoch=1, cut_lsn=500, cut_at=AT)

    def refreshed(**snapshots: str) -> set[str]:
        """Refreshes, with nothing to write, and returns whose mirrors the newest row names."""
        _publish(session, cast(Any, None), stream, AT, [], [], snapshots)
        return newest_cut(catalog, "shop")[2]

    assert refreshed(orders="1", lines="2") == {"orders", "lines"}
    assert refreshed(orders="1") == {"orders"}
    assert refreshed(orders="1", lines="2") == {"orders", "lines"}
    assert refreshed(orders="1", lines="2") == {"orders", "lines"}
    assert len(table.scan().to_arrow()) == 3, "none more where nothing is new"
