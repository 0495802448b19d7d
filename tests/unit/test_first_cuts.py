"""From the source's side: which cut has a transaction, and what is said where none has."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from ingestion.sink.cuts import CUTS, CUTS_SCHEMA
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.errors import LakehouseError
from lakehouse_cli.lake import show
from lakehouse_serve.past.commits import first_cuts
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.moments import Moment
from lakehouse_serve.past.states import came_later

BEGAN = datetime(2026, 5, 4, 12, tzinfo=UTC)
# Epoch and LSN of each cut of `shop`, with the tables that it covers; one a minute.
LISTED = [(1, 100, "ab"), (1, 200, "ab"), (1, 300, "a"), (2, 150, "ab"), (2, 260, "ab")]
# By raw table: epoch, commit LSN and transaction of each row, and the minute in which it landed.
RAW: dict[str, list[tuple[int, int, int | None, int]]] = {
    "a": [(1, 90, None, 0), (1, 150, 700, 1), (1, 150, 700, 1), (1, 160, 702, 2), (1, 290, 705, 2), (2, 255, 700, 4)],
    "b": [(1, 150, 700, 1), (1, 290, 705, 2), (2, 999, 710, 4)],
}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[LakeCatalog]:
    made = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("meta", "raw_shop"):
        made.create_namespace(namespace)
    cuts = made.create_table(CUTS, CUTS_SCHEMA)
    rows: list[dict[str, Any]] = [
        {
            "source": "shop", "epoch": epoch, "cut_lsn": lsn, "cut_at": BEGAN + timedelta(minutes=n),
            "published_at": BEGAN + timedelta(minutes=n, seconds=9), "snapshots": [(name, "1") for name in tables],
        }
        for n, (epoch, lsn, tables) in enumerate(LISTED)
    ]  # fmt: skip
    cuts.append(pa.Table.from_pylist(rows, schema=cuts.schema().as_arrow()))
    for name, events in RAW.items():
        epochs, lsns, xids, minutes = zip(*events, strict=True)
        table = pa.table({
            "_epoch": pa.array(epochs, pa.int32()), "_commit_lsn": pa.array(lsns, pa.int64()),
            "_xid": pa.array(xids, pa.int64()), "_committed_at": [BEGAN] * len(events), "_seq": [1] * len(events),
            "_ingested_at": [BEGAN + timedelta(minutes=minute) for minute in minutes],
        })  # fmt: skip
        made.create_table(("raw_shop", name), table.schema).append(table)
    yield made
    made.close()


def asked(catalog: LakeCatalog, text: str) -> list[str]:
    return [str(found.cut.position) for found in first_cuts(catalog, text)]


def test_a_transaction_is_in_the_first_cut_at_or_after_its_commit(catalog: LakeCatalog) -> None:
    """In each epoch that has its id, and not in a cut that was published before its rows landed late."""
    of_first, of_second = first_cuts(catalog, "shop=xid:700")
    assert (str(of_first.cut.position), str(of_first.commit)) == ("shop=1:0/C8", "shop=1:0/96")
    assert of_first.rows == {"a": 2, "b": 1} and of_first.committed_at == BEGAN and not of_first.left_out
    assert (str(of_second.cut.position), of_second.rows) == ("shop=2:0/104", {"a": 1})
    assert asked(catalog, "shop=xid:702") == ["shop=1:0/12C"], "the cut at 200 was published before"
    [parked] = first_cuts(catalog, "shop=xid:705")
    assert (str(parked.cut.position), parked.left_out) == ("shop=1:0/12C", ("b",))


def test_what_landed_after_its_epoch_had_ended_is_in_a_cut_of_the_next(catalog: LakeCatalog) -> None:
    """As by `ingest --replay`, or before a recovery; it was said to be in no cut yet, and hid that of another epoch."""
    rows = [(1, 280, 720, 4), (1, 999, 721, 2), (2, 255, 721, 4)]
    for epoch, lsn, xid, minute in rows:
        raw = catalog.load_table(("raw_shop", "a"))
        raw.append(pa.table({
            "_epoch": pa.array([epoch], pa.int32()), "_commit_lsn": [lsn], "_xid": [xid], "_committed_at": [BEGAN],
            "_seq": [1], "_ingested_at": [BEGAN + timedelta(minutes=minute)],
        }))  # fmt: skip
    assert asked(catalog, "shop=xid:720") == ["shop=2:0/104"]
    assert asked(catalog, "shop=xid:721") == ["shop=2:0/96", "shop=2:0/104"]


def test_the_first_cut_after_a_time_says_what_it_lacks_of_that_time(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commit is stamped before it is flushed, so the position that was read a moment later may be below it."""
    [found] = first_cuts(catalog, "shop=2026-05-04T12:00:30")
    assert (str(found.cut.position), found.later) == ("shop=1:0/C8", ("a", "b"))
    [none] = first_cuts(catalog, "shop=2026-05-04T11:00")
    assert (str(none.cut.position), none.later) == ("shop=1:0/64", ())
    monkeypatch.setattr(show, "open_catalog", lambda _: catalog)
    monkeypatch.setattr(show, "closing", lambda _: nullcontext(catalog))
    show._show_first(cast(Any, None), "shop=2026-05-04T12:00:30", json=True)
    printed = capsys.readouterr()
    assert printed.err == (
        "shop=1:0/C8: a, b of shop had changes until then that are not in it: they came with a later cut\n"
    )
    assert json.loads(printed.out)[0]["later"] == ["a", "b"]


