"""Which moment is meant: an option that is empty names none, and a position alone may be in several epochs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_cli.lake.pin import pin
from lakehouse_cli.lake.sql import sql
from lakehouse_serve.past.cuts import CutKey, NoCut, newest_keys
from lakehouse_serve.past.moments import parse_warehouse
from maintenance.command.restore import pin as pin_tables

PUBLISHED = datetime(2026, 5, 4, tzinfo=UTC)
CUTS = [("s", CutKey(epoch, lsn, PUBLISHED)) for epoch, lsn in ((1, 100), (1, 500), (2, 300), (2, 700))]


@pytest.mark.parametrize(
    "option", [{"as_of": ""}, {"as_of_cut": ""}, {"as_of_lsn": [""]}, {"as_of_lsn": ["s=0/1", ""]}]
)
def test_a_query_as_of_an_empty_text_is_refused(option: Mapping[str, Any]) -> None:
    """As of `--as-of "$WHEN"` where WHEN is not set: it would be a query of the present."""
    with pytest.raises(LakehouseError, match="neither a time nor an LSN nor a pin"):
        sql("SELECT 1", **option)


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
        ("0/C8", (1, 100)),
        ("s=0/1F5", (2, 300)),
        ("s=0/FFFF", (2, 700)),
        ("2026-05-04", (2, 700)),
    ],
)
def test_the_newest_cut_until_a_moment(moment: str, found: tuple[int, int]) -> None:
    parsed = parse_warehouse(f"lake@{moment}", "lake")
    assert parsed is not None and newest_keys(parsed, CUTS)["s"][:2] == found


@pytest.mark.parametrize("moment", ["0/12C", "s=0/190", "s=0/1F4"])
def test_a_position_that_two_epochs_have_is_refused(moment: str) -> None:
    """A source that was restored writes the same positions again: after 0/12C of the first epoch come those of both."""
    parsed = parse_warehouse(f"lake@{moment}", "lake")
    assert parsed is not None
    with pytest.raises(NoCut, match=r"epochs 1 and 2 .*name the epoch, as in s=2:0/"):
        newest_keys(parsed, CUTS)
