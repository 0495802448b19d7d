"""Positions after a recovery to an earlier one, while the new epoch has no cut yet."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehouse_serve.past import asked
from lakehouse_serve.past.cuts import Cut, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.reads import Read, refuse_unread

AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
CUTS, READ = (Cut("shop", 1, 0x64, {}),), {"shop": Read(2, 0x50, AT)}


def moment(text: str) -> Moment:
    found = parse_warehouse(f"lake@{text}", "lake")
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["shop=0/64", "shop=0/70", "0/64"])
def test_a_position_that_both_epochs_may_have_is_refused_with_how_to_name_it(text: str) -> None:
    """It was said not to be in the lake yet, though it was that of the newest cut."""
    named = f"shop=1:{text.removeprefix('shop=')}"
    with pytest.raises(NoCut, match=f"^epochs 1 and 2 of shop may both have {text}: name the epoch, as in {named}$"):
        refuse_unread(moment(text), CUTS, READ)
    refuse_unread(moment(named), CUTS, READ)
    refuse_unread(moment("shop=0/50"), CUTS, READ)
    with pytest.raises(NoCut, match=r"^shop=2:0/64 is not in the lake yet: shop has been read until shop=2:0/50"):
        refuse_unread(moment("shop=2:0/64"), CUTS, READ)


def test_how_far_a_source_was_read_is_looked_up_before_what_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a publish between the two, neither said that something was not in the cut."""
    done = list[str]()
    monkeypatch.setattr(asked, "read_sources", lambda _: done.append("reads") or READ)
    monkeypatch.setattr(asked, "open_catalog", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(asked, "came_later", lambda *_: done.append("later") or [])
    asked.remarks(cast(Any, None), Moment(at=AT), CUTS)
    assert done == ["reads", "later"]