@pytest.mark.parametrize(("column", "told"), [("_offset", ["late"]), ("_old_key", [])])
def test_what_topics_tell_days_later_is_told_as_missing(catalog: LakeCatalog, column: str, told: list[str]) -> None:
    """What had been committed more than a day before the cut was passed over, which a slot never tells so late."""
    rows = pa.table({
        "_epoch": pa.array([1], pa.int32()), "_commit_lsn": [300], "_committed_at": [BEGAN - timedelta(days=3)],
        "_seq": [1], column: [1],
    })  # fmt: skip
    made = catalog.create_table(("raw_shop", "late"), rows.schema)
    made.append(rows)
    cut = Cut("shop", 1, 200, {"late": 1}, at=BEGAN)
    assert came_later(catalog, cut, Moment(at=BEGAN + timedelta(minutes=1))) == told


def test_a_position_and_a_time_have_a_first_cut(catalog: LakeCatalog) -> None:
    assert asked(catalog, "shop=1:0/64") == ["shop=1:0/64"]
    assert asked(catalog, "shop=1:0/65") == ["shop=1:0/C8"]
    assert asked(catalog, "shop=0/DC") == ["shop=1:0/12C", "shop=2:0/104"], "both epochs have such a position"
    assert asked(catalog, "shop=2026-05-04T12:01") == ["shop=1:0/12C"], (
        "what commits at that moment may be after its cut"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shop=xid:711", r"not in the lake yet, or changed no table that is ingested; the newest cut is shop=2:0/104"),
        (
            "shop=xid:4294967996",
            r"comes through Debezium, which has ids of 32 bits, ask for xid:700; else it is not in",
        ),
        ("shop=xid:9999999999999999999", r"else it is not in the lake yet"),
        ("shop=xid:710", r"transaction 710 of shop is in raw, at shop=2:0/3E7, and in no cut yet: the newest is"),
        ("shop=xid:701", r"rolled back, or is open still .*pg_xact_status\('701'\).* have been removed"),
        ("shop=xid:699", r"older than all that came by replication \(the first is 700\)"),
        ("shop=2:0/105", r"2:0/105 is in no cut of shop yet: the newest is shop=2:0/104, of 2026-05-04 12:04:00 UTC"),
        ("shop=2026-05-04T12:04", r"2026-05-04T12:04 is in no cut of shop yet"),
        ("bank=xid:700", "no cut of bank was published"),
        ("xid:700", r"no cut of xid:700 was published: ask for SOURCE=xid:N"),
        ("shop=yesterday", r"'shop=yesterday': ask for SOURCE=xid:N"),
        ("shop=bank=0/44", r"^'shop=bank=0/44' names a source twice, shop and bank: ask for SOURCE=xid:N"),
        ("shop=shop=0/44", "names a source twice"),
        ("shop=", "ask for SOURCE=xid:N"),
        ("shop=pin:x", "ask for SOURCE=xid:N"),
    ],
)
def test_what_no_cut_has_is_told_with_the_reason(catalog: LakeCatalog, text: str, says: str) -> None:
    with pytest.raises(LakehouseError, match=says):
        first_cuts(catalog, text)
