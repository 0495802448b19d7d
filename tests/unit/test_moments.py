"""Which moment is meant: an option that is empty names none, and a position alone may be in several epochs."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.table import DataScan, Table

from ingestion.sink.cuts import CUTS, CUTS_SCHEMA
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.errors import LakehouseError
from lakehouse_cli.lake.pin import pin
from lakehouse_cli.lake.sql import sql
from lakehouse_serve.past import cuts as cuts_module
from lakehouse_serve.past.cuts import Back, Cuts, NoCut, _newest, _refuse_other_epochs
from lakehouse_serve.past.moments import Moment, Position, parse_warehouse
from lakehouse_serve.past.states import _others
from maintenance.command.restore import pin as pin_tables

PUBLISHED = datetime(2026, 5, 4, tzinfo=UTC)
Row = dict[str, Any]


def row(lsn: int, at: datetime = PUBLISHED, epoch: int = 1, source: str = "s", **more: Any) -> Row:
    cut = {"source": source, "epoch": epoch, "cut_lsn": lsn, "cut_at": at, "published_at": at, "snapshots": []}
    return cut | more


def listed(folder: Path, *files: list[Row]) -> Table:
    """A table of cuts with these files."""
    catalog = LakeCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("meta")
    table = catalog.create_table(CUTS, CUTS_SCHEMA)
    for rows in files:
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return table


def newest(table: Table, warehouse: str) -> dict[str, tuple[int, int]]:
    moment = parse_warehouse(f"lake@{warehouse}", "lake")
    assert moment is not None
    return {cut.source: (cut.epoch, cut.lsn) for cut in _newest(table, moment, "raw", _refuse_other_epochs)}


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Of two epochs."""
    rows = [row(lsn, epoch=epoch) for epoch, lsn in ((1, 100), (1, 500), (2, 300), (2, 700))]
    return listed(tmp_path_factory.mktemp("cuts"), rows[:2], rows[2:])


@pytest.mark.parametrize("option", [{"as_of": ""}, {"as_of_cut": ""}])
def test_a_query_as_of_an_empty_text_is_refused(option: Mapping[str, Any]) -> None:
    """As of `--as-of "$WHEN"` where WHEN is not set: it would be a query of the present."""
    with pytest.raises(LakehouseError, match="neither a time nor an LSN nor a pin"):
        sql("SELECT 1", **option)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([""], "'' is no commit of a source: use SOURCE="),
        (["shop=0/1", ""], "'' is no commit of a source"),
        (["shop=bank=0/44"], r"'shop=bank=0/44' is no commit of a source: use SOURCE=\[EPOCH:\]LSN, such as retail="),
        (["shop=0/1,bank=0/2"], "is no commit of a source"),
        (["2026-05-04"], "is no commit of a source"),
        (["pin:year_end"], "is no commit of a source"),
        (["shop=0/1", "shop=0/2"], r"shop=0/1, shop=0/2: shop is named twice: give one commit of each source$"),
        (["shop=0/1", "shop=0/1"], "shop is named twice"),
        (["shop=0/1", "0/2"], r"shop=0/1, 0/2: name the source of each"),
    ],
)
def test_what_is_no_commit_of_a_source_is_refused_by_its_option(given: list[str], says: str) -> None:
    """A time was taken, and the others were told as what is neither a time nor a pin."""
    with pytest.raises(LakehouseError, match=f"^--as-of-lsn: .*{says}"):
        sql("SELECT 1", as_of_lsn=given)


def test_an_empty_option_counts_beside_another_one() -> None:
    with pytest.raises(LakehouseError, match="give one of them"):
        sql("SELECT 1", as_of="2026-05-04", as_of_cut="")


def test_a_pin_of_an_empty_text_is_refused() -> None:
    with pytest.raises(LakehouseError, match="neither a time nor an LSN nor a pin"):
        pin("quarter_close", cut="")
    with pytest.raises(LakehouseError, match="is no time in ISO 8601"):
        pin("quarter_close", until="")
    with pytest.raises(LakehouseError, match="is no time in ISO 8601"):
        pin_tables("loads", source="s", until="")


@pytest.mark.parametrize(
    ("moment", "found"),
    [
        ("s=1:0/190", (1, 100)),
        ("s=2:0/190", (2, 300)),
        ("s=1:0/1F4", (1, 500)),
        ("s=0/1F5", (2, 300)),
        ("s=0/FFFF", (2, 700)),
        ("2026-05-04", (2, 700)),
        ("2027-05-04", (2, 700)),
        ("s=1:FFFFFFFF/FFFFFFFF", (1, 500)),
        ("FFFFFFFF/FFFFFFFF", (2, 700)),
    ],
)
def test_the_newest_cut_until_a_moment(cuts: Table, moment: str, found: tuple[int, int]) -> None:
    assert newest(cuts, moment) == {"s": found}


@pytest.mark.parametrize("moment", ["2026-05-03", "0001-01-05", "0/63", "s=1:0/63", "t=0/FFFF"])
def test_there_is_no_cut_before_the_first_one(cuts: Table, moment: str) -> None:
    assert newest(cuts, moment) == {}


