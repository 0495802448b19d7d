"""A declared pin whose run was killed, or came late: what is there is pinned. On real Iceberg tables in a directory."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ingestion.sink.cuts import CUTS, CUTS_SCHEMA
from ingestion.sink.meta_tables import MIRRORS, MIRRORS_SCHEMA
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.pins import Pinned, lacking, pinned
from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse_serve.past.moments import Moment
from lakehouse_serve.past.states import together
from maintenance.inventory.pins import pin_states
from orchestration.resources import Lake

ROWS = pa.schema(
    [
        ("_epoch", pa.int32()), ("_commit_lsn", pa.int64()), ("_committed_at", pa.timestamp("us", "UTC")),
        ("_seq", pa.int64()),
    ]
)  # fmt: skip
GONE: dict[str, Any] = {"source": "gone", "epoch": 1, "snapshots": []}
RAW, MIRROR, MART = ("raw_shop", "orders"), ("mirror_shop", "orders"), ("marts", "sales")


class KnownLake(Lake):
    """One source with a mirror."""

    def settings(self) -> Any:
        return None

    def declarations(self) -> Any:
        orders = SimpleNamespace(name="orders")
        shop = SimpleNamespace(name="shop", tables=[orders], mirrored=[orders], refresh_seconds=3600)
        return SimpleNamespace(sources=[shop])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeCatalog:
    def opened(_: Any = None) -> LakeCatalog:
        return LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")

    for module in ("lakehouse_serve.past.cuts", "lakehouse_serve.past.states", "maintenance.inventory.session"):
        monkeypatch.setattr(f"{module}.open_catalog", opened)
    catalog = opened()
    for namespace in ("meta", "raw_shop", "mirror_shop", "marts"):
        catalog.create_namespace(namespace)
    catalog.create_table(CUTS, CUTS_SCHEMA)
    catalog.create_table(MIRRORS, MIRRORS_SCHEMA)
    for name in (RAW, MIRROR, MART):
        catalog.create_table(name, ROWS)
    return catalog


def grow(catalog: LakeCatalog, name: tuple[str, str], lsn: int = 1, at: datetime | None = None) -> int:
    """Adds a change that was committed then."""
    table = catalog.load_table(name)
    row = {"_epoch": 1, "_commit_lsn": lsn, "_committed_at": at or datetime.now(UTC), "_seq": 1}
    table.append(pa.Table.from_pylist([row], ROWS))
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def cut(
    catalog: LakeCatalog, lsn: int, at: datetime, epoch: int = 1, is_refreshed: bool = True
) -> dict[tuple[str, str], int]:
    """A cut of raw at which the mirror was refreshed, or was not."""
    snapshots = {}
    for listed, name in ((CUTS, RAW), (MIRRORS, MIRROR))[: 1 + is_refreshed]:
        snapshots[name] = grow(catalog, name, lsn, at)
        row = {
            "source": "shop", "epoch": epoch, "cut_lsn": lsn, "cut_at": at, "published_at": at,
            "snapshots": [("orders", str(snapshots[name]))],
        }  # fmt: skip
        table = catalog.load_table(listed)
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    return snapshots


def test_a_pin_that_was_killed_half_way_is_completed_with_its_own_cut(catalog: LakeCatalog) -> None:
    """A refresh after it published the mirrors at a newer cut of before midnight, and the pin was refused for good."""
    mart, now = grow(catalog, MART), datetime.now(UTC)
    begun_at, moment, until = now - timedelta(minutes=3), now, now + timedelta(days=1)
    begun = cut(catalog, 100, begun_at)
    session: Any = SimpleNamespace(catalog=catalog)
    pin_states(session, "close", Pinned({TableName(*RAW): begun[RAW]}, "shop=1:0/64", ""), until)
    cut(catalog, 200, now - timedelta(minutes=1))
    made, missing, reach = KnownLake().pin_cut("close", moment, until)
    assert {(*pin.table,) for pin in made} == {MIRROR, MART}
    assert missing == (
        "orders of shop had changes until then that are not in it: they came with a later cut, and this one is of "
        f"{begun_at:%Y-%m-%d %H:%M:%S} UTC",
    )
    assert reach == {"shop": f"is as of {begun_at:%Y-%m-%d %H:%M:%S} UTC, 180 s before {moment:%Y-%m-%d %H:%M:%S} UTC"}
    assert pinned(catalog, "close") == ({**begun, MART: mart}, "shop=1:0/64", "")
    assert KnownLake().pin_cut("close", moment, until)[0] == []
    newer, missing, _ = KnownLake().pin_cut("later", moment, until)
    assert {pin.cut for pin in newer} == {"shop=1:0/C8"} and missing == ()


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_pin_after_a_recovery_is_not_of_what_was_rolled_back(catalog: LakeCatalog, has_expired: bool) -> None:
    """Until the first refresh after it, a pin kept the mirrors and raw of the epoch before, and told nothing of it."""
    now = datetime.now(UTC)
    cut(catalog, 100, now - timedelta(minutes=3))
    raw = cut(catalog, 90, now - timedelta(minutes=1), epoch=2, is_refreshed=False)
    if has_expired:
        catalog.load_table(CUTS).delete("epoch = 1")
    made, missing, _ = KnownLake().pin_cut("close", now, now + timedelta(days=1))
    assert [(*pin.table,) for pin in made] == [RAW] and pinned(catalog, "close") == (raw, "shop=2:0/5A", "")
    assert missing == (
        "mirrors of shop are not in it: they stand at shop=1:0/64, of before a recovery, and the cut is shop=2:0/5A; "
        "pin again once they are refreshed",
    )
    if not has_expired:
        before, *_ = KnownLake().pin_cut("before", now - timedelta(minutes=2), now + timedelta(days=1))
        assert {(*pin.table,) for pin in before} == {RAW, MIRROR}


def test_what_a_pin_lacks_is_mirrors_of_its_raw_tables_and_marts_that_were_there(catalog: LakeCatalog) -> None:
    grow(catalog, MART)
    now = datetime.now(UTC)
    snapshots, later = cut(catalog, 100, now - timedelta(minutes=1)), ("marts", "made_since")
    catalog.create_table(later, ROWS)
    grow(catalog, later)
    mirrors, marts = {RAW: MIRROR, ("raw_shop", "parked"): ("mirror_shop", "parked")}, [MART, later, ("marts", "never")]
    kept = Pinned({TableName(*RAW): snapshots[RAW]}, "shop=1:0/64", "")
    pin_states(cast(Any, SimpleNamespace(catalog=catalog)), "half", kept, now + timedelta(days=1))
    assert lacking(catalog, "half", datetime.now(UTC), mirrors, [MART]) == [".".join(MART), ".".join(MIRROR)]
    never_made = {RAW: ("mirror_shop", "never_made")}  # without a follower nothing makes them
    assert lacking(catalog, "half", datetime.now(UTC), never_made, []) == []
    assert lacking(catalog, "half", now - timedelta(hours=1), mirrors, marts) == [".".join(MIRROR)]
    KnownLake().pin_cut("whole", datetime.now(UTC), now + timedelta(days=1))
    assert lacking(catalog, "whole", datetime.now(UTC), mirrors, marts) == []


def test_a_pin_has_the_newest_cut_of_a_source_that_was_removed(catalog: LakeCatalog) -> None:
    """Its last cut was counted by those of an idle source, and what came after them was missing without a word."""
    now = datetime.now(UTC)
    cut(catalog, 100, now - timedelta(hours=2))
    cuts = catalog.load_table(CUTS)
    for minutes in (180, 60, 5):
        at = now - timedelta(minutes=minutes)
        row = {**GONE, "cut_lsn": 240 - minutes, "cut_at": at, "published_at": at}
        cuts.append(pa.Table.from_pylist([row], schema=cuts.schema().as_arrow()))
    KnownLake().pin_cut("close", now, now + timedelta(days=1))
    KnownLake().pin_cut("before", now - timedelta(minutes=50), now + timedelta(days=1))
    assert [pinned(catalog, name).others for name in ("close", "before")] == ["gone=1:0/EB", "gone=1:0/B4"]


def test_a_pin_that_somebody_made_by_hand_is_not_that_of_the_moment_to_come(catalog: LakeCatalog) -> None:
    """The pin of ten o'clock had the name of midnight's, which was told to be there already."""
    grow(catalog, MART)
    now = datetime.now(UTC)
    cut(catalog, 100, now - timedelta(minutes=3))
    KnownLake().pin_cut("close", now - timedelta(minutes=2), now + timedelta(days=1))
    cut(catalog, 200, now - timedelta(minutes=1))
    with pytest.raises(LakehouseError, match="unpin it first"):
        KnownLake().pin_cut("close", now, now + timedelta(days=1, minutes=2))


@pytest.mark.parametrize("lost", ["expired", "made again"])
def test_a_table_whose_snapshot_has_left_the_metadata_is_left_out_of_the_pin_and_named(
    catalog: LakeCatalog, lost: str
) -> None:
    """The whole pin failed, at each attempt: mirrors and marts of the month-end were not kept, and expired."""
    mart, now = grow(catalog, MART), datetime.now(UTC)
    begun = cut(catalog, 100, now - timedelta(minutes=1))
    moment, until = datetime.now(UTC), now + timedelta(days=1)
    cut(catalog, 200, now + timedelta(minutes=1))
    if lost == "expired":
        catalog.load_table(RAW).maintenance.expire_snapshots().by_id(begun[RAW]).commit()
    else:
        catalog.drop_table(RAW)
        catalog.create_table(RAW, ROWS)
        grow(catalog, RAW)
    made, missing, _ = KnownLake().pin_cut("close", moment, until)
    assert {(*pin.table,) for pin in made} == {MIRROR, MART}
    assert missing == (
        "raw_shop.orders is not in it: its snapshot of then has left the metadata, or it was made again since",
    )
    assert pinned(catalog, "close") == ({MIRROR: begun[MIRROR], MART: mart}, "shop=1:0/64", "")


def test_a_pin_of_which_nothing_is_left_is_refused(catalog: LakeCatalog) -> None:
    now = datetime.now(UTC)
    cut(catalog, 100, now - timedelta(minutes=1))
    for name in (RAW, MIRROR):
        catalog.drop_table(name)
    with pytest.raises(LakehouseError, match=r"^shop=1:0/64: nothing of it can be kept: mirror_shop\.orders "):
        KnownLake().pin_cut("close", datetime.now(UTC), now + timedelta(days=1))


def test_a_pin_is_no_moment_of_another_one(catalog: LakeCatalog) -> None:
    """`lakehouse pin x --cut pin:y` was told to use an option that it does not have."""
    with pytest.raises(LakehouseError, match=r"^pin:close is a pin, no time and no position$"):
        together(cast(Any, None), Moment(pin="close"), [])