@pytest.mark.parametrize("position", [150, 250])
def test_a_position_without_a_source_is_refused_where_the_lake_has_several(
    position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a source without a cut until there was taken for one of the other."""
    table = listed(tmp_path, [row(100), row(200, source="bank")])
    monkeypatch.setattr(cuts_module, "open_catalog", lambda _: table.catalog)
    of = partial(Cuts(cast(Any, None)).at, now=PUBLISHED)
    with pytest.raises(NoCut, match=r"there are several sources: name one, as in (s|bank)=0/3C87757"):
        of(Moment(positions=(Position(position),)))
    assert [cut.lsn for cut in of(Moment(positions=(Position(position, "s"),)))] == [100]


@pytest.mark.parametrize("moment", ["0/12C", "s=0/190", "s=0/1F4", "0/C8"])
def test_a_position_that_two_epochs_have_is_refused(cuts: Table, moment: str) -> None:
    """A source that was restored writes the same positions again: after 0/12C of the first epoch come those of both.

    0/C8 may be one of the second epoch, too, before its first cut: it was answered from the first one.
    """
    epoch = 1 if moment == "0/C8" else 2
    with pytest.raises(NoCut, match=f"epochs 1 and 2 .*name the epoch, as in s={epoch}:0/"):
        newest(cuts, moment)


@pytest.mark.parametrize(("moment", "before"), [("s=2:0/5A", "s=1:0/1F4"), ("s=3:0/1", "s=2:0/2BC")])
def test_a_position_of_an_epoch_is_not_answered_from_an_earlier_one(cuts: Table, moment: str, before: str) -> None:
    """After a restore the earlier epoch had commits that this one never saw."""
    epoch = moment[2]
    with pytest.raises(NoCut, match=f"epoch {epoch} of s has no cut until then; the newest cut before it is {before}"):
        newest(cuts, moment)


SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class Counted:
    """What a scan has read: of many rows no objects are made."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def __getitem__(self, name: str) -> Any:
        return self._rows[name]

    def to_pylist(self) -> list[Row]:
        assert self._rows.num_rows <= 1000, "a day has 100,000 cuts"
        return cast("list[Row]", self._rows.to_pylist())


@pytest.mark.parametrize("moment", ["2026-05-04T04:00", "s=1:0/36EE80", "0/36EE80"])
def test_of_many_cuts_few_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Whoever could log in could make the service read all cuts of all times, with each request anew."""
    monkeypatch.setattr(
        "lakehouse_serve.past.cuts.LOOKS_BACK", (Back(HOUR, 900_000), Back(2 * HOUR, 1_800_000), Back(None, None))
    )
    files = [[row(250 * n, PUBLISHED + n * SECOND) for n in range(1800 * m, 1800 * (m + 1))] for m in range(10)]
    table, read, opened = listed(tmp_path, *files), list[int](), set[str]()
    to_arrow = DataScan.to_arrow

    def counted(scan: DataScan) -> Any:
        rows = to_arrow(scan)
        read.append(rows.num_rows)
        opened.update(task.file.file_path for task in scan.plan_files())
        return Counted(rows)

    monkeypatch.setattr(DataScan, "to_arrow", counted)
    assert newest(table, moment) == {"s": (1, 3_600_000)}
    assert sum(read) < 4000 and len(opened) <= 4, "of ten files"


def test_a_source_that_has_been_quiet_for_long_has_its_newest_cut_too(tmp_path: Path) -> None:
    quiet = [row(7, PUBLISHED - 1000 * HOUR, source="quiet"), row(9, PUBLISHED + HOUR, source="quiet")]
    table = listed(tmp_path, [row(1, PUBLISHED - HOUR)], quiet, [row(2, PUBLISHED)])
    assert newest(table, "2026-05-04T00:00:01") == {"s": (1, 2), "quiet": (1, 7)}
    assert newest(table, "quiet=0/FFFFFF00,s=0/1") == {"s": (1, 1), "quiet": (1, 9)}


def test_a_cut_of_a_clock_that_was_set_back_is_newer_than_those_before_it(tmp_path: Path) -> None:
    table = listed(tmp_path, [row(100, PUBLISHED)], [row(200, PUBLISHED - 100 * HOUR)])
    assert newest(table, "2026-05-04") == {"s": (1, 200)}


def test_of_a_cut_that_was_published_twice_the_later_one_counts(tmp_path: Path) -> None:
    later = row(100, PUBLISHED - 100 * HOUR, published_at=PUBLISHED + HOUR, snapshots=[("t", "2")])
    table = listed(tmp_path, [row(100, snapshots=[("t", "1")])], [later])
    moment = parse_warehouse("lake@2026-05-04", "lake")
    assert moment is not None and [cut.snapshots for cut in _newest(table, moment, "raw", _refuse_other_epochs)] == [
        {"t": 2}
    ]


@pytest.mark.parametrize("seed", range(12))
def test_a_pin_tells_what_other_sources_had_or_that_nobody_knows(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources are idle at any time, and have clocks of their own: what another one had brought after the newest cut of
    the pin's own sources was missing, without a word."""
    rng, at = random.Random(seed), PUBLISHED
    skews = {source: timedelta(minutes=rng.choice([0, 0, -30, 30])) for source in ("s", "bank")}
    rows = [row(1, at + skews["s"], published_at=at)]
    for lsn in range(2, rng.randint(3, 9)):
        at += timedelta(minutes=rng.randint(1, 20))
        source = rng.choice(["s", "bank"])
        rows.append(row(lsn, at + skews[source], source=source, published_at=at))
    table = listed(tmp_path, rows)
    monkeypatch.setattr(cuts_module, "open_catalog", lambda _: table.catalog)
    told = 0
    for made in (found["published_at"] for found in rows):
        had = {found["source"]: found["cut_lsn"] for found in rows if found["published_at"] <= made}
        own = Cuts(cast(Any, None)).at(Moment(positions=(Position(had["s"], "s", 1),)), at)
        others = _others(cast(Any, None), own)
        told += others is not None
        assert others is None or {cut.source: cut.lsn for cut in others} == {k: v for k, v in had.items() if k != "s"}
    assert told or rows[-1]["source"] == "bank" or len(set(skews.values())) > 1
